"""A container's environment as the kubelet builds it.

Rules: pkg/kubelet/kubelet_pods.go (makeEnvironmentVariables) and third_party/forked/golang/expansion of
Kubernetes. `envFrom` comes first, then `env`, each in order. Of two entries with one name the last wins. A
`value` sees the entries before it. An unknown `$(NAME)` stays unchanged, and `$$` is a plain `$`.
"""

import math
import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from tools.core.errors import UserError
from tools.kube.manifests import Manifests, Object
from tools.kube.quantity import quantity
from tools.workload.pod import Pod

MACHINE = "127.0.0.1"
VARIABLE_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
LONGEST = 131_072  # characters of one value, as in Linux (MAX_ARG_STRLEN)
LARGEST = 2_097_152  # characters of all values; Linux counts a quarter of the stack, which is 8 MiB
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass
class Environment:
    """A container's variables in order, the names of secret ones, and required references that do not exist.

    `hidden` are variables whose values are outside of the manifest, with the reason, and `unread` is a ConfigMap
    outside of it that may set any other.
    """

    values: dict[str, str] = field(default_factory=dict)
    secret: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    hidden: dict[str, str] = field(default_factory=dict)
    unread: str = ""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_share(pods: int) -> int:
    """Return each pod's equal share of this machine's cores: at least one."""
    return max(1, cores() // pods)


def addresses(count: int) -> list[str]:
    """Return the addresses of `count` pods on this machine: one each where loopback has that many.

    torchrun numbers nodes by their addresses as texts, then by process ids. The addresses grow with the pod's
    index, so rank 0 is always in the first pod, also after that pod has restarted.
    """
    own = [f"127.0.{index // 100}.{100 + index % 100}" for index in range(count)]
    return own if all(_is_here(address) for address in own) else [MACHINE] * count


def _is_here(address: str) -> bool:
    with socket.socket() as server:
        try:
            server.bind((address, 0))
        except OSError:
            return False
    return True


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expand `$(NAME)` by Kubernetes' rules.

    Raises UserError for a result that is longer than Linux allows: values may double from one to the next.
    """
    length = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal length
        found = "$" if match[1] == "$" else values.get(match[2], match[0])
        length += len(found)
        if length > LONGEST:
            raise UserError(f"{text[:40]!r} expands to more than {LONGEST:,} characters, the limit of Linux")
        return found

    return REFERENCE.sub(replace, text)


def resolve(pod: Pod, container: Object, manifests: Manifests, share: int, address: str = MACHINE) -> Environment:
    """Return a container's environment. `share` is its pod's number of cores here, `address` its IP address."""
    result = Environment()
    for source in container.get("envFrom") or []:
        _add_source(result, source, pod, manifests)
    size = sum(map(len, result.values.values()))
    for entry in container.get("env") or []:
        _add_entry(result, entry, pod, container, manifests, share, address)
        size += len(result.values.get(entry["name"], ""))
        check_size(size)
    return result


def check_size(size: int) -> None:
    """Raise UserError for an environment of `size` characters that Linux would not start a process with."""
    if size > LARGEST:
        raise UserError(f"a container's variables have more than {LARGEST:,} characters, the limit of Linux")


def _add_source(result: Environment, source: Object, pod: Pod, manifests: Manifests) -> None:
    prefix = source.get("prefix") or ""
    for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if source.get(key) is None:
            continue
        found = manifests.texts(kind, source[key]["name"], pod.namespace)
        if found is None:
            _miss(result, f"{kind} {source[key]['name']}", source[key])
            if kind == "ConfigMap" and not prefix:  # a Secret holds no variables of launchers
                result.unread = f"ConfigMap {source[key]['name']}"
            continue
        named = {prefix + name: text for name, text in found.items() if VARIABLE_NAME.fullmatch(prefix + name)}
        result.values.update(named)
        if kind == "Secret":
            result.secret.update(named)


def _add_entry(
    result: Environment, entry: Object, pod: Pod, container: Object, manifests: Manifests, share: int, address: str
) -> None:
    name = entry["name"]
    source = entry.get("valueFrom")
    result.hidden.pop(name, None)
    if source is None:
        result.values[name] = expand(entry.get("value") or "", result.values)
        return
    if source.get("fieldRef") is not None:
        result.values[name] = _field(source["fieldRef"]["fieldPath"], pod, address)
        return
    if source.get("resourceFieldRef") is not None:
        result.values[name] = _resource(source["resourceFieldRef"], pod, container, share)
        return
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if source.get(key) is not None:
            _add_key(result, name, kind, source[key], pod, manifests)


def _add_key(result: Environment, name: str, kind: str, ref: Object, pod: Pod, manifests: Manifests) -> None:
    found = manifests.texts(kind, ref["name"], pod.namespace)
    if found is None:
        result.hidden[name] = f"it is in the {kind} {ref['name']}, which is not in the manifest"
    if found is None or ref["key"] not in found:
        _miss(result, f"{kind} {ref['name']} with key {ref['key']} (for {name})", ref)
        return
    result.values[name] = found[ref["key"]]
    if kind == "Secret":
        result.secret.add(name)


def _miss(result: Environment, what: str, ref: Object) -> None:
    if not ref.get("optional"):
        result.missing.append(what)


def _field(path: str, pod: Pod, address: str) -> str:
    subscript = SUBSCRIPT.fullmatch(path)
    if subscript:
        return (pod.labels if subscript[1] == "labels" else pod.annotations).get(subscript[2], "")
    known = {
        "metadata.name": pod.full_name,
        "metadata.namespace": pod.namespace,
        "spec.nodeName": socket.gethostname(),
        "metadata.uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{pod.name}.{pod.namespace}")),
        "spec.serviceAccountName": pod.spec.get("serviceAccountName") or "default",
        **dict.fromkeys(("status.hostIP", "status.hostIPs"), MACHINE),
        **dict.fromkeys(("status.podIP", "status.podIPs"), address),
    }
    if path not in known:
        raise UserError(f"pod {pod.name}: fieldRef {path} is not known", f"known: {', '.join(known)}")
    return known[path]


def _resource(ref: Object, pod: Pod, container: Object, share: int) -> str:
    """Return a resourceFieldRef, rounded up to its divisor. For cpu it is this machine's share."""
    what, _, resource = ref["resource"].partition(".")
    name = ref.get("containerName") or container.get("name")
    asked = next((item for item in pod.spec["containers"] if item.get("name") == name), None)
    if asked is None or what not in ("requests", "limits"):
        raise UserError(f"pod {pod.name}: resourceFieldRef {ref['resource']} of container {name} is not known")
    divisor = quantity(ref.get("divisor") or "1") or Decimal(1)
    if resource == "cpu":
        return str(math.ceil(share / divisor))
    resources = asked.get("resources") or {}
    given = (resources.get(what) or {}).get(resource) or (resources.get("limits") or {}).get(resource) or "0"
    amount = quantity(given)
    if not amount and ref["resource"] == "limits.memory":  # without a limit the kubelet gives what the node has
        amount = Decimal(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return str(math.ceil(amount / divisor))
