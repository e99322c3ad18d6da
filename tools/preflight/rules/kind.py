"""The rule on kinds of job that are not modelled."""

from collections.abc import Iterator

from tools.core.verdict import Verdict, good, unclear
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("kind")
def kind(subject: Subject) -> Iterator[Verdict]:
    for job in subject.jobs:
        yield good(Place(job.object, "kind", job.workload.kind), f"{job.workload.kind} is modelled")
    for one in subject.unknown:
        place = Place(one.wrapper or title(one.item), f"{one.prefix}{one.path or 'kind'}")
        yield unclear(place, one.reason, "check this object by hand")
