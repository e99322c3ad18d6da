"""The rule on whole schemas."""

from __future__ import annotations

from collections.abc import Iterator

from tools.core import repo
from tools.core.verdict import Verdict, bad, good, unclear
from tools.kube import schemas
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("schema", "a field that the kind does not have is refused, or dropped without a word")
def schema(subject: Subject) -> Iterator[Verdict]:
    """Each object satisfies its kind's schema: no unknown field, no missing one, the right types.

    The schemas are those of Kubernetes 1.35 and of the training operator's own CRD, and kubeconform reads
    the same files. For kinds that are not among them, and without them (`python -m tools.kube.schemas` builds
    them), the verdict is CANNOT TELL.
    """
    known = schemas.find(repo.root())
    if known is None:
        place = Place("all objects", ".cache/schemas")
        yield unclear(place, "the schemas are not built on this machine", schemas.HOW)
        return
    for item in subject.every:
        faults = known.faults(item)
        place = Place(title(item), "apiVersion", item.get("apiVersion"))
        if faults is None:
            yield unclear(place, f"no schema of {item.get('apiVersion')} {item.get('kind')} is here")
            continue
        for fault in faults:
            yield bad(
                Place(title(item), fault.path),
                f"{fault.path or 'the object'}: {fault.message}",
                "see kubectl explain",
            )
        if not faults:
            yield good(place, "the object satisfies its schema")
