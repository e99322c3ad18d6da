"""Rules on names: of objects, pods, labels and images."""

import re
from collections.abc import Iterator

from tools.core import Verdict, bad, doubtful, good, secret_patterns
from tools.core.command_line import is_label, is_subdomain
from tools.core.tables import load
from tools.kube.images import is_local
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Job, Subject, Template, title
from tools.workload.operator_pods import pod_name

LONGEST = 63  # characters of a DNS label (a Service's or pod's name) and of a label's value
LATEST = re.compile(r"(?i)^latest(?:[-_.]|$)|[-_.]latest$")  # a tag that begins or ends with it
TEMPLATE = set("${<")  # the rule `template-left` reports what is left of a template
_WORDS: dict[str, list[str]] = load("preflight/words.yaml")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
REFERENCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]+))?"
)


@rule("names")
def names(subject: Subject) -> Iterator[Verdict]:
    for item in subject.objects:
        metadata = item["metadata"]
        name, kind = metadata["name"], str(item.get("kind"))
        place = Place(title(item), "metadata.name", name)
        if "$" in name:
            continue  # the rule `template-left` reports it
        if kind not in _WORDS["colon names"] and not is_subdomain(name):
            # Of a masked secret, a changed form would be printed.
            plain = "name" if secret_patterns.find(name) else name.lower()
            remedy = re.sub(r"[^a-z0-9.-]+", "-", plain).strip("-.") or "name"
            yield bad(place, f"{name!r} is not a valid object name", f"such as {remedy}")
        else:
            yield good(place, "a valid name")
        namespace = metadata.get("namespace")
        if namespace and "$" not in namespace and not is_label(namespace):
            fault = Place(title(item), "metadata.namespace", namespace)
            yield bad(fault, f"{namespace!r} is not a valid namespace", "use a-z, 0-9 and -")
        yield from _label_faults(title(item), "metadata.labels", metadata.get("labels") or {})
    for template in subject.templates:
        labels = template.metadata.get("labels") or {}
        yield from _label_faults(template.object, f"{template.path}.metadata.labels", labels)
        parts = [(path, container["name"]) for path, container in template.containers()]
        parts += [(f"{template.spec_path}.volumes", name) for name in template.volumes()]
        for path, name in parts:
            if not is_label(name):
                summary = f"{name!r} is not a valid name of a container or volume"
                yield bad(Place(template.object, path, name), summary, "use a-z, 0-9 and -")
        for field in _WORDS["named"]:
            name = template.spec.get(field)
            if name and "$" not in name and not is_subdomain(name):
                place = Place(template.object, f"{template.spec_path}.{field}", name)
                yield bad(place, f"{name!r} is not a valid object name", "use a-z, 0-9, - and .")


def _label_faults(owner: str, path: str, labels: dict[str, str]) -> Iterator[Verdict]:
    for key, value in labels.items():
        if len(value) > LONGEST or not LABEL_VALUE.fullmatch(value):
            remedy = f"at most {LONGEST} letters, digits, -, _ and .; put other texts into annotations"
            yield bad(Place(owner, f"{path}.{key}", value), f"label {key}: not a valid label value", remedy)


@rule("name-length", each="operator_jobs")
def name_length(subject: Subject, job: Job) -> Iterator[Verdict]:
    for template in job.templates:
        last = max(template.replicas, template.nodes if template.role == "Worker" else 1) - 1
        longest = pod_name(job.item["metadata"]["name"], template.role, last)
        place = Place(job.object, "metadata.name", longest)
        if len(longest) <= LONGEST:
            yield good(place, f"{len(longest)} characters")
        else:
            most = LONGEST - (len(longest) - len(job.item["metadata"]["name"]))
            yield bad(place, f"{longest} has {len(longest)} characters", f"a job name of at most {most} characters")


@rule("image-pinned", each="templates")
def image_pinned(subject: Subject, template: Template) -> Iterator[Verdict]:
    for path, container in template.containers():
        image = container.get("image")
        if image is None or TEMPLATE & set(image) or is_local(image):
            continue
        place = Place(template.object, f"{path}.image", image)
        match = REFERENCE.fullmatch(image)
        if match is None:
            yield bad(place, f"{image!r} is not an image reference", "registry/name:tag or registry/name@sha256:...")
        elif match["digest"] and not re.fullmatch(r"sha256:[0-9a-f]{64}", match["digest"]):
            yield bad(place, "the digest is not sha256 with 64 digits", "copy it from the registry")
        elif match["digest"]:
            yield good(place, "pinned by digest")
        elif match["tag"] is None:
            yield doubtful(place, f"{image} has no tag, which means latest", "a version tag or a digest")
        elif match["tag"].lower() in _WORDS["moving tags"] or LATEST.search(match["tag"]):
            yield doubtful(place, f"the tag {match['tag']} moves", "a version tag or a digest")
        else:
            yield good(place, "pinned by a version tag")


@rule("local-image", each="templates")
def local_image(subject: Subject, template: Template) -> Iterator[Verdict]:
    for path, container in template.containers():
        image = str(container.get("image") or "")
        if is_local(image):
            place = Place(template.object, f"{path}.image", image)
            summary = f"{image.partition('/')[0]} is another machine on each node"
            yield bad(place, summary, "push it to a registry of the cluster, and give --image")
