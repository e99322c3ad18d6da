"""Show what one checkpoint holds and what it was trained from."""

from __future__ import annotations

import math
from typing import Any

import click

from tools.cli.checkpoint._trainer import about, size
from tools.cli.sample import run_directory
from tools.core import output


@click.command(name="show")
@click.argument("run", required=False)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Show step N instead of the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest as JSON.")
def command(run: str | None, step: int | None, as_json: bool) -> None:
    """Show what one checkpoint holds and what it was trained from.

    \b
    Example: yard checkpoint show cpu-llama-tiny-train --step 100
    Exit codes: 0 shown, 1 the checkpoint is damaged, 2 bad input or no checkpoint.
    """
    found = about("show", run_directory(run), step)
    if as_json:
        output.data(found)
        return
    meta = found["meta"]
    trained = [tensor for name, tensor in found["tensors"].items() if name.startswith("model.")]
    rows = [
        ("step", f"{found['step']}, {size(found)}"),
        ("directory", found["directory"]),
        ("trained", f"{len(trained)} tensors, {_numbers(trained):,} numbers"),
        ("ranks", f"{found['ranks']}, {meta['sharding']}, {meta['precision']}"),
        ("dataset", f"{meta['dataset'][:12]} in {meta['dataset_directory']}"),
        ("config", meta["config_digest"][:12]),
        ("versions", ", ".join(f"{name} {version}" for name, version in meta["versions"].items())),
    ]
    if "weights" in meta:
        rows.append(("base", f"{meta['weights'][:12]} from {meta['config']['model']['weights']}"))
    output.table(rows)


def _numbers(tensors: list[dict[str, Any]]) -> int:
    return sum(math.prod(tensor["shape"]) for tensor in tensors)
