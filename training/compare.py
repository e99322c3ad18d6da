"""How two checkpoints differ, as JSON: `python -m training.compare A B`.

A and B are directories: a step of a run, published safetensors, or a DCP directory of another trainer. Or they
are `s3://bucket/prefix/run`, with @STEP if it is not the newest. Every tensor of both is read, some MiB at a time.
Of a run's step and the weights of another trainer only the model is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from training.checkpoint.copy import fetched
from training.checkpoint.dcp import METADATA
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import MANIFEST, rows_of
from training.checkpoint.read import Checkpoint, open_checkpoint
from training.run.directory import flat
from training.run.signing import SigningError
from training.weights.dcp import DcpTensors
from training.weights.errors import WeightsError
from training.weights.tensors import CheckpointTensors, Kind, SafetensorsDirectory, Tensors, chunks

FACTS = ("config", "versions", "dataset", "world_size", "sharding", "precision")


class _Whole:
    """All tensors of a run's step, with the optimizer's."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self.place = checkpoint, str(checkpoint.directory)
        self.kinds = {name: Kind(stored.dtype, stored.shape) for name, stored in checkpoint.tensors.items()}

    def read(self, name: str, row: int, out: torch.Tensor) -> None:
        self._checkpoint.read(name, row, out)


def compared(a: Path, b: Path) -> dict[str, Any]:
    """The differences of two directories: tensors, and what their manifests record.

    Raises:
        CheckpointError, WeightsError: one of them is damaged, or is not a checkpoint.
    """
    own = [open_checkpoint(path) if (path / MANIFEST).exists() else None for path in (a, b)]
    both = None not in own
    left, right = (_tensors(path, found, both) for path, found in zip((a, b), own, strict=True))
    common = sorted(left.kinds.keys() & right.kinds.keys())
    rows = [_row(name, left, right) for name in common]
    records = [{} if found is None else _record(found) for found in own]
    return {
        "a": str(a),
        "b": str(b),
        "only_in_a": sorted(left.kinds.keys() - right.kinds.keys()),
        "only_in_b": sorted(right.kinds.keys() - left.kinds.keys()),
        "equal": sum(row is None for row in rows),
        "different": [row for row in rows if row is not None],
        "nbytes": [sum(kind.nbytes for kind in side.kinds.values()) for side in (left, right)],
        "recorded": _changes(*records) if both else {},
    }


def _tensors(path: Path, found: Checkpoint | None, whole: bool) -> Tensors:
    if found is not None:
        return _Whole(found) if whole else CheckpointTensors(found)
    return DcpTensors(path) if (path / METADATA).exists() else SafetensorsDirectory(path)


def _record(found: Checkpoint) -> dict[str, Any]:
    """What the manifest records of the run, and its state: the data position among it."""
    return flat({**{key: found.meta.get(key) for key in FACTS}, "step": found.step, "state": found.run_state})


def _changes(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: [a.get(key), b.get(key)] for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def _row(name: str, left: Tensors, right: Tensors) -> dict[str, Any] | None:
    """How one tensor differs, None if all its bytes are equal."""
    a, b = left.kinds[name], right.kinds[name]
    row = {"name": name, "a": [a.dtype, list(a.shape)], "b": [b.dtype, list(b.shape)]}
    if a.shape != b.shape:
        return {**row, "largest": None, "changed": None, "not_finite": None}
    largest, changed, not_finite = 0.0, 0, 0
    parts = (chunks(side, name, 0, rows_of(a.shape)) for side in (left, right))
    for one, other in _alike(*parts):
        x, y = one.double(), other.double()
        equal = (x == y) | (x.isnan() & y.isnan())
        change = torch.where(equal, 0.0, (x - y).abs())
        finite = change[change.isfinite()]
        largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
        changed += int((~equal).sum())
        not_finite += int((~(x.isfinite() & y.isfinite())).sum())
    if not changed and a == b:
        return None
    return {**row, "largest": largest, "changed": changed, "not_finite": not_finite}


def _alike(a: Iterable[tuple[int, torch.Tensor]], b: Iterable[tuple[int, torch.Tensor]]) -> Iterable[Any]:
    """Pairs of the same rows; tensors of different dtypes come in pieces of different lengths."""
    one, other = iter(a), iter(b)
    x, y = torch.empty(0), torch.empty(0)
    while True:
        if not x.numel():
            x = next(one, (0, x))[1].reshape(-1)
        if not y.numel():
            y = next(other, (0, y))[1].reshape(-1)
        size = min(x.numel(), y.numel())
        if not size:
            return
        yield x[:size], y[:size]
        x, y = x[size:], y[size:]


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: the result as JSON; exit 2 with one line on standard error on failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("a")
    parser.add_argument("b")
    given = parser.parse_args(None if arguments is None else list(arguments))
    try:
        with ExitStack() as held:
            found = compared(_here(given.a, held), _here(given.b, held))
    except (CheckpointError, WeightsError, SigningError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps({**found, "a": given.a, "b": given.b}))


def _here(place: str, held: ExitStack) -> Path:
    """The directory of a checkpoint; that of a bucket is fetched, and kept while `held` is open."""
    if not place.startswith("s3://"):
        return Path(place)
    address, at, step = place.partition("@")
    run = held.enter_context(fetched(address, int(step) if at else None))
    (directory,) = (run / "checkpoints").glob("step-*[0-9]")
    return directory


if __name__ == "__main__":
    main()
