"""Rules on host access, exposure, and secrets in plain text."""

import itertools
import re
from collections.abc import Iterator

from tools.core import Verdict, bad, doubtful, good, output, secret_patterns
from tools.core.tables import load
from tools.kube import Object, network_policy
from tools.kube.manifests import from_base64
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, Template, known_kind, texts, title
from tools.workload.operator_pods import DEFAULT_PORT

_WORDS: dict[str, list[str]] = load("preflight/words.yaml")
# Capabilities that the baseline Pod Security Standard lets a container add (Kubernetes v1.35).
BASELINE = set(_WORDS["baseline capabilities"])
ENFORCE = "pod-security.kubernetes.io/enforce"
UNAUTHENTICATED = {6006: "TensorBoard", **dict.fromkeys((23456, 29400, 29500), "the rendezvous")}
RESTRICTED_VOLUMES = {*_WORDS["restricted volumes"], "name"}
LONGEST_HARMLESS = 7  # characters, such as a tokenizer's [PAD] and </s>
HARMLESS = re.compile(r"^(?:$|\$[({A-Za-z]|<.*>$|true$|false$|[0-9]+$|/|none$|null$)", re.IGNORECASE)


def _on_host(subject: Subject) -> Iterator[Template]:
    """Yield the templates that the host rules check. A DaemonSet is often an agent of the host."""
    for template in subject.templates:
        if template.item.get("kind") != "DaemonSet":
            yield template


@rule("host-path")
def host_path(subject: Subject) -> Iterator[Verdict]:
    for template in _on_host(subject):
        sources = {name: volume["hostPath"] for name, volume in template.volumes().items() if volume.get("hostPath")}
        for name, source in sources.items():
            place = Place(template.object, f"{template.spec_path}.volumes[{name}].hostPath", source["path"])
            memory = source["path"].rstrip("/") == "/dev/shm"
            remedy = "emptyDir: {medium: Memory}" if memory else "a claim, or an ephemeral volume"
            yield bad(place, f"volume {name} is the node's {source['path']}", remedy)
        if not sources:
            yield good(Place(template.object, f"{template.spec_path}.volumes"), "no directory of the node")


@rule("host-namespaces")
def host_namespaces(subject: Subject) -> Iterator[Verdict]:
    for template in _on_host(subject):
        fields = [key for key in ("hostNetwork", "hostPID", "hostIPC") if template.spec.get(key)]
        taken = (port.get("hostPort") for _, one in template.containers() for port in one.get("ports") or [])
        ports = [f"hostPort {port}" for port in taken if port]
        for name in [*fields, *ports]:
            field = name.partition(" ")[0]
            place = Place(template.object, f"{template.spec_path}.{field}", name)
            yield bad(place, f"{name}: the pod shares its node's namespace", f"remove {field}")
        if not fields and not ports:
            yield good(Place(template.object, template.spec_path), "the pod has its own namespaces")


@rule("privileged")
def privileged(subject: Subject) -> Iterator[Verdict]:
    for template in _on_host(subject):
        for path, container in template.containers():
            context = container.get("securityContext") or {}
            added = set((context.get("capabilities") or {}).get("add") or []) - BASELINE
            place = Place(template.object, f"{path}.securityContext", context or None)
            if context.get("privileged"):
                yield bad(place, f"container {container['name']} is privileged", "remove privileged")
            elif added:
                yield bad(place, f"capabilities {', '.join(sorted(added))}", "drop ALL, add none")
            else:
                yield good(place, f"container {container['name']} is not privileged")


@rule("restricted")
def restricted(subject: Subject) -> Iterator[Verdict]:
    enforced = {
        item["metadata"]["name"]: level
        for item in subject.manifests.of_kind("Namespace")
        if (level := (item["metadata"].get("labels") or {}).get(ENFORCE)) in ("baseline", "restricted")
    }
    for template in subject.templates:
        level = enforced.get(template.namespace)
        if level is None:
            continue
        faults = [*_above_baseline(template), *(_unrestricted(template) if level == "restricted" else [])]
        job = subject.job_of(template)
        if job and template.role == "Worker" and any(pod.role == "master" for pod in job.pods):
            faults += ["the operator's init container init-pytorch"] * (level == "restricted")
        place = Place(template.object, template.spec_path, f"namespace {template.namespace}")
        for fault in dict.fromkeys(faults):
            yield bad(place, f"refused in namespace {template.namespace}: {fault}", f"satisfy the {level} standard")
        if not faults:
            yield good(place, f"the {level} standard is satisfied")


def _above_baseline(template: Template) -> Iterator[str]:
    """Yield what the baseline Pod Security Standard refuses, and with it the restricted one."""
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if template.spec.get(key))
    yield from (f"volume {name}" for name, volume in template.volumes().items() if volume.get("hostPath"))
    profiles = [(template.spec.get("securityContext") or {}).get("seccompProfile") or {}]
    for _, container in template.containers():
        context, name = container.get("securityContext") or {}, container["name"]
        added = (context.get("capabilities") or {}).get("add") or []
        yield from (f"{name} adds {one}" for one in added if one not in BASELINE)
        yield from [f"{name} is privileged"] * bool(context.get("privileged"))
        yield from (f"{name} has a hostPort" for port in container.get("ports") or [] if port.get("hostPort"))
        profiles.append(context.get("seccompProfile") or {})
    yield from ["seccompProfile Unconfined"] * any(one.get("type") == "Unconfined" for one in profiles)


def _unrestricted(template: Template) -> list[str]:
    shared = template.spec.get("securityContext") or {}
    volumes = template.volumes().items()
    faults = [f"volume {name}" for name, volume in volumes if set(volume) - RESTRICTED_VOLUMES]
    for _, container in template.containers():
        context = container.get("securityContext") or {}
        name = container["name"]
        if not context.get("runAsNonRoot", shared.get("runAsNonRoot")):
            faults.append(f"{name} without runAsNonRoot")
        if context.get("allowPrivilegeEscalation", True):
            faults.append(f"{name} without allowPrivilegeEscalation: false")
        capabilities = context.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or []):
            faults.append(f"{name} does not drop ALL capabilities")
        faults += [f"{name} adds {one}" for one in capabilities.get("add") or [] if one != "NET_BIND_SERVICE"]
        faults += [f"{name} runs as user 0"] * (context.get("runAsUser", shared.get("runAsUser")) == 0)
        profile = context.get("seccompProfile") or shared.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            faults.append(f"{name} without seccompProfile RuntimeDefault")
    return faults


@rule("secret-literal")
def secret_literal(subject: Subject) -> Iterator[Verdict]:
    for item in subject.objects:
        if "sops" in item:
            continue
        seen: set[str] = set()
        for path, text in texts(_with_decoded_data(item)):
            file = item.get("kind") == "ConfigMap" and path.startswith("data.")
            for secret in secret_patterns.find(text, examples=not file):
                value = text[secret.start : secret.end]
                if value not in seen:
                    seen.add(value)
                    yield _leak(item, path, secret.kind, value)
    for template in subject.templates:
        for path, container in template.containers():
            leaks = [leak for leak in _named_secrets(container) if not secret_patterns.find(leak[1])]
            for where, value, what in leaks:
                yield _leak(template.item, f"{path}.{where}", what, value)
            if not leaks:
                yield good(Place(template.object, path), "no variable or option contains a secret")


def _leak(item: Object, path: str, what: str, value: str) -> Verdict:
    hidden = f"{value[:4]}... ({len(value)} characters)"
    return bad(Place(title(item), path, hidden), f"{what} in plain text", "a Secret, named by secretKeyRef")


def _named_secrets(container: Object) -> Iterator[tuple[str, str, str]]:
    """Yield path, value and description of each variable and option whose name says secret."""
    for entry in container.get("env") or []:
        name, value = entry["name"], entry.get("value") or ""
        if secret_patterns.is_secret_name(name) and _may_be_secret(value):
            yield f"env[{name}].value", value, f"the value of {name}"
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    for word, following in itertools.pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option.startswith("-") and secret_patterns.is_secret_name(option.strip("-").replace("-", "_")):
            value = value if equals else "" if following.startswith("-") else following
            if _may_be_secret(value):
                yield "args", value, f"the value of {option}"


def _may_be_secret(value: str) -> bool:
    return len(value) > LONGEST_HARMLESS and not HARMLESS.match(value.strip())


def _with_decoded_data(item: Object) -> Object:
    if known_kind(item) != "Secret":
        return item
    given = {name: from_base64(text) or b"" for name, text in (item.get("data") or {}).items()}
    return item | {"data": {name: found.decode("utf-8", "replace") for name, found in given.items()}}


@rule("exposed")
def exposed(subject: Subject) -> Iterator[Verdict]:
    for item in subject.manifests.of_kind("Service"):
        spec = item.get("spec") or {}
        kind = spec.get("type", "ClusterIP")
        numbers = {port.get(key) for port in spec.get("ports") or [] for key in ("port", "targetPort")}
        number = next((number for number in UNAUTHENTICATED if number in numbers), None)
        if number is None:
            continue
        place = Place(title(item), "spec.type", kind)
        what = f"{UNAUTHENTICATED[number]} (port {number})"
        if kind in ("LoadBalancer", "NodePort"):
            yield bad(place, f"{what} is open to the outside", "type: ClusterIP, and port-forward")
        else:
            yield good(place, f"{what} is open inside the cluster only")


@rule("network-policy", each="training")
def network_policy_rule(subject: Subject, template: Template) -> Iterator[Verdict]:
    if template.nodes > 1:
        labels = labels_of(subject, template)
        there = [*subject.named("NetworkPolicy", template.namespace).values()]
        first = next(one for one in subject.templates_of(template.item) if one.training)
        if there or template is first:
            yield from _unfenced(template, labels, there)
        for direction in network_policy.PEERS:
            yield from _joined(template, labels, there, direction)


def _joined(template: Template, labels: dict[str, str], there: list[Object], direction: str) -> Iterator[Verdict]:
    """Yield whether the policies of one direction let the pods of a job reach each other."""
    policies = [item for item in there if network_policy.applies(item, direction, labels)]
    admitted = any(network_policy.admits(policy, direction, labels) for policy in policies)
    for policy in policies:
        place = Place(title(policy), f"spec.{direction.lower()}", template.object)
        if admitted:
            yield good(place, "the job's pods reach each other")
        else:
            summary = "no rule lets the job's pods reach each other on all ports"
            yield bad(place, summary, f"{network_policy.PEERS[direction]}: the job's own pods, without ports")


def _unfenced(template: Template, labels: dict[str, str], there: list[Object]) -> Iterator[Verdict]:
    """Yield how pods outside of the job's namespace could reach its pods."""
    place = Place(template.object, template.spec_path, output.count(template.nodes, "pod"))
    policies = [item for item in there if network_policy.applies(item, "Ingress", labels)]
    remedy = "a NetworkPolicy that admits only the job's own pods, such as base/pytorchjob/networkpolicy.yaml"
    if not policies and there:
        yield doubtful(place, "no NetworkPolicy of this manifest selects the pods: every pod reaches them", remedy)
    elif not policies:
        yield doubtful(place, "without a NetworkPolicy, every pod of the cluster reaches these pods", remedy)
    ports = template.trainer()[1].get("ports") or []
    named = {str(one["name"]): int(one["containerPort"]) for one in ports if "name" in one}
    for policy in policies:
        if network_policy.is_open(policy, DEFAULT_PORT, named):
            summary = f"every pod of the cluster reaches port {DEFAULT_PORT} of these pods"
            yield doubtful(Place(title(policy), "spec.ingress"), summary, remedy)


def labels_of(subject: Subject, template: Template) -> dict[str, str]:
    """Return the labels that the pods of a template share, with those that the controller adds."""
    job = subject.job_of(template)
    pods = [pod for pod in job.pods if pod.role == template.role.lower()] if job else []
    if not pods:  # their number is not known
        return {**(template.metadata.get("labels") or {}), **(template.workload.selector if template.workload else {})}
    return dict(set.intersection(*(set(pod.labels.items()) for pod in pods)))
