"""Finds `model.weights`: a directory, a pinned revision of the hub, or a checkpoint of another run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import Manifest, committed_steps, read_manifest, step_name
from training.checkpoint.read import Checkpoint
from training.checkpoint.verify import check_contents, share_of
from training.distributed.rank_zero import while_others_wait
from training.run.directory import RunDir, read_json
from training.weights.broadcast import Broadcast
from training.weights.download import cache_directory, download, prepared
from training.weights.errors import WeightsError

Say = Callable[[str], None]
RUN = "run:"
COMMIT = "base_commit"


def pinned(weights: str) -> tuple[str, str]:
    """The repository of the hub and its revision; a directory and a run have no revision, whatever their name."""
    if weights.startswith("/") or is_run(weights):
        return weights, ""
    repository, _, revision = weights.partition("@")
    return repository, revision


def is_run(weights: str) -> bool:
    """Whether the value names another run."""
    return weights.startswith(RUN)


def locate_directory(weights: str, run: RunDir, broadcast: Broadcast, say: Say) -> Path:
    """Return the directory of published weights; one process of each node downloads those of the hub.

    What was downloaded for all runs is used. Else rank 0 downloads first, so that the other nodes find
    everything in the run's directory. A branch or tag means the commit that it named when the run began, also
    when the run continues.

    Raises:
        WeightsError, CheckpointError: see `download`; or there is no such directory.
    """
    if weights.startswith("/"):
        directory = Path(weights)
        if not directory.is_dir():
            trouble = "is not a directory" if directory.exists() else "does not exist"
            raise WeightsError(f"model.weights: {directory} {trouble}")
        return directory
    repository, named = pinned(weights)
    revision = _commit_begun_with(repository, run) or named
    if (ready := prepared(repository, revision)) is not None:
        return ready
    cache = cache_directory(run.path)
    fetched: list[Path] = []

    def fetch() -> None:
        fetched.append(download(repository, revision, cache, say))
        if fetched[0].name != revision:
            say(f"weights {weights}: {revision} is commit {fetched[0].name}")

    if broadcast.ranks is None:
        fetch()
        return fetched[0]
    for leader in (broadcast.ranks.first, broadcast.ranks.local_rank == 0):
        while_others_wait(broadcast.ranks, fetch if leader else None)
    return fetched[0] if fetched else download(repository, revision, cache, say, offline=True)


def commit_of(weights: str, directory: Path) -> dict[str, str]:
    """For run.json: `base_commit`, the repository and commit of weights from the hub; empty for others."""
    if weights.startswith("/"):
        return {}
    return {COMMIT: f"{pinned(weights)[0]}@{directory.name}"}  # the library names snapshots by commit


def _commit_begun_with(repository: str, run: RunDir) -> str | None:
    """The commit of this repository that the run began with, None before it has begun."""
    begun = read_json(run.run).get(COMMIT, "") if run.run.exists() else ""
    name, _, commit = begun.partition("@")
    return commit if name == repository else None


def open_run(weights: str, run: RunDir, step: int | None, broadcast: Broadcast, say: Say) -> Checkpoint:
    """Open another run's newest checkpoint that verifies, or that of `step`, which this run began with.

    Each file is hashed by one rank.

    Raises:
        WeightsError: there is no such run, it has no checkpoint yet, or `step` is gone.
        CheckpointError: no checkpoint verifies.
    """
    name = weights.removeprefix(RUN)
    other = run.other(name)
    steps: list[int] = broadcast.first(lambda: committed_steps(other.checkpoints))
    if not steps:
        raise WeightsError(f"model.weights: {other.path} {_nothing(other)}")
    if step is not None and step not in steps:
        raise WeightsError(
            f"model.weights: this run began with step {step} of {name}, which is gone (newest: {steps[-1]}). "
            "Start from scratch with --fresh or another name"
        )
    troubles = []
    for each in reversed(steps) if step is None else [step]:
        directory = other.checkpoints / step_name(each)
        manifests: list[Manifest] = []
        reports = broadcast.gather(partial(_verified, directory, name, manifests, broadcast))
        found = [report["problem"] for report in reports if report["problem"]]
        if not found and len({report["attempt"] for report in reports}) == 1:
            return Checkpoint(directory, manifests[0])
        troubles.append(f"step {each}: {found[0] if found else 'the ranks read different manifests'}")
        say(f"weights {weights}: {troubles[-1]}")
    raise CheckpointError(f"{other.checkpoints}: every checkpoint is refused: {troubles[0]}")


def _verified(directory: Path, run: str, into: list[Manifest], broadcast: Broadcast) -> dict[str, Any]:
    """Verify this rank's share of the files; return the problem, if any, and the attempt that wrote it."""
    try:
        manifest = read_manifest(directory, run)
        check_contents(directory, manifest, share_of(manifest, broadcast.rank, broadcast.size))
    except CheckpointError as error:
        return {"problem": str(error), "attempt": None}
    into.append(manifest)
    return {"problem": None, "attempt": manifest.attempt}


def _nothing(other: RunDir) -> str:
    if not other.path.is_dir():
        beside = sorted(path.name for path in other.path.parent.glob("*") if (path / "run.json").exists())
        return "does not exist; train it first" + (f" (runs there: {', '.join(beside[:5])})" if beside else "")
    return "has no checkpoint yet; train it first"
