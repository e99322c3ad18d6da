"""Turn text into token shards, or find the dataset that these sources and settings made before."""

from pathlib import Path

from tools.cli.data._datasets import data_errors
from tools.core import output, repo


def command(
    sources: tuple[str, ...],
    text_field: str,
    heldout_fraction: float,
    tokenizer: str,
    vocab_size: int,
    root: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    from training.data.index import read_index
    from training.data.prepare_tokens import prepare_tokens

    with data_errors(), output.activity("preparing the data", every=0.0) as now:
        directory = prepare_tokens(
            "\n".join(sources), text_field, heldout_fraction, tokenizer, vocab_size,
            root or repo.local() / "data", now.at, workers=workers,
        )  # fmt: skip
        index = read_index(directory)
    result = {
        "directory": str(directory),
        "digest": index.digest,
        "documents": sum(split.documents for split in index.splits.values()),
        "tokens": sum(split.tokens for split in index.splits.values()),
    }
    shown = repo.shown(directory)
    line = f"{shown}: {result['documents']:,} documents, {result['tokens']:,} tokens"
    output.answer(result, [line, f"  digest {index.digest}", f"  next: yard data inspect {shown}"], as_json)
