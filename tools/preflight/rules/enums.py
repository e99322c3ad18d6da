"""The rule on fields with a fixed set of values, which the operator's CRD does not check."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good
from tools.kube.manifests import Object
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, Template, title
from tools.workload.volcano import VolcanoJob

FIELDS: dict[str, Any] = load("preflight/enums.yaml")
RESTART: list[str] = FIELDS["restart"]
UNSET = ""

Value = tuple[str, str, list[str]]  # path, value, allowed values


@rule("enums")
def enums(subject: Subject) -> Iterator[Verdict]:
    for item in subject.objects:
        for path, value, allowed in _values(item, subject):
            place = Place(title(item), path, value)
            if value in allowed or (path.endswith("nprocPerNode") and value.isdigit()):
                yield good(place, "an allowed value")
                continue
            given = "not set, so Always," if value == UNSET else repr(value)
            summary = f"{given} is not one of {', '.join(filter(None, allowed))}"
            verdict = doubtful if path.endswith("cleanPodPolicy") else bad
            yield verdict(place, summary, "correct the value")
    for template in subject.templates:
        for index, one in enumerate(template.spec.get("tolerations") or []):
            if one.get("operator") == "Exists" and one.get("value"):
                place = Place(template.object, f"{template.spec_path}.tolerations[{index}].value", one["value"])
                yield bad(place, "a toleration with operator Exists has no value", "remove the value, or use Equal")


def _values(item: Object, subject: Subject) -> Iterator[Value]:
    templates = subject.templates_of(item)
    kind, spec = str(item.get("kind")), item.get("spec")
    if kind in FIELDS["runPolicy"] and templates and isinstance(spec, dict):
        yield from _set(spec.get("runPolicy"), "spec.runPolicy", FIELDS["runPolicy"][kind])
        yield from _set(spec.get("elasticPolicy"), "spec.elasticPolicy", FIELDS["elasticPolicy"])
        yield from _set(spec, "spec", FIELDS["spec"])
        for role, replica in (spec.get("pytorchReplicaSpecs") or {}).items():
            yield from _set(replica, f"spec.pytorchReplicaSpecs.{role}", FIELDS["replica"])
    if VolcanoJob.matches(item) and templates:
        tasks = ((f"spec.tasks[{at}]", one) for at, one in enumerate(item["spec"]["tasks"]))
        for path, holder in (("spec", item["spec"]), *tasks):
            for at, one in enumerate(holder.get("policies") or []):
                yield from _set(one, f"{path}.policies[{at}]", FIELDS["policy"])
    for template in templates:
        yield from _of_pod(template, kind)


def _of_pod(template: Template, kind: str) -> Iterator[Value]:
    at, fields = template.spec_path, FIELDS["pod"]
    if template.workload is not None and template.workload.of_batch:
        fields = {**fields, "restartPolicy": RESTART[1:]}
        if kind == "Job" and "restartPolicy" not in template.spec:
            yield f"{at}.restartPolicy", UNSET, RESTART[1:]
    yield from _set(template.spec, at, fields)
    for index, toleration in enumerate(template.spec.get("tolerations") or []):
        yield from _set(toleration, f"{at}.tolerations[{index}]", FIELDS["toleration"])
    for name, volume in template.volumes().items():
        for source in ("emptyDir", "hostPath"):
            yield from _set(volume.get(source), f"{at}.volumes[{name}].{source}", FIELDS[source])
    for path, container in template.containers():
        yield from _set(container, path, FIELDS["container"])
        for index, port in enumerate(container.get("ports") or []):
            yield from _set(port, f"{path}.ports[{index}]", FIELDS["port"])


def _set(holder: Any, path: str, fields: Mapping[str, list[str]]) -> Iterator[Value]:
    if isinstance(holder, dict):
        for key, allowed in fields.items():
            if isinstance(holder.get(key), str):
                yield f"{path}.{key}", holder[key], allowed
