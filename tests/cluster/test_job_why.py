"""`yard job why` on a real API server, scheduler and operator: what they do is the situation.

kwok plays the kubelets: what needs a container is in tests/cluster/test_job_nodes.py and in the corpus of
tests/job. Where the scheduler places a pod, our arithmetic must find room, and where it does not, the same
obstacle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.bed import Bed
from tests.cluster.kube import Kube
from tests.cluster.planted import PLANTED, Planted
from tests.job import pages
from tests.job.conftest import KINDS as MACHINES
from tests.job.confusion import Confusion, confusion, said
from tests.job.world import World
from tests.parts.gomodule import Progress
from tools.kube.manifests import Manifests

LEAST = 60  # situations
COUNTS: Counter[tuple[str, str]] = Counter()  # of (what was planted, what was said)


@pytest.fixture
def bed(kube: Kube, fake: None, namespace: str, cells: list[Manifests], asked: None) -> Iterator[Callable[[str], Bed]]:
    """A maker of beds."""
    made: list[Bed] = []

    def make(cell: str) -> Bed:
        made.append(Bed(kube, namespace, cells, cell))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.name, marks=[pytest.mark.cluster_all] if one.rare else []) for one in PLANTED],
)
def test_why_names_what_the_cluster_does(one: Planted, bed: Callable[[str], Bed]) -> None:
    made = bed(one.cell)
    made.start(one.plant(made))
    found = made.answer(one.cause)
    COUNTS[one.cause, said(found)] += 1
    causes = [(each.kind, each.summary, each.evidence) for each in found.causes]
    assert said(found) == one.cause, f"{found.summary} {causes} {found.checked}"


@pytest.mark.cluster_all
def test_the_tables_of_what_was_taken_for_what(say: Progress) -> None:
    """For the situations above on this cluster, and for the whole corpus."""
    cells = pages.rendered()
    corpus = confusion(lambda name: World(cells[name], MACHINES[name]))
    say(f"why on the corpus\n{corpus.table()}\n")
    assert corpus.good
    assert len(PLANTED) >= LEAST
    planted = Confusion(COUNTS).total
    if planted < len(PLANTED):
        pytest.skip(f"{planted} of {len(PLANTED)} situations were planted before: run the whole file")
    say(f"why on the cluster\n{Confusion(COUNTS).table()}\n")
    assert Confusion(COUNTS).good
