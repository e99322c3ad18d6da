"""Print documents, tokens, lengths and packing waste of datasets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.cli.data._datasets import chosen, data_errors
from tools.core import output, repo

if TYPE_CHECKING:
    from training.data.inspection import Report, SplitReport

WIDTH = 40  # characters of the longest bar


def command(datasets: tuple[Path, ...], sequence_length: int | None, as_json: bool) -> None:
    from training.data.inspection import inspect

    with data_errors():
        reports = [(path, inspect(path, sequence_length)) for path in chosen(datasets)]
    if as_json:
        output.data([_as_data(path, report) for path, report in reports])
        return
    for path, report in reports:
        _show(path, report)


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
    counted = ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in index.source.items() if n)
    rows = [("digest", index.digest), ("vocabulary", f"{index.vocabulary:,}"), ("counted", counted)]
    output.line(f"{repo.shown(path)}")
    output.table(rows)
    for name, split in report.splits.items():
        _show_split(name, split, report.sequence_length)


def _show_split(name: str, split: SplitReport, length: int) -> None:
    rows = [
        ("documents", f"{split.documents:,}"),
        ("tokens", f"{split.tokens:,} ({split.bytes / split.tokens:.2f} bytes each)"),
        ("length", f"{split.shortest:,} to {split.longest:,}, median {split.median:,.0f}"),
        ("samples", f"{split.samples:,} of {length:,} tokens"),
        ("packing waste", f"{split.waste:.2%}; a row for each document would leave {split.padded:.1%} empty"),
    ]
    output.line(f"  {name}")
    output.table(rows, indent="    ")
    most = max(count for _, count in split.histogram)
    for upper, count in split.histogram:
        bar = "#" * -(-count * WIDTH // most)
        output.line(f"    {f'<= {upper:,}':>12}  {count:>10,}  {bar}".rstrip())
