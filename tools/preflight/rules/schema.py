"""The rule on whole schemas."""

from collections.abc import Iterator

from tools.core.verdict import Verdict, bad, good
from tools.kube import schemas
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("schema")
def schema(subject: Subject) -> Iterator[Verdict]:
    known = schemas.shipped()
    wrappers = {wrapper for wrapper, _ in subject.inside.values()}
    for item in subject.every:
        faults = known.faults(item)
        if faults and title(item) in wrappers:  # its objects were taken out, and are checked by themselves
            faults = [fault for fault in faults if fault.message != schemas.MISSING]
        for fault in faults or ():
            summary = f"{fault.path or 'the object'}: {fault.message}"
            yield bad(Place(title(item), fault.path), summary, "see kubectl explain")
        if faults == []:
            place = Place(title(item), "apiVersion", item.get("apiVersion"))
            yield good(place, "the object satisfies its schema")
