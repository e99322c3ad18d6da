"""The tokenizer of a run, which is that of its dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import Checkpoint
from training.data.examples.template import DATE
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


def prompt_ids(dataset: Path, tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Token ids of a prompt, framed like the beginning of the dataset's documents, or as a user's message.

    Raises DataError if `dataset` is not an intact dataset.
    """
    index = read_index(dataset)
    if index.source.get("chat"):
        asked = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, date_string=DATE)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    frameless = "chat_template" in index.settings and index.bos == index.eos
    begin = [] if frameless else [index.bos]
    return [*begin, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
