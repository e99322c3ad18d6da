"""The rule on whole schemas."""

from __future__ import annotations

from collections.abc import Iterator

from tools.core.verdict import Verdict, bad, good
from tools.kube import schemas
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("schema", "a field that the kind does not have is refused, or silently dropped")
def schema(subject: Subject) -> Iterator[Verdict]:
    """Each object satisfies its kind's schema: no unknown field, no missing field, the right types.

    The schemas are those of Kubernetes 1.35, PyTorchJob, TrainJob, JobSet, Volcano, AppWrapper, Kueue,
    Karpenter and Flux, in the versions that `about.json` in tools/kube/schemas.zip names. Objects of other
    kinds are not checked by this rule. The first line names their kinds as not judged.
    """
    known = schemas.shipped()
    wrappers = {wrapper for wrapper, _ in subject.inside.values()}
    for item in subject.every:
        faults = known.faults(item)
        if faults and title(item) in wrappers:  # its objects were taken out, and are checked by themselves
            faults = [fault for fault in faults if not fault.message.endswith(" is missing")]
        for fault in faults or ():
            summary = f"{fault.path or 'the object'}: {fault.message}"
            yield bad(Place(title(item), fault.path), summary, "see kubectl explain")
        if faults == []:
            place = Place(title(item), "apiVersion", item.get("apiVersion"))
            yield good(place, "the object satisfies its schema")
