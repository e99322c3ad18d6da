"""The checkpoints of one run: committed by all ranks together, verified before use, pruned."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist

from training.checkpoint.attempt import Log, clean_up, discard, point_latest, quarantine
from training.checkpoint.disk import file_digest, free_bytes, sync_directory
from training.checkpoint.errors import CheckpointError, ForeignError, naming
from training.checkpoint.keep import DEFAULT, Rules, superseded
from training.checkpoint.layout import MANIFEST, Manifest, Read, Sealed, json_bytes, read_manifest, sealed, step_name
from training.checkpoint.peers import Peers
from training.checkpoint.read import Checkpoint
from training.checkpoint.tier import Directory
from training.checkpoint.verify import check_contents, check_sizes, share_of, with_retries
from training.checkpoint.write import Save, Snapshot
from training.run import signing

_warn = logging.getLogger(__name__).warning

SEEN_WITHIN_S = 60.0  # acdirmax of nfs(5): a client may know so long an old list of names
_TOLD_FROM = 1 << 30  # bytes whose verification takes long enough to announce


class Store:
    """The checkpoint store of one run directory. All methods except `steps` are collective over the ranks.

    On rank 0 `log` gets a line for each event that a person should know about: quarantine, clean-up, a LATEST
    that could not be written. `group` is a CPU process group; without it gloo over all ranks, or one rank.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: Rules = DEFAULT,
        group: dist.ProcessGroup | None = None,
        log: Log = _warn,
    ) -> None:
        self.directory = directory
        self.tier = Directory(directory)
        self._run = self.tier.run
        signing.keys()  # an unusable key file ends the run here
        self._keep, self._log = keep, log
        self.peers = Peers(group)
        self._refused: set[int] = set()
        self.current: int | None = None
        """The step whose state the ranks hold, if this store has committed or loaded it and none was loaded since."""
        self._attempt = ""  # that committed it (rank 0)
        self.held: set[int] = set()
        """Steps that are not pruned, because they are being copied (rank 0)."""
        self.peers.agree(lambda: None, lambda _: self._prepare())

    def steps(self) -> list[int]:
        """Committed steps, ascending, as this rank sees them; not verified."""
        return self.tier.steps()

    def holds(self, step: int) -> str | None:
        """The digest of the manifest of `step`, if it is `current` and still whole; else None, and `save` writes it."""
        if self.current != step:
            return None
        found: str | None = self.peers.agree(lambda: None, lambda _: self._still_there(step))
        return found

    def save(self, given: Snapshot, *, finite: bool = False) -> bool:
        """Commit one step and prune older ones; return whether it was written.

        A committed step is not written again. One with another run state or configuration, which another course has
        written, is set aside first. With `finite` a tensor with a value that is not finite is a failure. On failure
        every rank gets the same CheckpointError with rank, file and reason; earlier checkpoints are unchanged, and
        nothing of this one is left.
        """
        attempt = Save(self.directory, self._run, self.peers, given, log=self._log, room=self._make_room, finite=finite)
        written = attempt.run(lambda: self._is_committed(given))
        self.current = given.step
        if written and self.peers.rank == 0:
            self._attempt = attempt.identity
            self._settle(given.step, attempt.identity)
        return written

    def latest(self, check: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """The newest step that every rank can read and verify, None without one.

        Each file is hashed by one rank. A step that fails is quarantined and reported to `log`; then the next
        one is tried. A step that some ranks do not see stays where it is. `check` raises CheckpointError for a step
        that this run cannot restore. With a signing key, a step that is not signed as one of this run fails as
        well, but it stays where it is, because the key may be the wrong one.

        Raises:
            CheckpointError: the only steps are unsigned ones; a start from scratch would hide them.
        """
        self.current, self._attempt = None, ""
        steps: list[int] = self.peers.agree(lambda: None, lambda _: self.steps())
        foreign = 0
        for step in reversed(steps):
            found: list[Manifest] = []
            verdict = self.peers.agree(partial(self._inspect, step, found, check), self._evaluate)
            if verdict == "good":
                self.current, self._attempt = step, found[0].attempt
                return Checkpoint(self.directory / step_name(step), found[0])
            foreign += verdict == "foreign"
        if foreign:
            raise CheckpointError(
                f"{self.directory}: no checkpoint is signed with this job's key for run {self._run} "
                f"({foreign} are refused). Give the key that signed them, or start from scratch with --fresh "
                "or another name"
            )
        return None

    def _prepare(self) -> None:
        with naming(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        try:
            with naming(self.directory):
                clean_up(self.directory, self._log)
        except CheckpointError as error:
            self._log(f"cannot remove leftovers of earlier writers: {error}")

    def _make_room(self, size: int) -> None:
        """Remove quarantined checkpoints, oldest first, until `size` bytes are free (rank 0).

        Raises:
            CheckpointError: there is too little space without them.
        """
        for name in self.tier.refused():
            if free_bytes(self.directory) >= size:
                return
            self._log(f"{name}: removed, because its space is needed")
            discard(self.directory / name)
        if (free := free_bytes(self.directory)) < size:
            raise CheckpointError(
                f"{self.directory}: {free:,} bytes are free, a checkpoint needs {size:,}; lower checkpoint.keep, "
                "keep_every or keep_best, or free space"
            )

    def _is_committed(self, given: Snapshot) -> bool:
        """Whether the step is committed already; one that is incomplete or of another course is set aside (rank 0)."""
        step = given.step
        if not os.path.lexists(self.directory / step_name(step)):
            return False
        readable = step in self.steps() and step not in self._refused
        found = self._complete(step, Sealed.manifest) if readable else None
        if found is not None:
            own = found.attempt == self._attempt
            if own or _same_course(found, given):
                sync_directory(self.directory)  # its writer may have failed before this
                if not own:
                    self._attempt = found.attempt
                    self._log(f"step {step} is there already: not written again")
                return True
            self._log(f"step {step} is there with another run state or configuration")
        self._quarantine(step)
        return False

    def _still_there(self, step: int) -> str | None:
        """The digest of a step's manifest, if the step is whole and of the attempt that this store knows (rank 0)."""
        found = self._complete(step, Sealed.outline)
        if found is None or found.attempt != self._attempt:
            return None
        sync_directory(self.directory)
        return file_digest(self.directory / step_name(step) / MANIFEST)

    def _complete(self, step: int, read: Callable[[Sealed], Read]) -> Read | None:
        """What `read` makes of the manifest of a step whose sizes are right.

        Checking digests would cost as much as the save, and parsing the tensors as much as the rest of a small save.
        """
        path = self.directory / step_name(step)
        try:
            found = read(sealed(path, self._run))
            check_sizes(path, found, found.files)
        except CheckpointError:
            return None
        return found

    def _settle(self, step: int, identity: str) -> None:
        """After the commit (rank 0): set LATEST, read the step back, prune. Failures are only logged."""
        try:
            point_latest(self.directory, step, identity)
        except CheckpointError as error:
            self._log(f"step {step} is committed, but LATEST could not be written: {error}")
        if self._complete(step, Sealed.outline) is None:
            self._log(f"step {step} is committed, but reads back wrong; nothing is pruned")
            return
        for old in self._superseded(step):
            try:
                discard(self.directory / old)
            except CheckpointError as error:
                self._log(f"{old} could not be pruned: {error}")

    def _superseded(self, step: int) -> list[str]:
        """Directories to prune by the rules, but never `step` itself, nor one that is being copied."""
        readable = [each for each in self.steps() if each not in self._refused]
        complete = [each for each in readable if self._complete(each, Sealed.outline) is not None]
        held = {step_name(each) for each in (step, *self.held)}
        return [name for name in superseded(self.tier, complete, self._keep) if name not in held]

    def _inspect(self, step: int, found: list[Manifest], check: Callable[[Checkpoint], None] | None) -> dict[str, Any]:
        """Verify this rank's share of a step's files; return step, attempt and the problem, if any."""
        path = self.directory / step_name(step)
        unseen = not _appears(path)
        try:
            manifest = with_retries(lambda: read_manifest(path, self._run))
            found.append(manifest)
            self._tell_long(manifest)
            share = share_of(manifest, self.peers.rank, self.peers.size)
            with_retries(lambda: check_contents(path, manifest, share))
            if check is not None:
                check(Checkpoint(path, manifest))
        except CheckpointError as error:
            foreign = isinstance(error, ForeignError)
            return {"step": step, "attempt": None, "problem": str(error), "foreign": foreign, "unseen": unseen}
        return {"step": step, "attempt": manifest.attempt, "problem": None, "foreign": False, "unseen": False}

    def _tell_long(self, manifest: Manifest) -> None:
        if self.peers.rank == 0 and manifest.nbytes >= _TOLD_FROM:
            self._log(f"verifying step {manifest.step}, {manifest.nbytes / (1 << 30):.1f} GiB")

    def _evaluate(self, reports: list[dict[str, Any]]) -> Literal["good", "damaged", "foreign", "unseen"]:
        """Whether all ranks found the same good checkpoint; a damaged one is quarantined (rank 0)."""
        step = reports[0]["step"]
        problems = [f"rank {rank}: {each['problem']}" for rank, each in enumerate(reports) if each["problem"]]
        if not problems and len({each["attempt"] for each in reports}) > 1:
            problems = ["the ranks read different manifests"]
        if not problems:
            return "good"
        self._refused.add(step)
        self._log(f"step {step} is refused: {'; '.join(problems)}")
        if any(each["foreign"] for each in reports):
            return "foreign"
        if not any(each["problem"] and not each["unseen"] for each in reports) and reports[0]["problem"] is None:
            self._log(f"step {step} stays where it is, because other ranks see it: do all pods mount the same volume?")
            return "unseen"
        try:
            self._quarantine(step)
        except CheckpointError as error:
            self._log(f"cannot quarantine step {step}: {error}")
        return "damaged"

    def _quarantine(self, step: int) -> None:
        moved = quarantine(self.directory / step_name(step))
        self._refused.discard(step)
        self._log(f"step {step} is kept as {moved.name}")


def _same_course(found: Manifest, given: Snapshot) -> bool:
    """Whether a step that another writer has committed has the same run state and configuration."""
    states = [json_bytes(each, "run_state") for each in (found.run_state, given.run_state)]
    return states[0] == states[1] and found.meta.get("config_digest") == given.meta.get("config_digest")


def _appears(directory: Path) -> bool:
    """Whether a directory that another rank sees is seen here; on a network file system this can take a time."""
    end = time.monotonic() + SEEN_WITHIN_S
    while not directory.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True
