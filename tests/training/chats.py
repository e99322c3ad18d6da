"""Small chats, and a small tokenizer with a chat template, for the tests of fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from training.data import tokenizer as tokenizers_

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}{{ '\\n' }}{{ message['content'] }}"
    "<|im_end|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "that",
    "dogs",
    "may",
    "run",
    "far",
    "when",
    "rain",
    "falls",
    "upon",
    "old",
    "stones",
]


def say(count: int, start: int = 0) -> str:
    return " ".join(WORDS[(start + index) % len(WORDS)] for index in range(count))


def chat(*turns: str) -> dict[str, Any]:
    """Messages of user and assistant in turns."""
    return {
        "messages": [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]
    }


def chatml_tokenizer(directory: Path) -> Path:
    """Write a byte-level tokenizer of at most 402 tokens with ChatML's two special ones and its template."""
    made = tokenizers_.train(iter([say(60, start) for start in range(15)]), 400)
    made.write(directory)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(directory)
    return directory
