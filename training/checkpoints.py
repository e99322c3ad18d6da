"""The content of a run's checkpoint directory, as JSON.

`python -m training.checkpoints list|show|verify|superseded|prune|quarantine --run DIR`

`list` and `show` check manifests and sizes; `verify` hashes every byte. `superseded` names what the keep rules
do not keep. Only `prune`, which deletes the named directories, and `quarantine` change anything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Required

from typing_extensions import TypedDict  # pydantic cannot check typing's before Python 3.12

from training.checkpoint import dcp
from training.checkpoint.attempt import discard, point_latest, quarantine
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import Entry, read_header
from training.checkpoint.keep import DEFAULT, Rules, losses_of, superseded
from training.checkpoint.layout import (
    MANIFEST,
    Outline,
    Tensor,
    committed_steps,
    manifest_bytes,
    quarantined,
    read_manifest,
    read_outline,
    signer_of,
    step_name,
    step_of,
)
from training.checkpoint.verify import check_contents, check_sizes
from training.run import signing
from training.run.directory import RunDir, read_json
from training.run.files import open_regular

Result = dict[str, Any]


class Listing(TypedDict):
    """The answer of `list` and `verify`: every step with its figures, or its `problem`."""

    run: str
    checkpoints: list[Row]
    refused: list[str]


class Row(TypedDict, total=False):
    """One step; without figures if its manifest cannot be read."""

    step: Required[int]
    directory: Required[str]
    problem: Required[str | None]
    ranks: int
    tokens: int | None
    file_count: int
    nbytes: int
    signed_by: str | None


class TensorKind(TypedDict):
    dtype: str
    shape: list[int]


class Shown(Row):
    """The answer of `show`: the manifest of one step."""

    meta: dict[str, Any]
    state: dict[str, Any]
    tensors: dict[str, TensorKind]
    files: dict[str, dict[str, Any]]


class Superseded(TypedDict):
    """The answer of `superseded` and `prune`: directories that go, and the steps that stay."""

    run: str
    rules: dict[str, float]
    names: list[str]
    nbytes: int
    kept: list[int]


class Quarantine(TypedDict):
    """The answer of `quarantine`: the step, its new name, and the newest step that is left."""

    run: str
    step: int
    name: str | None
    newest: int | None


def listed(run: RunDir) -> Listing:
    """Every committed step, ascending, with what is known without hashing; and the refused steps."""
    steps = [_about(run.checkpoints / step_name(step)) for step in committed_steps(run.checkpoints)]
    return {"run": str(run.path), "checkpoints": steps, "refused": [name for name, _ in quarantined(run.checkpoints)]}


def superseded_of(run: RunDir, given: dict[str, float]) -> Superseded:
    """What the rules do not keep: those of the run's configuration, with the `given` ones in their place."""
    rules = _rules(run, given)
    rows = listed(run)["checkpoints"]
    good = [row["step"] for row in rows if row["problem"] is None]
    names = superseded(run.checkpoints, good, rules, losses_of(run))
    kept = [row["step"] for row in rows if step_name(row["step"]) not in names]
    size = sum(_bytes(run.checkpoints / name) for name in names)
    return {"run": str(run.path), "rules": asdict(rules), "names": names, "nbytes": size, "kept": kept}


def _rules(run: RunDir, given: dict[str, float]) -> Rules:
    try:
        recorded = read_json(run.run)["config"]["checkpoint"]
        own = {name: recorded[key] for name, key in _KEYS.items() if type(recorded.get(key)) in (int, float)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        own = {}  # a script's run has no configuration
    return Rules(**{**asdict(DEFAULT), **own, **given})


# Keys of the section checkpoint, by the rule that each one sets.
_KEYS = {"last": "keep", "every": "keep_every", "best": "keep_best", "bad_days": "keep_bad_days"}


def _bytes(directory: Path) -> int:
    """Bytes of the files of a directory."""
    return sum(Path(at, name).lstat().st_size for at, _, names in os.walk(directory) for name in names)


def prune(run: RunDir, given: dict[str, float], names: list[str]) -> Superseded:
    """Delete the named directories.

    Raises:
        CheckpointError: the rules keep one of them now; nothing is deleted.
    """
    found = superseded_of(run, given)
    for name in names:
        if name not in found["names"]:
            raise CheckpointError(f"{run.checkpoints}: {name[:80]} is to be kept or is gone; nothing was deleted")
    for name in names:
        discard(run.checkpoints / name)
    return {**found, "names": names}


def set_aside(run: RunDir, step: int, *, now: bool) -> Quarantine:
    """Move a step aside, so that no run loads it; without `now` only tell what would be left."""
    _chosen(run, step)
    left = [each for each in committed_steps(run.checkpoints) if each != step]
    name = quarantine(run.checkpoints / step_name(step)).name if now else None
    if now and left:
        point_latest(run.checkpoints, left[-1], f"{os.getpid():x}")
    return {"run": str(run.path), "step": step, "name": name, "newest": left[-1] if left else None}


def published(directory: Path) -> Result | None:
    """The tensors of weights that another trainer wrote: safetensors or DCP; None for a directory without."""
    if (directory / dcp.METADATA).exists():
        tensors = {name: _kind(tensor) for name, tensor in dcp.read_index(directory).items()}
        return {"directory": str(directory), "kind": "DCP", "tensors": tensors}
    files = sorted(directory.glob("*.safetensors"))
    if (directory / MANIFEST).exists() or not files:
        return None
    tensors = {}
    for path in files:
        with naming(path), open_regular(path, follow=True) as file:
            entries = read_header(path, file)
        tensors |= {name: _kind(entry) for name, entry in entries.items()}
    return {"directory": str(directory), "kind": "safetensors", "tensors": tensors}


def _kind(tensor: Entry | dcp.Tensor | Tensor) -> TensorKind:
    return {"dtype": tensor.dtype, "shape": list(tensor.shape)}


def shown(run: RunDir, step: int | None) -> Shown:
    """The manifest of the newest step, or of `step`: its metadata, tensors and files.

    Raises:
        CheckpointError: there is no such step, or its manifest or a size is wrong.
    """
    directory = run.checkpoints / step_name(_chosen(run, step)[-1])
    manifest = read_manifest(directory)
    check_sizes(directory, manifest, manifest.files)
    tensors = {name: _kind(tensor) for name, tensor in manifest.tensors.items()}
    files = {name: asdict(stored) for name, stored in manifest.files.items()}
    return {
        **_counted(directory, manifest),
        "meta": manifest.meta,
        "state": manifest.run_state,
        "tensors": tensors,
        "files": files,
    }


def verified(run: RunDir, step: int | None) -> Listing:
    """Every step, or `step`, with every byte hashed; `problem` names the wrong file, if any."""
    checked = []
    for each in _chosen(run, step):
        directory = run.checkpoints / step_name(each)
        about = _about(directory)
        if about["problem"] is None:
            about["problem"] = _problem(directory)
        about["signed_by"] = _signer(directory, run) if about["problem"] is None else None
        checked.append(about)
    return {"run": str(run.path), "checkpoints": checked, "refused": []}


class MissingError(CheckpointError):
    """A step that does not exist."""


def _chosen(run: RunDir, step: int | None) -> list[int]:
    steps = committed_steps(run.checkpoints)
    if not steps:
        raise MissingError(f"{run.checkpoints}: no committed checkpoint yet")
    if step is not None and step not in steps:
        newest = ", ".join(map(str, steps[-10:]))
        raise MissingError(f"{run.checkpoints}: has no step {step}; steps: {newest}")
    return steps if step is None else [step]


def _about(directory: Path) -> Row:
    """Step, writers, files and bytes from the manifest, and the problem with sizes, if any."""
    try:
        manifest = read_outline(directory)
    except CheckpointError as error:
        return {"step": step_of(directory.name) or 0, "directory": str(directory), "problem": str(error)}
    try:
        check_sizes(directory, manifest, sorted(manifest.files))
    except CheckpointError as error:
        return {**_counted(directory, manifest), "problem": str(error)}
    return _counted(directory, manifest)


def _counted(directory: Path, manifest: Outline) -> Row:
    counters = manifest.run_state.get("counters")
    counted = counters.get("tokens") if isinstance(counters, dict) else None
    return {
        "step": manifest.step,
        "directory": str(directory),
        "ranks": manifest.world_size,
        "tokens": counted if isinstance(counted, int) else None,
        "file_count": len(manifest.files),
        "nbytes": manifest.nbytes,
        "problem": None,
    }


def _signer(directory: Path, run: RunDir) -> str | None:
    """Id of the key that signed the manifest, None without a key to verify with."""
    keys = signing.keys()
    return signer_of(directory, run.name, manifest_bytes(directory), keys) if keys else None


def _problem(directory: Path) -> str | None:
    try:
        manifest = read_manifest(directory)
        check_contents(directory, manifest, sorted(manifest.files))
    except CheckpointError as error:
        return str(error)
    return None


def answer(
    what: str,
    run: RunDir,
    step: int | None = None,
    names: Iterable[str] = (),
    given: dict[str, float] | None = None,
    *,
    now: bool = False,
) -> Any:
    """The answer to one question about a run. Raises CheckpointError or SigningError."""
    if what == "list":
        return listed(run)
    if what == "show":
        return shown(run, step)
    if what == "verify":
        return verified(run, step)
    if what == "superseded":
        return superseded_of(run, given or {})
    if what == "prune":
        return prune(run, given or {}, list(names))
    if step is None:
        raise CheckpointError("quarantine needs a step")
    return set_aside(run, step, now=now)


def code_of(error: Exception) -> int:
    """The exit code of a command with this error: 1 for a damaged checkpoint, 2 for a wrong question."""
    return 1 if type(error) is CheckpointError else 2


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: the result as JSON; exit 2 with `error` and the command's exit `code` if there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("list", "show", "verify", "superseded", "prune", "quarantine"))
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument("--step", type=int, help="one step only")
    parser.add_argument("--name", action="append", default=[], help="with prune: a directory to delete")
    parser.add_argument("--rule", action="append", default=[], help="NAME=NUMBER in place of the run's own rule")
    parser.add_argument("--now", action="store_true", help="with quarantine: do it")
    given = parser.parse_args(None if arguments is None else list(arguments))
    try:
        rules = {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.rule)}
        result = answer(given.what, RunDir(given.run), given.step, given.name, rules, now=given.now)
    except (CheckpointError, signing.SigningError) as error:
        print(json.dumps({"error": str(error), "code": code_of(error)}))
        sys.exit(2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
