"""Which reports of a log training has survived: steps that follow show that a failure was handled."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tools.job.diagnosis.log_patterns import form
from tools.job.snapshot.log_lines import Line
from training.run import trainer_logs
from training.run.trainer_logs import Values

SURVIVED = 3  # new steps after a report: no rank takes one when another has failed, but lines may be late
Writer = tuple[str, int | None]  # pod and rank
Place = tuple[int, float]  # how often a writer's steps began again, and the step


@dataclass(frozen=True)
class Survival:
    """The indices of lines up to which reports were survived: by the writers that name a rank, and by all."""

    by_writer: dict[Writer, int]
    by_all: int

    @property
    def first(self) -> int:
        """The index before which every report was survived."""
        return min([self.by_all, *self.by_writer.values()])

    @property
    def last(self) -> int:
        """The index behind which no report was survived."""
        return max([self.by_all, *self.by_writer.values()])

    def covers(self, line: Line, index: int) -> bool:
        """Return whether the report at a line was survived: by its own rank, if that prints its steps."""
        return index < self.by_writer.get(_writer(line), self.by_all)


def of(lines: Iterable[Line]) -> Survival:
    """Return what the steps in the lines of a log show.

    Only a step beyond all earlier ones counts: ranks that waited print the same step late.
    """
    counts: dict[Writer, _Steps] = defaultdict(_Steps)
    furthest: dict[Writer | None, Place] = {}
    found: dict[Writer | None, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        parsed = trainer_logs.read(line.text)
        if parsed is None or parsed.values is None:
            continue
        writer = _writer(line)
        place = counts[writer].add(parsed.values)
        for group in (writer, None):
            if place > furthest.get(group, (-1, 0.0)):
                furthest[group] = place
                found[group].append(index)
    ranks = {writer: at for writer, at in found.items() if writer and writer[1] is not None and len(at) > 1}
    return Survival({writer: _last(at) for writer, at in ranks.items()}, _last(found[None]))


class _Steps:
    """Counts one writer's steps. They begin again with an epoch, and where a run continues from a checkpoint."""

    def __init__(self) -> None:
        self._again = 0
        self._last: Values = {}
        self._step = 0.0

    def add(self, values: Values) -> Place:
        """Return the place of the writer's next step. One without a number counts if it differs from the last."""
        last, before = self._last, self._step
        self._last, self._step = values, values.get("step", before + (values != last))
        new_epoch = values.get("epoch", 0.0) // 1 > last.get("epoch", 0.0) // 1
        if self._step <= before - (1 if new_epoch else SURVIVED):
            self._again += 1
        return self._again, self._step


def _last(indices: list[int]) -> int:
    """Return the index of the step that shows that all reports before it were survived, else 0."""
    return indices[-SURVIVED] if len(indices) >= SURVIVED else 0


def _writer(line: Line) -> Writer:
    return line.pod, replace(line, text=form("collected").sub("", line.text)).rank
