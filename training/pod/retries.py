"""Whether a pod's ranks may start again after a failure, by the cell's key `retry`.

Process 1 asks after each failure of the job, whatever would start the ranks again: torchrun, or the kubelet. All pods
read the same failure records and decide alike. `<run>/retries` keeps what they decided, a file for each failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from training.pod.end_record import POD_UID
from training.pod.supervisor import Decision
from training.run import failure
from training.run.directory import RunDir, read_json, write_json
from training.run.failure import PERMANENT, Failure

if TYPE_CHECKING:
    from training.config import Retry

CONFIG = "--config"  # the option of the trainer's tasks
SETTLE_SECONDS = 1.0  # how old the newest record of a failure must be: other ranks still write theirs
CAUSE_SECONDS = 35.0  # time for the cause of what ranks saw: torchrun reports it when all ranks of its node have ended,
# for which it gives them 30 s


class Retries:
    """Decides for one pod. Without the key `retry` nothing is decided here."""

    def __init__(self, run: RunDir, words: Sequence[str]) -> None:
        self._run = run
        self._directory = _option(words)
        self._judged = time.time()  # records up to this moment belong to earlier failures
        uid = os.environ.get(POD_UID)
        self._state = Path(tempfile.gettempdir()) / f"trainyard-{uid}-failures.json" if uid else None
        self._count, self._step = self._earlier()

    def _earlier(self) -> tuple[int, int]:
        """Return what earlier containers of this pod counted: their failures, and the newest step of them."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            saved = read_json(self._state) if self._state else {}
            if type(saved["count"]) is int and type(saved["step"]) is int:
                return saved["count"], saved["step"]
        return 0, 0

    def decide(self, records: Sequence[Failure], *, ended: bool) -> Decision | None:
        """Return what follows the failure that these records show; None without a new one, or without the key.

        The command has `ended` where no more records can come.
        """
        new = [one for one in records if one.time > self._judged and one.kind != "drained"]
        if not new or not (ended or _settled(new)):
            return None
        self._judged = max(one.time for one in new)
        found, rule = failure.cause(new), self._rule()
        if found is None or rule is None or found.kind in PERMANENT:
            return None
        step = max((one.step or 0 for one in new), default=0)
        self._count += 1
        decision = Decision(self._count, rule.most, self._refusal(rule, found, step))
        self._step = max(self._step, step)
        with contextlib.suppress(OSError):
            self._keep(found, decision)
        return decision

    def _rule(self) -> Retry | None:
        """Return the key `retry`; None without it, or if the configuration cannot be read, which the ranks report."""
        if self._directory is None:
            return None
        from training.config import ConfigError, load  # only after a failure: process 1 is to stay small

        try:
            return load(self._directory).retry
        except ConfigError:
            return None

    def _refusal(self, rule: Retry, found: Failure, step: int) -> str:
        """Why the ranks do not start again, empty if they do."""
        if not rule.allows(found.kind):
            return f"retry.classes does not have {found.kind}"
        if self._count > rule.most:
            again = self._count - 1
            return f"they were started again {again} time{'s' * (again != 1)}, and retry.most is {rule.most}"
        if self._count > 1 and step <= self._step:
            return f"there was no new step since the failure before: step {step} now, step {self._step} then"
        return ""

    def _keep(self, found: Failure, decision: Decision) -> None:
        """Keep the count for the next container, and the decision for people; the first pod writes it."""
        if self._state is not None:
            write_json(self._state, {"count": self._count, "step": self._step})
        directory = self._run.path / "retries"
        directory.mkdir(parents=True, exist_ok=True)
        name = found.path.name if found.path else f"{int(found.time * 1000)}-rank-{found.rank:05d}.json"
        values = {"time": found.time, "class": found.kind, "rank": found.rank, "host": found.host, "step": found.step}
        with contextlib.suppress(FileExistsError), (directory / name).open("x", encoding="utf-8") as file:
            json.dump({**values, "message": found.message, **asdict(decision)}, file)


def _settled(new: Sequence[Failure]) -> bool:
    """Whether these records are all of one failure: its cause is among them, or no longer expected."""
    if all(failure.is_consequence(one.kind) for one in new):
        return time.time() - min(one.time for one in new) >= CAUSE_SECONDS
    return time.time() - max(one.time for one in new) >= SETTLE_SECONDS


def _option(words: Sequence[str]) -> str | None:
    """The value of CONFIG in a command, written as one word or as two."""
    for word, after in zip(words, [*words[1:], None]):
        if word == CONFIG:
            return after
        if word.startswith(f"{CONFIG}="):
            return word.partition("=")[2]
    return None
