"""The confusion table of `why` over all situations: `python -m tests.job.confusion`

The exit code is 1 if less than 95 % of the answers are right, or if a healthy job is not called healthy.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.job.corpus import HEALTHY, Situation
from tests.job.situations import SITUATIONS
from tests.job.world import World
from tools.job.diagnosis.explain import Explanation, explain

LEAST = 0.95


@dataclass(frozen=True)
class Confusion:
    """How often each answer was given (`said`) for each cause (`meant`)."""

    counts: Counter[tuple[str, str]]

    @property
    def right(self) -> float:
        """The share of situations whose cause came first."""
        return sum(number for (meant, said), number in self.counts.items() if meant == said) / self.total

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def alarms(self) -> int:
        """The number of healthy jobs that were not called healthy."""
        return sum(n for (meant, said), n in self.counts.items() if meant == HEALTHY != said)

    @property
    def good(self) -> bool:
        """Whether enough answers are right, and every healthy job is called healthy."""
        return self.right >= LEAST and not self.alarms

    def table(self) -> str:
        """Return a line for each cause: its situations, the right answers, and the wrong ones."""
        lines = [f"{'cause':<42} {'n':>3} {'right':>5}  taken for"]
        for cause in sorted({meant for meant, _ in self.counts}):
            answers = {said: number for (meant, said), number in self.counts.items() if meant == cause}
            wrong = ", ".join(f"{said} ({number})" for said, number in sorted(answers.items()) if said != cause)
            lines.append(f"{cause:<42} {sum(answers.values()):>3} {answers.get(cause, 0):>5}  {wrong}".rstrip())
        alarms = f"healthy jobs called something else: {self.alarms}"
        return "\n".join([*lines, f"right first: {self.right:.1%} of {self.total}; {alarms}"])


def said(found: Explanation) -> str:
    """The kind of the first cause, or the state."""
    return found.causes[0].kind if found.causes else found.name


def confusion(world: Callable[[str], World], situations: Iterable[Situation] = tuple(SITUATIONS)) -> Confusion:
    """Plant every situation in its own world (`world` makes one by the cell's name) and ask `why`."""
    counts: Counter[tuple[str, str]] = Counter()
    for one in situations:
        made = world(one.cell)
        one.plant(made)
        counts[one.cause, said(explain(made.snapshot()))] += 1
    return Confusion(counts)


def main() -> int:
    from tests.job.conftest import KINDS
    from tests.job.pages import rendered

    cells = rendered()
    found = confusion(lambda name: World(cells[name], KINDS[name]))
    print(found.table())
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
