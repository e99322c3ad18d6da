"""The content of a run's checkpoint directory, as JSON.

`python -m training.checkpoints list|show|verify --run DIR`

It only reads. `list` and `show` check manifests and sizes; `verify` hashes every byte.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import (
    BAD,
    Manifest,
    committed_steps,
    manifest_bytes,
    read_manifest,
    signer_of,
    step_name,
    step_of,
)
from training.checkpoint.verify import check_contents, check_sizes
from training.run import signing
from training.run.directory import RunDir

Result = dict[str, Any]


def listed(run: RunDir) -> Result:
    """Every committed step, ascending, with what is known without hashing; and the refused steps."""
    steps = [_about(run.checkpoints / step_name(step)) for step in committed_steps(run.checkpoints)]
    names = (path.name for path in run.checkpoints.glob(f"step-*{BAD}"))
    refused = sorted(name for name in names if step_of(name.split(".", 1)[0]) is not None)
    return {"run": str(run.path), "checkpoints": steps, "refused": refused}


def shown(run: RunDir, step: int | None) -> Result:
    """The manifest of the newest step, or of `step`: its metadata, tensors and files.

    Raises:
        CheckpointError: there is no such step, or its manifest or a size is wrong.
    """
    directory = run.checkpoints / step_name(_chosen(run, step)[-1])
    manifest = read_manifest(directory)
    check_sizes(directory, manifest, manifest.files)
    tensors = {name: {"dtype": tensor.dtype, "shape": list(tensor.shape)} for name, tensor in manifest.tensors.items()}
    files = {name: asdict(stored) for name, stored in manifest.files.items()}
    return {
        **_counted(directory, manifest),
        "meta": manifest.meta,
        "state": manifest.run_state,
        "tensors": tensors,
        "files": files,
    }


def verified(run: RunDir, step: int | None) -> Result:
    """Every step, or `step`, with every byte hashed; `problem` names the wrong file, if any."""
    checked = []
    for each in _chosen(run, step):
        directory = run.checkpoints / step_name(each)
        about = _about(directory)
        if about["problem"] is None:
            about["problem"] = _problem(directory, check_contents)
        about["signed_by"] = _signer(directory, run) if about["problem"] is None else None
        checked.append(about)
    return {"run": str(run.path), "checkpoints": checked}


def _chosen(run: RunDir, step: int | None) -> list[int]:
    steps = committed_steps(run.checkpoints)
    if not steps:
        raise CheckpointError(f"{run.checkpoints}: no committed checkpoint yet")
    if step is not None and step not in steps:
        newest = ", ".join(map(str, steps[-10:]))
        raise CheckpointError(f"{run.checkpoints}: has no step {step}; steps: {newest}")
    return steps if step is None else [step]


def _about(directory: Path) -> Result:
    """Step, writers, files and bytes from the manifest, and the problem with sizes, if any."""
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return {"step": step_of(directory.name), "directory": str(directory), "problem": str(error)}
    return {**_counted(directory, manifest), "problem": _problem(directory, check_sizes)}


def _counted(directory: Path, manifest: Manifest) -> Result:
    counters = manifest.run_state.get("counters")
    counted = counters.get("tokens") if isinstance(counters, dict) else None
    return {
        "step": manifest.step,
        "directory": str(directory),
        "ranks": manifest.world_size,
        "tokens": counted if isinstance(counted, int) else None,
        "file_count": len(manifest.files),
        "nbytes": sum(stored.size for stored in manifest.files.values()),
    }


def _signer(directory: Path, run: RunDir) -> str | None:
    """Id of the key that signed the manifest, None without a key to verify with."""
    keys = signing.keys()
    return signer_of(directory, run.name, manifest_bytes(directory), keys) if keys else None


def _problem(directory: Path, check: Callable[[Path, Manifest, Iterable[str]], None]) -> str | None:
    try:
        manifest = read_manifest(directory)
        check(directory, manifest, sorted(manifest.files))
    except CheckpointError as error:
        return str(error)
    return None


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: the result as JSON; exit 2 with one line if there is no such checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("list", "show", "verify"))
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument("--step", type=int, help="one step only")
    parser.add_argument("--key", help="file with the key that signed the checkpoints")
    given = parser.parse_args(None if arguments is None else list(arguments))
    run = RunDir(given.run)
    if given.key is not None:
        os.environ[signing.KEY_FILE] = given.key
    try:
        if given.what == "list":
            result = listed(run)
        else:
            result = (shown if given.what == "show" else verified)(run, given.step)
    except (CheckpointError, signing.SigningError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
