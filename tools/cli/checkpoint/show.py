"""Show what one checkpoint holds and what it was trained from."""

import math
from pathlib import Path
from typing import Any

from tools.cli.checkpoint._place import Place, place, size
from tools.core import UserError, output
from training import checkpoints
from training.checkpoint.errors import CheckpointError


@place
def command(place: Place, step: int | None, as_json: bool) -> None:
    found: Any = _published(place.run) or place.ask("show", kind=checkpoints.Shown, step=step)
    if as_json:
        output.data(found)
        return
    tensors = found["tensors"]
    if "kind" in found:
        output.line(f"{found['directory']}: {found['kind']}, {_numbers(tensors)}")
        output.table((name, f"{one['dtype']} {one['shape']}") for name, one in tensors.items())
        return
    meta = found["meta"]
    rows = [
        ("step", f"{found['step']}, {size(found)}"),
        ("directory", found["directory"]),
        ("trained", _numbers({name: one for name, one in tensors.items() if name.startswith("model.")})),
        ("ranks", f"{found['ranks']}, {_text(meta, 'sharding')}, {_text(meta, 'precision')}"),
        ("dataset", f"{_text(meta, 'dataset')[:12]} in {_text(meta, 'dataset_directory')}"),
        ("config", _text(meta, "config_digest")[:12]),
        ("versions", ", ".join(f"{name} {version}" for name, version in _table(meta, "versions").items())),
    ]
    if "weights" in meta:
        origin = _text(_table(_table(meta, "config"), "model"), "weights")
        rows.append(("base", f"{_text(meta, 'weights')[:12]} from {origin}"))
    output.table(rows)


def _published(run: str | None) -> dict[str, Any] | None:
    """Return the tensors of another trainer's weights, if the user names their directory."""
    directory = Path(run or "").expanduser()
    if run is None or not directory.is_dir() or (directory / "checkpoints").is_dir():
        return None
    try:
        return checkpoints.published(directory)
    except CheckpointError as problem:
        raise UserError(str(problem), code=1) from None


def _numbers(tensors: dict[str, Any]) -> str:
    return f"{len(tensors):,} tensors, {sum(math.prod(one['shape']) for one in tensors.values()):,} numbers"


def _text(meta: dict[str, Any], key: str) -> str:
    """A value as text; the manifest's metadata can hold anything."""
    return str(meta.get(key, "not recorded"))


def _table(meta: dict[str, Any], key: str) -> dict[str, Any]:
    value = meta.get(key)
    return value if isinstance(value, dict) else {}
