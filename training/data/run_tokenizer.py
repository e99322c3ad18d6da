"""The tokenizer of a run, which is that of its dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import Checkpoint
from training.data.examples.template import ANSWER, DATE, dated
from training.data.index import read_index
from training.run.directory import RunDir


def load_tokenizer(checkpoint: Checkpoint, run: RunDir) -> PreTrainedTokenizerBase:
    directory = dataset_directory(checkpoint.meta, run)
    return PreTrainedTokenizerFast.from_pretrained(directory / "tokenizer")


def dataset_directory(meta: dict[str, Any], run: RunDir) -> Path:
    """The run's dataset: below the run, at its recorded path, or with the prepared data of this volume."""
    named = meta.get("dataset_directory")
    if not isinstance(named, str) or Path(named).name in ("", ".."):
        raise CheckpointError("the checkpoint's metadata name no dataset")
    recorded = Path(named)
    around = run.path.resolve().parent  # with `runs` in a pod: /shared/runs/<job>, /shared/data
    found = (run.data, recorded.parent, around / "data", around.parent / "data")
    for root in found:
        if (root / recorded.name / "index.json").exists():
            return root / recorded.name
    raise CheckpointError(
        f"the run's dataset {recorded.name} is in none of {', '.join(map(str, dict.fromkeys(found)))}"
    )


def end_ids(dataset: Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids that end a text: the end of text, and in chats what the template writes behind an answer.

    Many templates end a turn by a token of its own, such as Gemma's <end_of_turn>.
    """
    ends = [tokenizer.eos_token_id]
    if read_index(dataset).source.get("chat"):
        tail = _chat(tokenizer, ANSWER, ANSWER).rpartition(ANSWER)[2].strip()
        first = tokenizer(tail, add_special_tokens=False)["input_ids"][:1]
        ends += [token for token in first if token in tokenizer.added_tokens_decoder]
    return list(dict.fromkeys(ends))


def _chat(tokenizer: PreTrainedTokenizerBase, asked: str, answer: str | None = None) -> str:
    """The text of a user's message with the prompt for an answer, or with the answer."""
    messages = [{"role": "user", "content": asked}]
    messages += [] if answer is None else [{"role": "assistant", "content": answer}]
    text = tokenizer.apply_chat_template(
        messages,
        chat_template=dated(tokenizer.chat_template),
        tokenize=False,
        add_generation_prompt=answer is None,
        date_string=DATE,
    )
    return str(text)


def prompt_ids(dataset: Path, tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Token ids of a prompt, framed like the beginning of the dataset's documents, or as a user's message.

    Raises DataError if `dataset` is not an intact dataset.
    """
    index = read_index(dataset)
    if index.source.get("chat"):
        text = _chat(tokenizer, prompt)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    frameless = "chat_template" in index.settings and index.bos == index.eos
    begin = [] if frameless else [index.bos]
    return [*begin, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
