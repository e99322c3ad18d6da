"""Turn text into token shards, or find the dataset that these sources and settings made before.

SOURCE is python-stdlib, a file, a directory, a glob, a URL with ranges like {00..07}, or
hf://datasets/<organisation>/<name>@<commit>[/<pattern>]. After an interruption, the same command
continues.

\b
Example: yard data prepare "corpus/*.jsonl.gz" --vocab-size 32000
Exit codes: 0 prepared or found, 2 bad input.
"""

from pathlib import Path

import click

from tools.cli.data._datasets import data_errors
from tools.core import output, repo


@click.command(name="prepare", help=__doc__)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--text-field", default="text", show_default=True, help="The field of JSONL and Parquet rows.")
@click.option("--heldout-fraction", default=0.02, show_default=True, help="Share of documents held out.")
@click.option(
    "--tokenizer", default="train", show_default=True, help="train, a directory, a tokenizer.json, or ORG/NAME@COMMIT."
)
@click.option("--vocab-size", default=4096, show_default=True, help="The model's vocab_size.")
@click.option("--root", type=click.Path(path_type=Path), help="Where datasets are.  [default: local/data]")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one per processor]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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

    with data_errors():
        directory = prepare_tokens(
            "\n".join(sources), text_field, heldout_fraction, tokenizer, vocab_size,
            root or repo.local() / "data", output.note, workers=workers,
        )  # fmt: skip
        index = read_index(directory)
    result = {
        "directory": str(directory),
        "digest": index.digest,
        "documents": sum(split.documents for split in index.splits.values()),
        "tokens": sum(split.tokens for split in index.splits.values()),
    }
    if as_json:
        output.data(result)
        return
    output.line(f"{repo.shown(directory)}: {result['documents']:,} documents, {result['tokens']:,} tokens")
    output.line(f"  digest {index.digest}")
    output.line(f"  next: yard data inspect {repo.shown(directory)}")
