"""Tells whether what a configuration names on the volume is there: data, a tokenizer, weights, a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.checkpoint.dcp import METADATA
from training.data.errors import DataError, reason
from training.data.sources import open_source

KINDS = ("data", "tokenizer", "weights", "run")


def present(kind: str, value: str) -> dict[str, Any]:
    """Return `there`, whether what `value` of a configuration key names is usable, and `why` in words."""
    try:
        return {"kind": kind, "value": value, "there": True, "why": _found(kind, value)}
    except (DataError, OSError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        return {"kind": kind, "value": value, "there": False, "why": why}


def _found(kind: str, value: str) -> str:
    """Return what is there, in words. Raises DataError, OSError."""
    path = Path(value)
    if kind == "data":
        return open_source(value).describe()
    if kind == "tokenizer":
        _need(path / "tokenizer.json" if path.is_dir() else path)
        return f"{value} has a tokenizer"
    if kind == "run":
        _need(path / "checkpoints")
        return f"{value} has checkpoints"
    _need(path / "config.json")
    if (path / METADATA).exists():
        return f"{value} has a DCP checkpoint"
    count = sum(1 for _ in path.glob("*.safetensors"))
    if not count:
        raise DataError(f"{value} has no .safetensors files")
    return f"{value} has {count:,} .safetensors files"


def _need(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path} does not exist")
