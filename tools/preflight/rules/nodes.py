"""Rules on the machines that a pod selects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.core.repo import nearest
from tools.core.verdict import Verdict, bad, good, unclear
from tools.facts.instances import INSTANCES
from tools.preflight.rule import Place, rule
from tools.preflight.subject import INSTANCE_LABELS, Subject, Template

TYPE_NAME = re.compile(
    r"[a-z]+[0-9]+[a-z0-9-]*\.(nano|micro|small|medium|large|xlarge|[0-9]+xlarge|metal(-[0-9]+xl)?)"
)
HYPERPOD = "sagemaker.amazonaws.com/"
ARCH_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
ARCHITECTURES = {"arm64": "arm64", "aarch64": "arm64", "amd64": "amd64", "x86_64": "amd64", "x86-64": "amd64"}


@rule("instance-types", "a node label that no node has keeps the pod Pending for ever")
def instance_types(subject: Subject) -> Iterator[Verdict]:
    """Instance types in node selectors and affinities are spelt right, and agree with each other.

    A name that cannot be an instance type fails. One that could be and is not in the fact table cannot be
    told: nothing is then known of its size.
    """
    for template in subject.templates:
        selected = template.selected
        if not selected.names:
            continue
        place = Place(template.object, selected.path, ", ".join(selected.names))
        wrong = [name for name in selected.unknown if not TYPE_NAME.fullmatch(name) and "$" not in name]
        apart = _contradiction(template)
        if wrong:
            match = nearest(wrong[0], INSTANCES)
            yield bad(
                place, f"{wrong[0]} is no instance type", f"did you mean {match}?" if match else "see EC2"
            )
        elif apart:
            yield bad(place, f"node selector and affinity exclude each other: {apart}", "keep one of them")
        elif selected.unknown:
            yield unclear(
                place, f"{', '.join(selected.unknown)}: not in tools/facts/instances.yaml", "add its row"
            )
        else:
            yield good(place, "known instance types")


def _contradiction(template: Template) -> str:
    """Return the two sides where no type satisfies selector and affinity at once, else an empty text."""
    selector = template.spec.get("nodeSelector") or {}
    fixed = [selector[label] for label in INSTANCE_LABELS if label in selector]
    without = Template(
        template.item,
        template.path,
        template.role,
        template.replicas,
        template.nodes,
        template.metadata,
        {key: value for key, value in template.spec.items() if key != "nodeSelector"},
    )
    allowed = without.selected.names
    if not fixed or not allowed or all(name in allowed for name in fixed):
        return ""
    return f"{', '.join(fixed)} and {', '.join(allowed)}"


@rule("hyperpod-nodes", "HyperPod's nodes carry ml. before the instance type")
def hyperpod_nodes(subject: Subject) -> Iterator[Verdict]:
    """A job for HyperPod selects `ml.` instance types (besides the plain ones, if it shall run on both).

    Taken as made for HyperPod: the kind HyperPodPyTorchJob, and annotations or node labels of
    sagemaker.amazonaws.com.
    """
    for template in subject.training():
        names = template.selected.names
        if not names or not _for_hyperpod(template):
            continue
        place = Place(template.object, template.selected.path, ", ".join(names))
        if any(name.startswith("ml.") for name in names):
            yield good(place, "HyperPod's names are among them")
        else:
            yield bad(place, "no node of HyperPod has these labels", f"add ml.{names[0]}")


def _for_hyperpod(template: Template) -> bool:
    metadata = template.item["metadata"]
    keys = [*(metadata.get("annotations") or {}), *(template.spec.get("nodeSelector") or {})]
    return template.item.get("kind") == "HyperPodPyTorchJob" or any(key.startswith(HYPERPOD) for key in keys)


@rule(
    "architecture", "an image for another processor ends in exec format error, on a machine that is paid for"
)
def architecture(subject: Subject) -> Iterator[Verdict]:
    """An image whose name says its architecture fits the nodes that the pod selects.

    Read in the image's repository and tag (arm64, aarch64, amd64, x86_64), in the node selector
    kubernetes.io/arch and in the instance type. Where the name says nothing, nothing is said: an image may
    hold several architectures.
    """
    for template in subject.templates:
        nodes = _node_architectures(template)
        if len(nodes) > 1:
            place = Place(template.object, template.spec_path, ", ".join(sorted(nodes)))
            yield bad(place, "node selector and instance type are of different architectures", "keep one")
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
                yield good(place, f"an image and nodes of {built.pop()}")
            else:
                yield bad(
                    place, f"an image for {built.pop()} on nodes of {nodes.pop()}", "take the other image"
                )


def _node_architectures(template: Template) -> set[str]:
    """Return the architectures that the pod's nodes have, as far as the manifest says."""
    selector = template.spec.get("nodeSelector") or {}
    found = {selector[label] for label in ARCH_LABELS if label in selector}
    for name in template.selected.bare:
        if name in INSTANCES:
            found.add(INSTANCES[name].architecture)
        elif re.match(r"[a-z]+[0-9]+g[a-z]*\.", name):  # Graviton: c7g, m8gd, g5g
            found.add("arm64")
    return found & {"arm64", "amd64"}
