"""Prepare text as token shards, look into them, check them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict

if TYPE_CHECKING:
    from training.data.inspection import Report, SplitReport

EPILOG = """\b
Examples:
  yard data prepare python-stdlib --vocab-size 4096
  yard data prepare "corpus/*.jsonl.gz" --tokenizer models/llama/tokenizer.json --vocab-size 128256
  yard data prepare "https://host/part-{00..07}.parquet" --workers 8
  yard data inspect
  yard data verify local/data/python-stdlib-0123456789ab"""
WIDTH = 40  # characters of the longest bar


@click.group(name="data", epilog=EPILOG)
def command() -> None:
    """A dataset is a directory of token shards with its tokenizer and an index of digests."""


@command.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--text-field", default="text", show_default=True, help="The field of JSONL and Parquet rows.")
@click.option("--heldout-fraction", default=0.02, show_default=True, help="Share of documents held out.")
@click.option(
    "--tokenizer",
    default="train",
    show_default=True,
    help="train, a directory, a tokenizer.json, or ORG/NAME@COMMIT.",
)
@click.option("--vocab-size", default=4096, show_default=True, help="The model's vocab_size.")
@click.option("--root", type=click.Path(path_type=Path), help="Where datasets lie.  [default: local/data]")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: as many as processors]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prepare(
    sources: tuple[str, ...],
    text_field: str,
    heldout_fraction: float,
    tokenizer: str,
    vocab_size: int,
    root: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Make a dataset, or find the one that these sources and settings made before.

    SOURCE is python-stdlib, a file, a directory, a glob, a URL with ranges like {00..07}, or
    hf://datasets/<organisation>/<name>@<commit>[/<pattern>]. What was killed goes on where it was.
    """
    from training.data.index import read_index
    from training.data.prepare import prepare as make

    with _data_errors():
        directory = make(
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


@command.command()
@click.argument("datasets", nargs=-1, metavar="[DATASET...]", type=click.Path(path_type=Path))
@click.option("--sequence-length", type=click.IntRange(1), help="Tokens of a sample.  [default: 1024]")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def inspect(datasets: tuple[Path, ...], sequence_length: int | None, as_json: bool) -> None:
    """Print documents, tokens, lengths and packing waste; without DATASET of all under local/data."""
    from training.data.inspection import inspect as look

    with _data_errors():
        reports = [(path, look(path, sequence_length)) for path in _chosen(datasets)]
    if as_json:
        output.data([_as_data(path, report) for path, report in reports])
        return
    for path, report in reports:
        _show(path, report)


@command.command()
@click.argument("datasets", nargs=-1, metavar="[DATASET...]", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def verify(datasets: tuple[Path, ...], as_json: bool) -> None:
    """Check every file's size and digest; without DATASET of all under local/data.

    Exit codes: 0 all are whole, 1 one is damaged.
    """
    verdicts = [_verdict(path) for path in _chosen(datasets)]
    if as_json:
        output.data([verdict.as_dict() for verdict in verdicts])
    else:
        for verdict in verdicts:
            output.verdict(verdict)
    if any(verdict.state is State.FAIL for verdict in verdicts):
        raise click.exceptions.Exit(State.FAIL.exit_code)


def _verdict(path: Path) -> Verdict:
    from training.data.errors import DataError
    from training.data.index import verify as check

    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if size > 1 << 30:
        output.note(f"reading {size / 1e9:,.1f} GB of {repo.shown(path)}")
    details: dict[str, Any] = {"directory": str(path)}
    try:
        index = check(path)
    except DataError as error:
        remedy = f"remove {repo.shown(path)} and prepare it again"
        return Verdict(State.FAIL, f"{repo.shown(path)} is damaged", [str(error)], remedy, details)
    whole = f"{output.count(len(index.files), 'file')}, digest {index.digest}"
    return Verdict(
        State.PASS, f"{repo.shown(path)} is whole", [whole], details={**details, "digest": index.digest}
    )


def _chosen(datasets: tuple[Path, ...]) -> list[Path]:
    """Return the datasets that are named, or all that lie under local/data; UserError when there is none."""
    root = repo.local() / "data"
    known = sorted(path.parent for path in root.glob("[!.]*/index.json"))
    if not datasets:
        if not known:
            raise UserError(
                f"there is no dataset under {repo.shown(root)} yet", "yard data prepare python-stdlib"
            )
        return known
    return [_found(path, root, known) for path in datasets]


def _found(path: Path, root: Path, known: list[Path]) -> Path:
    for candidate in (path, root / path):
        if candidate.is_dir():
            if not (candidate / "index.json").exists():
                raise UserError(f"{path} is no dataset: it has no index.json")
            return candidate
    match = repo.nearest(path.name, [one.name for one in known])
    raise UserError(f"no such dataset: {path}", f"did you mean {match}?" if match else None)


@contextmanager
def _data_errors() -> Iterator[None]:
    """Turn the data package's error into the one that yard prints."""
    from training.data.errors import DataError

    try:
        yield
    except DataError as error:
        raise UserError(str(error)) from error


def _as_data(path: Path, report: Report) -> dict[str, Any]:
    return {
        "directory": str(path),
        "digest": report.index.digest,
        "settings": report.index.settings,
        "vocabulary": report.index.vocabulary,
        "sequence_length": report.sequence_length,
        "splits": {name: asdict(split) for name, split in report.splits.items()},
    }


def _show(path: Path, report: Report) -> None:
    index = report.index
    output.line(f"{repo.shown(path)}")
    output.table(
        [
            ("digest", index.digest),
            ("vocabulary", f"{index.vocabulary:,}"),
            (
                "counted",
                ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in index.source.items() if n),
            ),
        ]
    )
    for name, split in report.splits.items():
        _show_split(name, split, report.sequence_length)


def _show_split(name: str, split: SplitReport, length: int) -> None:
    output.line(f"  {name}")
    output.table(
        [
            ("documents", f"{split.documents:,}"),
            ("tokens", f"{split.tokens:,} ({split.bytes / split.tokens:.2f} bytes each)"),
            ("length", f"{split.shortest:,} to {split.longest:,}, median {split.median:,.0f}"),
            ("samples", f"{split.samples:,} of {length:,} tokens"),
            (
                "packing waste",
                f"{split.waste:.2%}; a row for each document would leave {split.padded:.1%} empty",
            ),
        ],
        indent="    ",
    )
    most = max(count for _, count in split.histogram)
    for upper, count in split.histogram:
        bar = "#" * -(-count * WIDTH // most)
        output.line(f"    {f'<= {upper:,}':>12}  {count:>10,}  {bar}".rstrip())
