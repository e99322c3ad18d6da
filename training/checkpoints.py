"""The checkpoints of a run, in its directory or in a bucket, as JSON.

`python -m training.checkpoints list|show|verify|superseded|prune|quarantine|copy --run DIR|s3://bucket/prefix`

`list` and `show` check manifests and sizes; `verify` hashes every byte. `superseded` names what the keep rules
do not keep. Only `prune`, which deletes the named steps, `quarantine` and `copy` change anything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Required

from typing_extensions import TypedDict  # pydantic cannot check typing's before Python 3.12

from training.checkpoint import dcp
from training.checkpoint.attempt import point_latest
from training.checkpoint.errors import CheckpointError, UnreachableError, UnusableError, naming
from training.checkpoint.header import INDEX, LARGEST_INDEX, SINGLE, Entry, read_header
from training.checkpoint.keep import DEFAULT, KEYS, Rules, superseded
from training.checkpoint.layout import LATEST, MANIFEST, Outline, Tensor, step_name, step_of
from training.checkpoint.tier import Directory, Tier
from training.run import signing
from training.run.directory import RunDir, read_json
from training.run.files import open_regular, read_bounded

Result = dict[str, Any]


class Listing(TypedDict):
    """The answer of `list` and `verify`: every step with its figures, or its `problem`; why `others` are not steps."""

    run: str
    checkpoints: list[Row]
    others: dict[str, str]


class Row(TypedDict, total=False):
    """One step; without figures if its manifest cannot be read. `unread` is a problem of this process only."""

    step: Required[int]
    directory: Required[str]
    problem: Required[str | None]
    unread: bool
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


class Copied(TypedDict):
    """The answer of `copy`: the step, where it is now, and whether it was not there before."""

    run: str
    to: str
    step: int
    nbytes: int
    new: bool


def listed(tier: Tier) -> Listing:
    """Every committed step, ascending, with what is known without hashing; and the refused steps."""
    steps = _each(tier, lambda step: _about(tier, step), _steps(tier))
    return {"run": tier.place, "checkpoints": steps, "others": tier.others()}


def _each(tier: Tier, work: Callable[[int], Row], steps: list[int]) -> list[Row]:
    if tier.at_once == 1:
        return [work(step) for step in steps]
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and not needed for a directory

    with ThreadPoolExecutor(tier.at_once) as pool:
        return list(pool.map(work, steps))


def superseded_of(tier: Tier, given: dict[str, float]) -> Superseded:
    """What the rules do not keep: those of the run's configuration, with the `given` ones in their place."""
    try:
        rules = Rules(**{**asdict(DEFAULT), **_own_rules(tier), **given})
    except CheckpointError as error:
        raise CheckpointError(f"{tier.place}: the run's own rules: {error}; an option replaces it") from None
    rows = listed(tier)["checkpoints"]
    names = superseded(tier, [row["step"] for row in rows if row["problem"] is None], rules)
    kept = [row["step"] for row in rows if step_name(row["step"]) not in names]
    size = sum(tier.nbytes(name) for name in names)
    return {"run": tier.place, "rules": asdict(rules), "names": names, "nbytes": size, "kept": kept}


def _own_rules(tier: Tier) -> dict[str, float]:
    """The rules of the run's own configuration; a script's run has none."""
    try:
        if isinstance(tier, Directory):
            recorded = read_json(tier.path.parent / "run.json")["config"]["checkpoint"]
        else:
            newest = tier.sealed(tier.steps()[-1]).manifest()
            recorded = newest.meta["config"]["checkpoint"]["tiers"]["s3"]
        return {name: recorded[key] for name, key in KEYS.items() if key in recorded}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, CheckpointError):
        return {}


_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # of torch.save


def prune(tier: Tier, given: dict[str, float], names: list[str]) -> Superseded:
    """Delete the named steps.

    Raises:
        CheckpointError: the rules keep one of them now; nothing is deleted.
    """
    found = superseded_of(tier, given)
    for name in names:
        if name not in found["names"]:
            raise CheckpointError(f"{tier.place}: {name[:80]} is to be kept or is gone; nothing was deleted")
    for name in names:
        tier.delete(name)
    return {**found, "names": names}


def set_aside(tier: Tier, step: int, *, now: bool) -> Quarantine:
    """Move a step aside, so that no run loads it; without `now` only tell what would be left."""
    chosen(tier, step)
    left = [row["step"] for row in listed(tier)["checkpoints"] if row["problem"] is None and row["step"] != step]
    name = tier.quarantine(step) if now else None
    if now and isinstance(tier, Directory):
        if left:
            point_latest(tier.path, left[-1], f"{os.getpid():x}")
        else:
            (tier.path / LATEST).unlink(missing_ok=True)
    return {"run": tier.place, "step": step, "name": name, "newest": left[-1] if left else None}


def tier_at(where: str | Path) -> Tier:
    """The checkpoints of a run directory, or of a run below `s3://bucket/prefix`."""
    if str(where).startswith("s3://"):
        from training.checkpoint.s3 import Bucket  # not needed for a directory

        return Bucket(str(where))
    if step_of(Path(where).name) is not None:
        raise MissingError(f"{where}: is one step of a run; name the run, with --step")
    path = RunDir(where).checkpoints
    path = Path(where) if Path(where).name == path.name and not path.exists() else path
    try:
        os.scandir(path).close()
    except OSError as error:
        lost = isinstance(error, FileNotFoundError)
        if os.path.islink(path) or not lost:
            reason = "a link to nothing" if lost else os.strerror(error.errno or 0)
            raise UnusableError(f"{path}: {reason}") from error
    return Directory(path)


def copied(tier: Tier, to: Tier, step: int | None) -> Copied:
    """Copy the newest step, or `step`, to another place, whole or not at all."""
    from training.checkpoint.copy import copy  # not needed for the other questions

    newest = chosen(tier, step)[-1]
    new = copy(tier, to, newest)
    size = to.sealed(newest).outline().nbytes
    return {"run": tier.place, "to": to.where(newest), "step": newest, "nbytes": size, "new": new}


def published(directory: Path) -> Result | None:
    """The tensors of weights that another trainer wrote: safetensors or DCP; None for a directory without."""
    if (directory / dcp.METADATA).exists():
        index = dcp.read_index(directory)
        return {"directory": str(directory), "kind": "DCP", "tensors": {name: _kind(index[name]) for name in index}}
    if (directory / MANIFEST).exists():
        return None
    places = _index(directory)
    files = [directory / name for name in sorted(set(places.values()))]
    files = files or sorted(directory.glob(SINGLE)) or sorted(directory.glob("*.safetensors"))
    if not files:
        pickled = next((path.name for path in sorted(directory.iterdir()) if path.suffix in _PICKLES), None)
        if pickled is not None:
            raise CheckpointError(f"{directory}: {pickled} is a pickle, which is not read; save safetensors instead")
        return None
    tensors: dict[str, TensorKind] = {}
    for path in files:
        with naming(path), open_regular(path, follow=True) as file:
            entries = read_header(path, file)
        entries = {name: entry for name, entry in entries.items() if places.get(name, path.name) == path.name}
        if twice := sorted(tensors.keys() & entries.keys()):
            raise CheckpointError(f"{directory}: {path.name} has {twice[0][:80]}, which another file has too")
        tensors |= {name: _kind(entry) for name, entry in entries.items()}
    return {"directory": str(directory), "kind": "safetensors", "tensors": tensors}


def _index(directory: Path) -> dict[str, str]:
    """The file of each tensor by the index of published weights, empty without one: other files are copies."""
    path = directory / INDEX
    if not path.exists():
        return {}
    with naming(path):
        data = read_bounded(path, LARGEST_INDEX, follow=True)
    try:
        places = json.loads(data)["weight_map"]
        return {str(name): Path(file).name for name, file in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{path}: has no weight_map") from None


def _kind(tensor: Entry | dcp.Tensor | Tensor) -> TensorKind:
    return {"dtype": tensor.dtype, "shape": list(tensor.shape)}


def shown(tier: Tier, step: int | None) -> Shown:
    """The manifest of the newest step, or of `step`: its metadata, tensors and files.

    Raises:
        CheckpointError: there is no such step, or its manifest or a size is wrong.
    """
    manifest = tier.sealed(chosen(tier, step)[-1]).manifest()
    tier.check_sizes(manifest)
    tensors = {name: _kind(tensor) for name, tensor in manifest.tensors.items()}
    files = {name: asdict(stored) for name, stored in manifest.files.items()}
    return {
        **_counted(tier, manifest),
        "meta": manifest.meta,
        "state": manifest.run_state,
        "tensors": tensors,
        "files": files,
    }


def verified(tier: Tier, step: int | None) -> Listing:
    """Every step, or `step`, with every byte hashed; `problem` names the wrong file, if any."""
    checked = []
    for each in chosen(tier, step):
        about = _about(tier, each)
        about["signed_by"] = None
        if about["problem"] is None:
            try:
                found = tier.sealed(each)
                tier.check_contents(found.manifest())
                about["signed_by"] = found.signer(keys) if (keys := signing.keys()) else None
            except CheckpointError as error:
                _with(about, error)
        checked.append(about)
    return {"run": tier.place, "checkpoints": checked, "others": {}}


class MissingError(CheckpointError):
    """A step that does not exist."""


def _steps(tier: Tier) -> list[int]:
    """The committed steps; MissingError with the names of the runs below, if this is not the place of one."""
    steps = tier.steps()
    if not steps and (below := tier.runs()):
        names = ", ".join(name[:80] for name in below[:10])
        raise MissingError(f"{tier.place}: has no checkpoint itself, but runs; add one of {names}")
    if isinstance(tier, Directory) and not tier.path.exists() and not (tier.path.parent / "run.json").exists():
        _refuse_others(tier.path.parent)
    return steps


def _refuse_others(place: Path) -> None:
    """Raise MissingError with the weights of other trainers in a directory, or in those directly below it."""
    kinds = ("*.safetensors", dcp.METADATA, *(f"*{end}" for end in _PICKLES))
    found = {path.parent for kind in kinds for below in (kind, f"*/{kind}") for path in place.glob(below)}
    if place in found:
        raise MissingError(f"{place}: has weights of another trainer; `yard checkpoint show` and `diff` read them")
    if found:
        names = ", ".join(sorted(path.name[:80] for path in found)[:10])
        raise MissingError(
            f"{place}: has no checkpoint itself, but weights of another trainer in {names}; `yard checkpoint show` and "
            "`diff` read one of them"
        )


def chosen(tier: Tier, step: int | None) -> list[int]:
    """The committed steps, or only `step`; MissingError without it."""
    steps = _steps(tier)
    if not steps:
        raise MissingError(f"{tier.place}: no committed checkpoint yet")
    if step is not None and step not in steps:
        newest = ", ".join(map(str, steps[-10:]))
        raise MissingError(f"{tier.place}: has no step {step}; steps: {newest}")
    return steps if step is None else [step]


def _about(tier: Tier, step: int) -> Row:
    """Step, writers, files and bytes from the manifest, and the problem with sizes, if any."""
    try:
        manifest = tier.sealed(step).outline()
    except CheckpointError as error:
        return _with({"step": step, "directory": tier.where(step), "problem": None}, error)
    try:
        tier.check_sizes(manifest)
    except CheckpointError as error:
        return _with(_counted(tier, manifest), error)
    return _counted(tier, manifest)


def _with(row: Row, error: CheckpointError) -> Row:
    """A step's row with its problem."""
    unread = isinstance(error.__cause__, PermissionError) or error.transient or isinstance(error, UnreachableError)
    row["problem"], row["unread"] = str(error), unread
    return row


def _counted(tier: Tier, manifest: Outline) -> Row:
    counters = manifest.run_state.get("counters")
    counted = counters.get("tokens") if isinstance(counters, dict) else None
    return {
        "step": manifest.step,
        "directory": tier.where(manifest.step),
        "ranks": manifest.world_size,
        "tokens": counted if isinstance(counted, int) else None,
        "file_count": len(manifest.files),
        "nbytes": manifest.nbytes,
        "problem": None,
    }


def answer(
    what: str,
    where: str | Path,
    step: int | None = None,
    names: Iterable[str] = (),
    given: dict[str, float] | None = None,
    *,
    to: str = "",
    now: bool = False,
) -> Any:
    """The answer to one question about a run, at a directory or an address of S3.

    Raises CheckpointError or SigningError.
    """
    tier = tier_at(where)
    if what == "list":
        return listed(tier)
    if what == "show":
        return shown(tier, step)
    if what == "verify":
        return verified(tier, step)
    if what == "superseded":
        return superseded_of(tier, given or {})
    if what == "prune":
        return prune(tier, given or {}, list(names))
    if what == "copy":
        return copied(tier, tier_at(to), step)
    if step is None:
        raise CheckpointError("quarantine needs a step")
    return set_aside(tier, step, now=now)


def code_of(error: Exception) -> int:
    """The exit code of a command with this error: 1 a damaged checkpoint, 2 a wrong question, 3 no answer."""
    return 1 if type(error) is CheckpointError else 3 if isinstance(error, UnreachableError) else 2


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: the result as JSON; exit 2 with `error` and the command's exit `code` if there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("list", "show", "verify", "superseded", "prune", "quarantine", "copy"))
    parser.add_argument("--run", required=True, help="run directory, or s3://bucket/prefix")
    parser.add_argument("--to", default="", help="with copy: run directory, or s3://bucket/prefix")
    parser.add_argument("--step", type=int, help="one step only")
    parser.add_argument("--name", action="append", default=[], help="with prune: a directory to delete")
    parser.add_argument("--rule", action="append", default=[], help="NAME=NUMBER in place of the run's own rule")
    parser.add_argument("--now", action="store_true", help="with quarantine: do it")
    given = parser.parse_args(None if arguments is None else list(arguments))
    try:
        rules = {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.rule)}
        result = answer(given.what, given.run, given.step, given.name, rules, to=given.to, now=given.now)
    except (CheckpointError, signing.SigningError) as error:
        print(json.dumps({"error": str(error), "code": code_of(error)}))
        sys.exit(2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
