"""Rules on names: of objects, pods, labels and images."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.core.verdict import Verdict, bad, good
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title
from tools.simulator.operator_pods import pod_name

LONGEST = 63  # of a DNS label: a Service's name, a pod's host name, a label's value
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
COLON_NAMES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")  # system:... is theirs
MOVING = (
    *(
        "latest",
        "main",
        "master",
        "nightly",
        "dev",
        "devel",
        "edge",
        "stable",
        "head",
        "current",
        "test",
        "snapshot",
    ),
    *("prod", "staging", "release"),
)
REFERENCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]+))?"
)


@rule("names", "a name that Kubernetes does not take is refused only when it is applied")
def names(subject: Subject) -> Iterator[Verdict]:
    """Objects, containers and volumes have names that Kubernetes takes, and labels values that it takes.

    Underscores and capitals are the usual faults: model names carry them (`llama3_1_8b`).
    """
    for item in subject.objects:
        metadata = item["metadata"]
        name, kind = metadata["name"], str(item.get("kind"))
        place = Place(title(item), "metadata.name", name)
        if "$" in name:
            continue  # the rule `template-left` says it
        if kind not in COLON_NAMES and (len(name) > 253 or not SUBDOMAIN.fullmatch(name)):
            remedy = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "name"
            yield bad(place, f"{name!r} is no name of an object", f"such as {remedy}")
        else:
            yield good(place, "a name that Kubernetes takes")
        labels = metadata.get("labels")
        yield from _label_faults(title(item), "metadata.labels", labels if isinstance(labels, dict) else {})
    for template in subject.templates:
        yield from _label_faults(
            template.object, f"{template.path}.metadata.labels", template.metadata.get("labels") or {}
        )
        parts = [(path, container["name"]) for path, container in template.containers()]
        parts += [(f"{template.spec_path}.volumes", name) for name in template.volumes()]
        for path, name in parts:
            if not DNS_LABEL.fullmatch(name) or len(name) > LONGEST:
                yield bad(
                    Place(template.object, path, name),
                    f"{name!r} is no name of a container or volume",
                    "a-z, 0-9, -",
                )


def _label_faults(owner: str, path: str, labels: dict[str, object]) -> Iterator[Verdict]:
    for key, value in labels.items():
        text = str(value)
        if len(text) > LONGEST or not LABEL_VALUE.fullmatch(text):
            yield bad(
                Place(owner, f"{path}.{key}", text),
                f"label {key}: no value that a label can have",
                f"at most {LONGEST} letters, digits, -, _ and .; other texts go to annotations",
            )


@rule("name-length", "a pod's Service takes the pod's name, and only then is it too long")
def name_length(subject: Subject) -> Iterator[Verdict]:
    """The name of the job's last pod has at most 63 characters.

    The operator makes a Service for each pod, `<job>-worker-<n>`. Nothing checks its length before; the job
    is admitted, its pods come up, and never find each other.
    """
    for job in subject.jobs:
        for template in job.templates:
            last = max(template.replicas, template.nodes if template.role == "Worker" else 1) - 1
            longest = pod_name(job.item["metadata"]["name"], template.role, last)
            place = Place(job.object, "metadata.name", longest)
            if len(longest) <= LONGEST:
                yield good(place, f"{len(longest)} characters")
            else:
                spare = LONGEST - (len(longest) - len(job.item["metadata"]["name"]))
                yield bad(
                    place, f"{longest} has {len(longest)} characters", f"a job's name of at most {spare}"
                )


@rule("image-pinned", "under a moving tag the pods of one job may run different images")
def image_pinned(subject: Subject) -> Iterator[Verdict]:
    """Images have a digest, or a tag that names a version.

    No tag means latest. A pod that is made again tomorrow pulls what the tag then is, so that one job trains
    with two programs. Tags such as latest, main and nightly fail; other tags are taken as fixed.
    """
    for template in subject.templates:
        for path, container in template.containers():
            image = container.get("image")
            if image is None or "$" in image:
                continue
            place = Place(template.object, f"{path}.image", image)
            match = REFERENCE.fullmatch(image)
            if match is None:
                yield bad(
                    place, f"{image!r} is no image reference", "registry/name:tag or registry/name@sha256:..."
                )
            elif match["digest"] and not re.fullmatch(r"sha256:[0-9a-f]{64}", match["digest"]):
                yield bad(place, "the digest is not sha256 with 64 digits", "take it from the registry")
            elif match["digest"]:
                yield good(place, "pinned by digest")
            elif match["tag"] is None:
                yield bad(place, f"{image} has no tag, so latest", "a version's tag, or a digest")
            elif _moves(match["tag"]):
                yield bad(place, f"the tag {match['tag']} moves", "a version's tag, or a digest")
            else:
                yield good(place, "pinned by a version's tag")


def _moves(tag: str) -> bool:
    """Say whether a tag is one that moves: one of the known words, alone or with `latest` at an end."""
    words = re.split(r"[-_.]", tag.lower())
    return tag.lower() in MOVING or words[0] == "latest" or words[-1] == "latest"
