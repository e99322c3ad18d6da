"""Show how two checkpoints differ: tensors, configuration and data position."""

from pathlib import Path
from typing import Any

from tools.cli._runs import run_directory
from tools.cli.checkpoint._place import is_bucket
from tools.core import UserError, output
from tools.core.own_module import answer
from training.checkpoint.layout import committed_steps, step_name
from training.run.directory import RunDir


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
    ranked = sorted(different, key=lambda row: -1.0 if row["largest"] is None else row["largest"], reverse=True)
    output.table((row["name"], *_change(row)) for row in ranked[:most])
    for side in "ab":
        names = found[f"only_in_{side}"]
        output.table((name, f"only in {side.upper()}") for name in names[:most])
    if max(len(different), len(found["only_in_a"]), len(found["only_in_b"])) > most:
        output.line(f"  more of them: --most N, or --json; these are the first {most}")
    output.table((key, *(output.short(value) for value in pair)) for key, pair in found["recorded"].items())
    return int(differs)


def _directory(text: str) -> str | Path:
    """Return the directory that RUN, RUN@STEP or a path means, or the address of a bucket."""
    if is_bucket(text):
        if "@" in text and not text.partition("@")[2].isdecimal():
            raise UserError(f"{text}: what follows @ is not a step")
        return text
    name, _, step = text.rpartition("@") if "@" in text and not Path(text).exists() else (text, "", "")
    path = Path(name).expanduser()
    if path.is_dir() and not step and not (path / "checkpoints").is_dir():
        return path.absolute()
    there = RunDir(run_directory(name)).checkpoints
    steps = committed_steps(there)
    if not steps or (step and step not in map(str, steps)):
        told = f"steps: {', '.join(map(str, steps[-10:]))}" if steps else "it has no checkpoint yet"
        raise UserError(f"{text}: no such checkpoint", told)
    return there / step_name(int(step) if step else steps[-1])


def _change(row: dict[str, Any]) -> tuple[str, str]:
    (dtype, shape), (other, shape_b) = row["a"], row["b"]
    if shape != shape_b:
        return f"{dtype} {shape}", f"B has shape {shape_b}"
    kind = dtype if dtype == other else f"{dtype} and {other}"
    bad = f", {row['not_finite']:,} not finite" if row["not_finite"] else ""
    return f"{kind} {shape}", f"{output.count(row['changed'], 'value')} changed, by at most {row['largest']:.3g}{bad}"
