"""The rule on whole schemas."""

from __future__ import annotations

from collections.abc import Iterator

from tools.core import repo
from tools.core.verdict import Verdict, bad, good, unclear
from tools.kube import schemas
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("schema", "a field that the kind does not have is refused, or silently dropped")
def schema(subject: Subject) -> Iterator[Verdict]:
    """Each object satisfies its kind's schema: no unknown field, no missing field, the right types.

    The schemas are those of Kubernetes 1.35, of the training operator's CRD and of Volcano's Job. kubeconform
    reads the same files. For other kinds, and if the schemas are not built (`python -m tools.kube.schemas`
    builds them), the verdict is CANNOT TELL.
    """
    known = schemas.find(repo.root())
    if known is None:
        place = Place("all objects", ".cache/schemas")
        yield unclear(place, "the schemas are not built on this machine", schemas.COMMAND)
        return
    for item in subject.every:
        faults = known.faults(item)
        place = Place(title(item), "apiVersion", item.get("apiVersion"))
        if faults is None:
            yield unclear(place, f"there is no schema for {item.get('apiVersion')} {item.get('kind')}")
            continue
        for fault in faults:
            summary = f"{fault.path or 'the object'}: {fault.message}"
            yield bad(Place(title(item), fault.path), summary, "see kubectl explain")
        if not faults:
            yield good(place, "the object satisfies its schema")
