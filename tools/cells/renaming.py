"""New names for the objects of a job: the end that the user gives, and the hash of a changed ConfigMap.

The result is what kustomize makes of the same directory with a nameSuffix, so that a run in git and a run
that is submitted have the same names. Claims and ServiceAccounts keep theirs: data outlives a run, and rights
are granted to a ServiceAccount by its name.
"""

import contextlib
import hashlib
import json
import re
from typing import Any

from tools.core.command_line import LABEL, LONGEST_LABEL
from tools.core.errors import UserError
from tools.core.nested import mapped
from tools.kube.manifests import Manifests, Object, name_of
from tools.workload import ControllerFault, PodsUnknown, Workload, kinds
from tools.workload.operator_admission import DNS_1035

Names = dict[tuple[str, str], str]  # by kind and old name
# Kinds of a job's own objects.
OWN = ("ConfigMap", "Secret", "Service", "NetworkPolicy", "PodDisruptionBudget", "TrainingRuntime")
# Keys of a pod or a job whose value, or whose value's `name` or `secretName`, is the name of an object.
REFERENCES = {
    **dict.fromkeys(("configMap", "configMapRef", "configMapKeyRef"), "ConfigMap"),
    **dict.fromkeys(("secret", "secretRef", "secretKeyRef"), "Secret"),
    "subdomain": "Service",
    "runtimeRef": "TrainingRuntime",
}
JOB_LABELS = {kind.job_label for kind in kinds.KINDS} | {"job-name"}
# What names a run's directory, which may be named after the job: a path on a volume, and a variable's value.
RUN_PATHS, RUN = {"subPath", "value"}, "TRAINYARD_RUN"
HASH = re.compile(r"(.+)-([ghk2456789mbcdtf]{10})")
HASH_LETTERS = str.maketrans("013ae", "ghkmt")


def generated(manifests: Manifests) -> Names:
    """Return the ConfigMaps and Secrets whose names end with kustomize's hash, with their names before it."""
    found = {}
    for item in manifests.objects:
        parts = HASH.fullmatch(name_of(item)) if item.get("kind") in ("ConfigMap", "Secret") else None
        with contextlib.suppress(TypeError):  # kustomize makes no keys that are not texts
            if parts and _hash(item) == parts[2]:
                found[str(item["kind"]), name_of(item)] = parts[1]
    return found


def rename(manifests: Manifests, stems: Names, name: str | None) -> None:
    """Give the objects of a job's manifests the names that fit their content and the user's `name`.

    `stems` are the generated names before the content changed. Raises UserError for a `name` that makes no
    valid name of the job or of its pods.
    """
    end = "" if name is None else f"-{name}"
    if name is not None and not LABEL.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
        hint = f"--name {near}" if near else None
        raise UserError(f"--name {name[:80]!r}: lower-case letters, digits and dashes are needed", hint)
    job = kinds.job_of(manifests)
    hosts = _hosts(job) if end else []
    names: Names = {}
    for item in manifests.objects:
        key = (str(item.get("kind")), name_of(item))
        if key in stems:
            names[key] = f"{stems[key]}{end}-{_hash(item)}"
        elif end and key[0] in OWN:
            names[key] = key[1] + end
    if end:
        for whole in (job.title, job.wrapper):
            kind, _, old = whole.partition("/")
            names[kind, old] = old + end
    names = {key: new for key, new in names.items() if key[1] != new}
    _write_names(manifests.objects, names, job.name, job.name + end)
    if end:
        _check(manifests, str(name))
        services = {old: new for (kind, old), new in names.items() if kind == "Service"}
        new_hosts = _hosts(kinds.job_of(manifests))
        pairs = dict(zip(hosts, new_hosts, strict=True)) if len(hosts) == len(new_hosts) else {}
        write_hosts(manifests.objects, pairs, services)


def _hash(item: Object) -> str:
    """Return kustomize's hash of a ConfigMap or a Secret, which depends on the content only.

    Follows github.com/kubernetes-sigs/kustomize v5.8.1, api/hasher/hasher.go: SHA-256 of Go's JSON.
    """
    kind = item["kind"]
    held: Object = {"kind": kind, "name": "", "data": item.get("data") or ""}
    if kind == "Secret":
        held["type"] = item.get("type") or ""
        held |= {"stringData": item["stringData"]} if item.get("stringData") else {}
    elif item.get("binaryData"):
        held["binaryData"] = item["binaryData"]
    text = json.dumps(held, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return hashlib.sha256(text.encode()).hexdigest()[:10].translate(HASH_LETTERS)


def _write_names(node: Any, names: Names, old_job: str, new_job: str) -> None:
    """Write new names into objects and into all that refer to them."""
    for value in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        _write_names(value, names, old_job, new_job)
    if not isinstance(node, dict):
        return
    metadata = node.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
        metadata["name"] = names.get((str(node.get("kind")), metadata["name"]), metadata["name"])
    for key, kind in REFERENCES.items():
        value = node.get(key)
        if isinstance(value, str):
            node[key] = names.get((kind, value), value)
        if isinstance(value, dict):
            named = {field: value[field] for field in ("name", "secretName") if field in value}
            value.update({field: names.get((kind, str(old)), old) for field, old in named.items()})
    if isinstance(node.get("name"), str) and isinstance(node.get("value"), str):  # a variable
        node["value"] = names.get(("Service", node["value"]), node["value"])
    for key in RUN_PATHS & set(node) if old_job != new_job else ():
        if isinstance(node[key], str) and (key != "value" or node.get("name") == RUN):
            parts = node[key].split("/")
            node[key] = "/".join(new_job if part == old_job else part for part in parts)
    for key in JOB_LABELS & set(node):
        if node[key] == old_job:
            node[key] = new_job


def _check(manifests: Manifests, name: str) -> None:
    """Raise UserError where the job or one of its pods would have a name that Kubernetes refuses."""
    job = kinds.job_of(manifests)
    if not DNS_1035.fullmatch(job.name):
        raise UserError(f"--name {name}: {job.name} cannot be the name of a job (DNS-1035)")
    longest = max((job.name, *(host.partition(".")[0] for host in _hosts(job))), key=len)
    if len(longest) > LONGEST_LABEL:
        room = len(name) - (len(longest) - LONGEST_LABEL)
        raise UserError(
            f"--name {name}: {longest} has {len(longest)} characters, a pod's name has at most {LONGEST_LABEL}",
            f"NAME may have {room} characters" if room > 0 else "the job's own name leaves no room",
        )


def _hosts(job: Workload) -> list[str]:
    """Return the host names of a job's pods; none where they are unknown."""
    try:
        return [host for pod in job.pods() for host in pod.hosts]
    except (PodsUnknown, ControllerFault):
        return []


def write_hosts(objects: list[Object], hosts: dict[str, str], services: dict[str, str]) -> None:
    """Replace the host names of a job's pods and Services, by the old ones, in commands, variables and scripts."""
    pods = "|".join(re.escape(one) for one in sorted(hosts, key=len, reverse=True))
    serving = "|".join(re.escape(one) for one in sorted(services, key=len, reverse=True))
    parts = [rf"(?:{pods})(?![\w-])"] if pods else []
    parts += [rf"(?:{serving})(?=:\d+\b|\.[a-z0-9-]+\.svc\b)"] if serving else []
    if not parts:
        return
    pattern = re.compile(rf"(?:(?<![\w./-])|(?<=//))(?:{'|'.join(parts)})")
    new = {**services, **hosts}
    for item in objects:
        for key in ("spec", "data"):
            if key in item:
                item[key] = mapped(item[key], lambda text: pattern.sub(lambda one: new[one[0]], text))
