"""The rule on whole schemas."""

from collections.abc import Iterator

from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good
from tools.kube import schemas
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title
from tools.workload.operator_admission import KEYED, admits_twice
from tools.workload.pytorchjob import PyTorchJob

_FORMER: dict[str, dict[str, str]] = load("preflight/words.yaml")["former fields"]


@rule("schema")
def schema(subject: Subject) -> Iterator[Verdict]:
    known = schemas.shipped()
    wrappers = {wrapper for wrapper, _ in subject.inside.values()}
    for item in subject.every:
        faults = known.faults(item)
        if faults and title(item) in wrappers:  # its objects were taken out, and are checked by themselves
            faults = [fault for fault in faults if fault.message != schemas.MISSING]
        if item.get("kind") == PyTorchJob.kind and admits_twice(subject.operator):
            faults = [one for one in faults or () if not _is_keyed(one)]
        former = _FORMER.get(str(item.get("kind")), {})
        for fault in faults or ():
            place, summary = Place(title(item), fault.path), f"{fault.path or 'the object'}: {fault.message}"
            if fault.path in former:
                summary = f"{fault.path}: the last release with this field is {former[fault.path]}"
                yield doubtful(place, summary, "remove it for newer releases, which refuse it")
            else:
                found = bad(place, summary, "see kubectl explain")
                yield subject.by_operator(found) if item.get("kind") == PyTorchJob.kind and _is_keyed(fault) else found
        if faults == []:
            place = Place(title(item), "apiVersion", item.get("apiVersion"))
            yield good(place, "the object satisfies its schema")


def _is_keyed(fault: schemas.Fault) -> bool:
    """Return whether older releases of the training operator admit the fault: their CRD gives the list no key."""
    return schemas.TWICE in fault.message and KEYED.search(fault.path) is not None
