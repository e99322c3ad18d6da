"""Show what one checkpoint holds and what it was trained from."""

import math
from typing import Any

from tools.cli.checkpoint._trainer import about, size
from tools.cli.sample import run_directory
from tools.core import output


def command(run: str | None, name: str | None, step: int | None, as_json: bool) -> None:
    found = about("show", run_directory(run, name), step)
    if as_json:
        output.data(found)
        return
    meta = found["meta"]
    trained = [tensor for name, tensor in found["tensors"].items() if name.startswith("model.")]
    numbers = sum(math.prod(tensor["shape"]) for tensor in trained)
    rows = [
        ("step", f"{found['step']}, {size(found)}"),
        ("directory", found["directory"]),
        ("trained", f"{len(trained)} tensors, {numbers:,} numbers"),
        ("ranks", f"{found['ranks']}, {_text(meta, 'sharding')}, {_text(meta, 'precision')}"),
        ("dataset", f"{_text(meta, 'dataset')[:12]} in {_text(meta, 'dataset_directory')}"),
        ("config", _text(meta, "config_digest")[:12]),
        ("versions", ", ".join(f"{name} {version}" for name, version in _table(meta, "versions").items())),
    ]
    if "weights" in meta:
        origin = _text(_table(_table(meta, "config"), "model"), "weights")
        rows.append(("base", f"{_text(meta, 'weights')[:12]} from {origin}"))
    output.table(rows)


def _text(meta: dict[str, Any], key: str) -> str:
    """A value as text; the manifest's metadata can hold anything."""
    return str(meta.get(key, "not recorded"))


def _table(meta: dict[str, Any], key: str) -> dict[str, Any]:
    value = meta.get(key)
    return value if isinstance(value, dict) else {}
