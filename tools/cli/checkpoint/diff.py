"""Show how two checkpoints differ: tensors, configuration and data position."""

from pathlib import Path
from typing import Any

from tools.cli._runs import run_directory
from tools.cli.checkpoint._place import is_bucket
from tools.core import UserError, output
from tools.core.own_module import answer
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import MANIFEST


def command(a: str, b: str, most: int, as_json: bool) -> int:
    found = answer(["training.compare", *(str(_directory(text)) for text in (a, b))])
    different, only = found["different"], found["only_in_a"] + found["only_in_b"]
    differs = bool(different or only or found["recorded"])
    if as_json:
        output.data(found)
        return int(differs)
    for side, size in zip("ab", found["nbytes"], strict=True):
        output.line(f"{side.upper()}: {found[side]}, {output.size(size)} of tensors")
    output.line(f"tensors: {found['equal']} equal, {len(different)} different, {len(only)} in one of them only")
    output.table((row["name"], *_change(row)) for row in sorted(different, key=_order)[:most])
    for side in "ab":
        names = found[f"only_in_{side}"]
        output.table((name, f"only in {side.upper()}") for name in names[:most])
    if max(len(different), len(found["only_in_a"]), len(found["only_in_b"])) > most:
        output.line(f"  more of them: --most N, or --json; these are the first {most}")
    output.table((key, *(output.short(value) for value in pair)) for key, pair in found["recorded"].items())
    return int(differs)


def _directory(text: str) -> str | Path:
    """Return the directory that RUN, RUN@STEP or a path means, or the address of a bucket."""
    name, at, step = text.rpartition("@") if "@" in text and not Path(text).exists() else (text, "", "")
    path = Path(name).expanduser()
    if at and not step.isdecimal():
        raise UserError(f"{text}: what follows @ is not a step")
    try:
        if is_bucket(text):
            checkpoints.answer("show", name, int(step) if at else None)
            return text
        if path.is_dir() and not at and ((path / MANIFEST).exists() or checkpoints.published(path) is not None):
            return path.absolute()
        return str(checkpoints.answer("show", run_directory(name), int(step) if at else None)["directory"])
    except CheckpointError as problem:  # code 1 is for differences
        raise UserError(str(problem), code=max(2, checkpoints.code_of(problem))) from None


def _order(row: dict[str, Any]) -> tuple[bool, bool, bool, float]:
    """What comes first: the model, then other shapes, values that are not finite, and the largest change.

    The optimizer counts steps in tensors of one value, so its changes are larger than those of any weight.
    """
    largest = row["largest"]
    return row["name"].startswith("optimizer."), largest is not None, not row["not_finite"], -(largest or 0.0)


def _change(row: dict[str, Any]) -> tuple[str, str]:
    (dtype, shape), (other, shape_b) = row["a"], row["b"]
    if shape != shape_b:
        return f"{dtype} {shape}", f"B has shape {shape_b}"
    kind = dtype if dtype == other else f"{dtype} and {other}"
    bad = f", {row['not_finite']:,} not finite" if row["not_finite"] else ""
    return f"{kind} {shape}", f"{output.count(row['changed'], 'value')} changed, by at most {row['largest']:.3g}{bad}"
