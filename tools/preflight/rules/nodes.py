"""Rules on the machines that a pod selects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tools.core.repo import nearest
from tools.core.verdict import Verdict, bad, good, unclear
from tools.facts.instances import INSTANCES
from tools.preflight.rule import Place, rule
from tools.preflight.subject import INSTANCE_LABELS, Subject, Template

TYPE_NAME = re.compile(
    r"[a-z]+[0-9][a-z0-9-]*\.(nano|micro|small|medium|large|xlarge|[0-9]+xlarge|metal(-[0-9]+xl)?)"
)
HYPERPOD = "sagemaker.amazonaws.com/"
ARCH_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
ARCHITECTURES = {"arm64": "arm64", "aarch64": "arm64", "amd64": "amd64", "x86_64": "amd64", "x86-64": "amd64"}


@rule("instance-types", "a node label that no node has keeps the pod Pending forever")
def instance_types(subject: Subject) -> Iterator[Verdict]:
    """Instance types in node selectors and affinities are spelt correctly and do not contradict each other.

    A name that cannot be an instance type fails. For a possible name that is not in the fact table the
    verdict is CANNOT TELL, because the machine's size is unknown.
    """
    for template in subject.templates:
        selected = template.selected
        if not selected.names:
            continue
        place = Place(template.object, selected.path, ", ".join(selected.names))
        wrong = [name for name in selected.unknown if not TYPE_NAME.fullmatch(name) and "$" not in name]
        contradiction = _contradiction(template)
        if wrong:
            match = nearest(wrong[0], INSTANCES)
            remedy = f"did you mean {match}?" if match else "see the instance types of EC2"
            yield bad(place, f"{wrong[0]} is not an instance type", remedy)
        elif contradiction:
            yield bad(place, f"node selector and affinity exclude each other: {contradiction}", "keep one")
        elif selected.unknown:
            summary = f"{', '.join(selected.unknown)}: not in tools/facts/instances.yaml"
            yield unclear(place, summary, "add its row")
        else:
            yield good(place, "known instance types")


def _contradiction(template: Template) -> str:
    """Return both sides if no instance type satisfies selector and affinity, else an empty text."""
    selector = template.spec.get("nodeSelector") or {}
    fixed = [selector[label] for label in INSTANCE_LABELS if label in selector]
    spec = {key: value for key, value in template.spec.items() if key != "nodeSelector"}
    allowed = replace(template, spec=spec).selected.names
    if not fixed or not allowed or all(name in allowed for name in fixed):
        return ""
    return f"{', '.join(fixed)} and {', '.join(allowed)}"


@rule("hyperpod-nodes", "nodes of HyperPod have instance types with the prefix ml.")
def hyperpod_nodes(subject: Subject) -> Iterator[Verdict]:
    """A job for HyperPod selects `ml.` instance types, and the plain ones too if it should run on both.

    A job counts as made for HyperPod if its kind is HyperPodPyTorchJob, or if it has annotations or node
    labels of sagemaker.amazonaws.com.
    """
    for template in subject.training():
        names = template.selected.names
        if not names or not _for_hyperpod(template):
            continue
        place = Place(template.object, template.selected.path, ", ".join(names))
        if any(name.startswith("ml.") for name in names):
            yield good(place, "HyperPod's names are included")
        else:
            yield bad(place, "no node of HyperPod has these labels", f"add ml.{names[0]}")


def _for_hyperpod(template: Template) -> bool:
    metadata = template.item["metadata"]
    keys = [*(metadata.get("annotations") or {}), *(template.spec.get("nodeSelector") or {})]
    return template.item.get("kind") == "HyperPodPyTorchJob" or any(key.startswith(HYPERPOD) for key in keys)


@rule("architecture", "an image for another processor fails with exec format error, on a paid machine")
def architecture(subject: Subject) -> Iterator[Verdict]:
    """An image whose name contains an architecture fits the nodes that the pod selects.

    The architecture is read from the image's repository and tag (arm64, aarch64, amd64, x86_64), from the
    node selector kubernetes.io/arch and from the instance type. Images without it in their name are not
    checked: they may contain several architectures.
    """
    for template in subject.templates:
        nodes = _node_architectures(template)
        if len(nodes) > 1:
            place = Place(template.object, template.spec_path, ", ".join(sorted(nodes)))
            yield bad(place, "node selector and instance type have different architectures", "keep one")
            continue
        for path, container in template.containers():
            image = str(container.get("image") or "")
            built = {
                value
                for key, value in ARCHITECTURES.items()
                if re.search(rf"(?<![a-z0-9]){key}(?![a-z0-9])", image)
            }
            if len(built) != 1 or not nodes:
                continue
            place = Place(template.object, f"{path}.image", image)
            if built == nodes:
                yield good(place, f"the image and the nodes are {built.pop()}")
            else:
                need = next(iter(nodes))
                yield bad(place, f"an image for {built.pop()} on {need} nodes", f"use an image for {need}")


def _node_architectures(template: Template) -> set[str]:
    """Return the architectures of the pod's nodes, as far as the manifest shows them."""
    selector = template.spec.get("nodeSelector") or {}
    architectures = {selector[label] for label in ARCH_LABELS if label in selector}
    for name in template.selected.bare:
        if name in INSTANCES:
            architectures.add(INSTANCES[name].architecture)
        elif re.match(r"[a-z]+[0-9]+g[a-z]*\.", name):  # Graviton: c7g, m8gd, g5g
            architectures.add("arm64")
    return architectures & {"arm64", "amd64"}
