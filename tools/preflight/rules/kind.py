"""The rule on kinds of job that are not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from tools.core.verdict import Verdict, good, unclear
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("kind", "pods that are not looked at may hang, train as separate jobs, or never start")
def kind(subject: Subject) -> Iterator[Verdict]:
    """The kind of each job is modelled, and so are its pods.

    Modelled are PyTorchJob, TrainJob with its runtime, HyperPodPyTorchJob, Volcano Job, JobSet and Job, also
    inside an AppWrapper, a Katib Experiment or a List. For any other object with a pod template, and for
    other kinds of training (MPIJob, RayJob, SparkApplication), the verdict is CANNOT TELL. A TrainJob needs
    its runtime in the same file: `kubectl get clustertrainingruntime NAME -o yaml`.
    """
    for job in subject.jobs:
        yield good(Place(job.object, "kind", job.workload.kind), f"{job.workload.kind} is modelled")
    for one in subject.unknown:
        place = Place(one.wrapper or title(one.item), f"{one.prefix}{one.path or 'kind'}")
        yield unclear(place, one.reason, "check this object by hand")
