"""Causes with their evidence, their order and their remedies."""

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tools.core import output
from tools.core.tables import load
from tools.job.snapshot.snapshot import Snapshot

UNKNOWN_TIME = datetime.max.replace(tzinfo=UTC)  # sorts behind every known time
LONGEST = 220  # characters of one line of evidence
LONGEST_TEXT = 4000  # characters of a text of which evidence shows the begin and the end
CAUSES: dict[str, dict[str, str]] = load("job/diagnosis/causes.yaml")
TRAINERS: dict[str, dict[str, str]] = load("job/diagnosis/trainers.yaml")
OWN_TRAINER = "trainyard"
SETTING = re.compile(r"\{(micro_batch|recompute|learning_rate|clip)\}")


class Layer(enum.IntEnum):
    """The position of a cause in the chain of consequences. The lowest layer explains the others.

    Without pods nothing runs. A process that fails on its own is replaced by a pod, which may be blocked. The
    other ranks wait for a blocked pod and look hung. Ranks whose peer failed or hangs fail as its victims.
    Slowness matters only if nothing is broken.
    """

    JOB = 0  # no pod can be created
    FAILED = 1  # a process failed on its own
    BLOCKED = 2  # a pod cannot start, and the others wait for it
    HUNG = 3  # no process failed, and none makes progress
    VICTIM = 4  # a process failed in the way it does when another one is gone
    SLOW = 5  # the job makes progress, but less than it could


@dataclass(frozen=True)
class Cause:
    """One cause: a stable kind (`oom-device`, `unschedulable/nvidia.com/gpu`) and its evidence.

    `at` is when it began, if known. `rank` and `pod` are set if it concerns only one. `advice` replaces the
    remedy of the kind. `confidence` (high, medium or low, and why) is that of a cause read from a log. `trainer` is
    one of trainers.yaml, whose names of settings the remedy has.
    """

    kind: str
    layer: Layer
    summary: str
    evidence: list[str] = field(default_factory=list)
    pod: str | None = None
    rank: int | None = None
    at: datetime | None = None
    advice: str | None = None
    confidence: str | None = None
    trainer: str = ""

    @property
    def remedy(self) -> str:
        text = self.advice or (CAUSES.get(self.kind) or CAUSES[self.kind.partition("/")[0]])["fix"]
        names = TRAINERS.get(self.trainer, {})
        return SETTING.sub(lambda match: f" ({names[match[1]]})" if match[1] in names else "", text)

    @property
    def order(self) -> tuple[int, datetime]:
        """The sort key: a cause comes before those that it explains."""
        return self.layer, self.at or UNKNOWN_TIME

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.kind,
            "summary": self.summary,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "pod": self.pod,
            "rank": self.rank,
        } | ({"confidence": self.confidence} if self.confidence else {})


Rule = Callable[[Snapshot], Iterator[Cause]]  # finds causes of one family


def short(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of evidence: its begin and its end, where kubelets and registries put the reason."""
    line = output.short(text, LONGEST_TEXT)
    return line if len(line) <= longest else f"{line[: longest - longest // 3 - 1]}…{line[-(longest // 3) :]}"
