"""Rules on what pods may do on their host, who reaches them, and secrets in the open."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from tools.core.verdict import Verdict, bad, good
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Job, Subject, Template, known_kind, title
from tools.simulator import operator_pods
from tools.simulator.operator_admission import OperatorFault

# Capabilities that the baseline Pod Security Standard lets a container add (Kubernetes v1.35).
BASELINE = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
ENFORCE = "pod-security.kubernetes.io/enforce"
UNAUTHENTICATED = {
    6006: "TensorBoard",
    23456: "the rendezvous",
    29400: "the rendezvous",
    29500: "the rendezvous",
}
RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"}
RESTRICTED_VOLUMES |= {"persistentVolumeClaim", "projected", "secret", "name"}
SHAPES = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:ghp|gho|ghs|ghu)_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{22,}"),
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
}
SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|SECRET_KEY|SECRET_ACCESS_KEY|ACCESS_KEY|ACCESS_KEY_ID)$"
)
SECRET_OPTION = re.compile(r"^--?(?:[a-z0-9]+[-_])*(?:token|password|api[-_]?key|secret[-_]key)(?:=(.+))?$")
LONGEST_HARMLESS = 7  # characters: a tokenizer's [PAD] and </s> are tokens of another kind
HARMLESS = re.compile(r"^(?:$|\$[({A-Za-z]|<.*>$|true$|false$|[0-9]+$|/|none$|null$)", re.IGNORECASE)


def _on_host(subject: Subject) -> Iterator[Template]:
    """Yield the templates that the host rules judge: a DaemonSet is often the host's own agent."""
    for template in subject.templates:
        if template.item.get("kind") != "DaemonSet":
            yield template


@rule("host-path", "a directory of the node is another one on each node, and open to every pod there")
def host_path(subject: Subject) -> Iterator[Verdict]:
    """Pods mount no directory of their node.

    The baseline Pod Security Standard refuses it; data and checkpoints there are split over the nodes and
    gone with them. /dev/shm is an emptyDir of medium Memory, local NVMe an ephemeral volume. DaemonSets are
    left out: device plugins need it.
    """
    for template in _on_host(subject):
        found = {
            name: volume["hostPath"] for name, volume in template.volumes().items() if volume.get("hostPath")
        }
        for name, source in found.items():
            place = Place(template.object, f"{template.spec_path}.volumes[{name}].hostPath", source["path"])
            memory = source["path"].rstrip("/") == "/dev/shm"
            remedy = "emptyDir: {medium: Memory}" if memory else "a claim, or an ephemeral volume"
            yield bad(place, f"volume {name} is the node's own {source['path']}", remedy)
        if not found:
            yield good(Place(template.object, f"{template.spec_path}.volumes"), "no directory of the node")


@rule("host-namespaces", "a pod in its node's network or processes is not alone there")
def host_namespaces(subject: Subject) -> Iterator[Verdict]:
    """No hostNetwork, hostPID, hostIPC, and no hostPort.

    With hostNetwork the c10d rendezvous cannot tell which pod hosts it (pytorch #73656), two jobs on a node
    collide on port 23456, and the pod can take the node's role from the metadata service. EFA does not need
    it.
    """
    for template in _on_host(subject):
        found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if template.spec.get(key)]
        ports = [
            f"hostPort {port['hostPort']}"
            for _, container in template.containers()
            for port in container.get("ports") or []
            if port.get("hostPort")
        ]
        for name in [*found, *ports]:
            place = Place(template.object, f"{template.spec_path}.{name.partition(' ')[0]}", name)
            yield bad(place, f"{name}: the pod shares its node's namespace", "take it out")
        if not found and not ports:
            yield good(Place(template.object, template.spec_path), "the pod has namespaces of its own")


@rule("privileged", "a privileged pod owns its node")
def privileged(subject: Subject) -> Iterator[Verdict]:
    """No privileged container, and no capability beyond the baseline Pod Security Standard.

    Neither GPUs nor EFA need it. IPC_LOCK is often added for EFA: for a user who is not root it has no
    effect, and the limit of locked memory comes from the node. DaemonSets are left out.
    """
    for template in _on_host(subject):
        for path, container in template.containers():
            context = container.get("securityContext") or {}
            added = set((context.get("capabilities") or {}).get("add") or []) - BASELINE
            place = Place(template.object, f"{path}.securityContext", context or None)
            if context.get("privileged"):
                yield bad(place, f"container {container['name']} is privileged", "take privileged out")
            elif added:
                yield bad(place, f"capabilities {', '.join(sorted(added))}", "drop ALL, add none")
            else:
                yield good(place, f"container {container['name']} has no power over its node")


@rule("restricted", "a namespace that enforces the restricted standard refuses the pods one by one")
def restricted(subject: Subject) -> Iterator[Verdict]:
    """Pods satisfy the restricted Pod Security Standard where their namespace, in this manifest, enforces it.

    A PyTorchJob is admitted and its pods are not, so that it stands at Created. The operator's own init
    container of a Master and Worker job (init-pytorch) does not satisfy it either: train with Workers only.
    """
    enforced = {
        item["metadata"]["name"]
        for item in subject.manifests.of_kind("Namespace")
        if (item["metadata"].get("labels") or {}).get(ENFORCE) == "restricted"
    }
    for template in subject.templates:
        if template.namespace not in enforced:
            continue
        found = _unrestricted(template.spec, template) + _injected(subject, template)
        place = Place(template.object, template.spec_path, f"namespace {template.namespace}")
        for what in found:
            yield bad(
                place, f"refused in namespace {template.namespace}: {what}", "satisfy the restricted standard"
            )
        if not found:
            yield good(place, "the restricted standard is satisfied")


def _unrestricted(pod: dict[str, Any], template: Template) -> list[str]:
    shared = pod.get("securityContext") or {}
    found = [
        f"volume {name}" for name, volume in template.volumes().items() if set(volume) - RESTRICTED_VOLUMES
    ]
    for _, container in template.containers():
        own = container.get("securityContext") or {}
        name = container["name"]
        if not own.get("runAsNonRoot", shared.get("runAsNonRoot")):
            found.append(f"{name} without runAsNonRoot")
        if own.get("allowPrivilegeEscalation", True):
            found.append(f"{name} without allowPrivilegeEscalation: false")
        if "ALL" not in ((own.get("capabilities") or {}).get("drop") or []):
            found.append(f"{name} does not drop ALL capabilities")
        profile = own.get("seccompProfile") or shared.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            found.append(f"{name} without seccompProfile RuntimeDefault")
    return found


def _injected(subject: Subject, template: Template) -> list[str]:
    job = next((job for job in subject.jobs if job.item is template.item), None)
    if job is None or job.refused or template.role != "Worker" or not _has_master(job):
        return []
    return ["the operator's init container init-pytorch"]


def _has_master(job: Job) -> bool:
    try:
        pods = operator_pods.pods(job.item)
    except OperatorFault:
        return False
    return any(pod.replica_type == "master" for pod in pods)


@rule("secret-literal", "who can read the object, or git, can read the secret")
def secret_literal(subject: Subject) -> Iterator[Verdict]:
    """No token, password or key stands in the manifest itself.

    Looked at: variables whose name says secret, options such as --hf-token, and texts of the shape of Hugging
    Face, AWS and GitHub tokens anywhere, also in ConfigMaps and in Secrets that are not encrypted. A value is
    never printed whole. References ($NAME, secretKeyRef) and placeholders (<...>) are no secrets.
    """
    for item in subject.objects:
        if "sops" in item:
            continue
        seen: set[str] = set()
        for path, text in _texts(item, ""):
            for what, shape in SHAPES.items():
                match = shape.search(text)
                if match and match[0] not in seen:
                    seen.add(match[0])
                    yield _leak(item, path, what, match[0])
    for template in subject.templates:
        for path, container in template.containers():
            leaks = [leak for leak in _named_secrets(container) if not _shaped(leak[1])]
            for where, value, what in leaks:
                yield _leak(template.item, f"{path}.{where}", what, value)
            if not leaks:
                yield good(Place(template.object, path), "no secret by name in variables and options")


def _leak(item: dict[str, Any], path: str, what: str, value: str) -> Verdict:
    hidden = f"{value[:4]}... ({len(value)} characters)"
    return bad(Place(title(item), path, hidden), f"{what} in the open", "a Secret, named by secretKeyRef")


def _shaped(value: str) -> bool:
    return any(shape.search(value) for shape in SHAPES.values())


def _named_secrets(container: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for entry in container.get("env") or []:
        value = entry.get("value")
        secret = SECRET_NAME.search(entry["name"].upper())
        if value and secret and len(value) > LONGEST_HARMLESS and not HARMLESS.match(value.strip()):
            found.append((f"env[{entry['name']}].value", value, f"the value of {entry['name']}"))
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    for index, word in enumerate(words):
        match = SECRET_OPTION.match(word)
        following = words[index + 1] if index + 1 < len(words) else ""
        value = (match[1] or ("" if following.startswith("-") else following)) if match else ""
        if value and len(value) > LONGEST_HARMLESS and not HARMLESS.match(value):
            found.append(("args", value, f"the value of {word.partition('=')[0]}"))
    return found


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every text in an object with its path; data of a Secret decoded."""
    if isinstance(value, dict):
        secret = value.get("kind") == "Secret"
        for key, inner in value.items():
            at = f"{path}.{key}".lstrip(".")
            if secret and key == "data" and isinstance(inner, dict):
                for name, encoded in inner.items():
                    yield f"{at}.{name}", _decoded(encoded)
            else:
                yield from _texts(inner, at)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


def _decoded(text: Any) -> str:
    try:
        return base64.b64decode(str(text), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


@rule(
    "exposed", "TensorBoard and the rendezvous know no password; the rendezvous runs code from whoever comes"
)
def exposed(subject: Subject) -> Iterator[Verdict]:
    """No Service of type LoadBalancer or NodePort leads to port 6006, 23456, 29400 or 29500.

    torchrun's agents unpickle what they find in the rendezvous store, so that reaching it is running code.
    """
    for item in subject.manifests.of_kind("Service"):
        spec = item.get("spec")
        ports = spec.get("ports") if isinstance(spec, dict) else None
        if not isinstance(spec, dict) or not isinstance(ports, list):
            continue
        kind = spec.get("type", "ClusterIP")
        numbers = {
            port.get(key) for port in ports if isinstance(port, dict) for key in ("port", "targetPort")
        }
        open_ports = sorted(number for number in numbers if number in UNAUTHENTICATED)
        place = Place(title(item), "spec.type", kind)
        if open_ports and kind in ("LoadBalancer", "NodePort"):
            what = UNAUTHENTICATED[open_ports[0]]
            yield bad(
                place,
                f"{what} (port {open_ports[0]}) is open to outside",
                "type: ClusterIP, and port-forward",
            )
        elif open_ports:
            yield good(place, f"{UNAUTHENTICATED[open_ports[0]]} is reached from inside only")


@rule("network-policy", "a policy that opens 23456 only cuts the ranks off from each other")
def network_policy(subject: Subject) -> Iterator[Verdict]:
    """A NetworkPolicy on a job's pods lets them reach each other on all TCP ports.

    The rendezvous is on 23456, and gloo and NCCL then listen on ports of their own choice.
    """
    for item in subject.manifests.of_kind("NetworkPolicy"):
        if known_kind(item) != "NetworkPolicy":
            continue
        found = item.get("spec")
        spec: dict[str, Any] = found if isinstance(found, dict) else {}
        for template in subject.training():
            labels = _labels(template)
            if (
                template.nodes < 2
                or not _selects(spec.get("podSelector"), labels)
                or "Ingress" not in _types(spec)
            ):
                continue
            place = Place(title(item), "spec.ingress", template.object)
            if any(_admits(entry, labels) for entry in _maps(spec.get("ingress"))):
                yield good(place, "the job's pods reach each other")
            else:
                yield bad(
                    place,
                    "no rule lets the job's pods reach each other on all ports",
                    "from: its own pods, no port",
                )


def _labels(template: Template) -> dict[str, str]:
    own = dict(template.metadata.get("labels") or {})
    name = template.item["metadata"]["name"]
    return own | {
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/replica-type": template.role.lower(),
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "HPJob": name,  # HyperPod's own operator
    }


def _types(spec: dict[str, Any]) -> list[str]:
    types = spec.get("policyTypes")
    return types if isinstance(types, list) else ["Ingress"]


def _maps(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _selects(selector: Any, labels: dict[str, str]) -> bool:
    """Say whether a selector takes these labels; one with expressions is taken not to."""
    if not isinstance(selector, dict) or selector.get("matchExpressions"):
        return bool(selector == {})
    wanted = selector.get("matchLabels") or {}
    return isinstance(wanted, dict) and all(labels.get(key) == value for key, value in wanted.items())


def _admits(entry: dict[str, Any], labels: dict[str, str]) -> bool:
    peers = _maps(entry.get("from"))
    ours = not entry.get("from") or any(_is_ours(peer, labels) for peer in peers)
    ports = _maps(entry.get("ports"))
    every = not entry.get("ports") or any("port" not in port for port in ports)
    return ours and every


def _is_ours(peer: dict[str, Any], labels: dict[str, str]) -> bool:
    if "ipBlock" in peer or "matchExpressions" in (peer.get("podSelector") or {}):
        return True  # may well be ours: no alarm
    return "podSelector" not in peer or _selects(peer["podSelector"], labels)
