"""The bad manifests of preflight's corpus, given to a real API server and operator.

Most are admitted: that is why preflight exists. For each of these the test finds out what happens next on a
cluster with free machines of every type, and prints the table. kwok's nodes mount nothing and run nothing, so
"placed" says only that the machines are taken and paid for. Takes minutes: in `make test-cluster-all` alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cluster.api import KubectlError, Object
from tests.cluster.kube import Kube, condition, shared_claim
from tests.cluster.machines import fake_node
from tests.parts.gomodule import Progress
from tests.preflight.headers import header
from tools.core import repo
from tools.core.nested import mappings
from tools.facts.instances import instance

pytestmark = pytest.mark.cluster_all
# Kinds of controllers that this cluster does not have.
FOREIGN = re.compile(r"^apiVersion: (trainer\.kubeflow\.org|batch\.volcano\.sh)/", re.MULTILINE)
BAD = [
    path
    for path in sorted((repo.root() / "tests/preflight/corpus/bad").glob("*.yaml"))
    if not FOREIGN.search(path.read_text(encoding="utf-8"))
]
SHARED = ("default", "kubeflow")  # all other namespaces of a file are its own here
CLAIM = re.compile(r"[a-z0-9.-]+")  # a blank of a template is no name that a server admits
SETTLED_SECONDS = 300
# Machines of the types that the corpus names, more of each than all of its pods need.
MACHINES = {"p5.48xlarge": 160, "p5en.48xlarge": 12, "trn1.32xlarge": 20, "g5.12xlarge": 16, "g5.2xlarge": 8}
MACHINES |= {"g5.8xlarge": 80, "m5.12xlarge": 60, "m5.2xlarge": 8}
# The rules whose examples the API server or the webhook refuses by itself.
SERVER_RULES = {"admission", "api-version", "enums", "env-twice", "names", "quantities", "schema", "types", "volumes"}
NOWHERE = ("", "")
REFUSED, NO_PODS, WAITS, PLACED, NO_JOB = "refused", "no pods", "waits", "placed", "no job"


@dataclass(frozen=True)
class Fate:
    """The result of one bad manifest on the cluster, in the cluster's words."""

    name: str
    rule: str
    also: set[str]
    fate: str
    words: str


@pytest.fixture(scope="module")
def fates(kube: Kube, fake: None, say: Progress) -> Iterator[dict[str, Fate]]:
    """Every bad manifest applied in its own namespace, with the result."""
    namespaces = {path.stem: f"t-c-{number}" for number, path in enumerate(BAD)}
    try:
        yield _fates(kube, namespaces, say)
    finally:  # other modules expect the cluster without these machines
        for name in SHARED:
            kube.call("delete", "pytorchjobs", "--all", f"--namespace={name}", "--wait=false")
        for name in namespaces.values():
            kube.delete_namespace(name)
        kube.call("delete", "nodes", "--selector=trainyard-test=kwok-corpus", "--wait=false")


def _fates(kube: Kube, namespaces: dict[str, str], say: Progress) -> dict[str, Fate]:
    kube.put(_machines())
    kube.put([_namespace(name) for name in namespaces.values()])
    kube.wait("machines without taints", lambda: not any(map(_tainted, kube.list("nodes"))), 120)
    refusals = {path.stem: _apply(kube, path, namespaces[path.stem]) for path in BAD}
    admitted = {path.stem: _job(path, namespaces[path.stem]) for path in BAD if not refusals[path.stem]}
    kube.wait("the fate of every job", lambda: len(_settled(kube, admitted)) == len(admitted), SETTLED_SECONDS)
    settled = {name: (REFUSED, words) for name, words in refusals.items() if words} | _settled(kube, admitted)
    rules = {path.stem: header(path)[1:] for path in BAD}
    found = {name: Fate(name, *rules[name], *fate) for name, fate in settled.items()}
    for one in sorted(found.values(), key=lambda one: (one.fate, one.rule)):
        say(f"{one.fate:8} {one.rule:24} {one.name:32} {one.words[:90]}")
    return found


def test_every_bad_manifest_has_a_fate(fates: dict[str, Fate]) -> None:
    assert len(fates) == len(BAD) > 100
    count = Counter(one.fate for one in fates.values())
    assert set(count) <= {REFUSED, NO_PODS, WAITS, PLACED, NO_JOB}
    # What preflight refuses and the server lets through, to fail later and dearer: most of it.
    assert count[REFUSED] < len(BAD) / 2
    assert count[PLACED] > len(BAD) / 4


def test_what_the_server_refuses_is_of_the_rules_that_say_so(fates: dict[str, Fate]) -> None:
    """A refusal for another reason would be an error in the corpus."""
    refused = [one for one in fates.values() if one.fate == REFUSED]
    assert not [one.name for one in refused if SERVER_RULES.isdisjoint({one.rule, *one.also})]


def _machines() -> list[Object]:
    """Return free machines without taints, the default of node groups."""
    nodes = [
        fake_node(instance(kind), f"{kind.replace('.', '-')}-c{number}", {"trainyard-test": "kwok-corpus"})
        for kind, count in MACHINES.items()
        for number in range(count)
    ]
    return [node | {"spec": {}} for node in nodes]


def _tainted(node: Object) -> bool:
    return bool((node.get("spec") or {}).get("taints"))


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _objects(path: Path, namespace: str) -> list[Object]:
    """Return the objects of a file, in a namespace of their own."""
    objects = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]
    for item in objects:
        if item["kind"] == "Namespace":
            item["metadata"]["name"] = namespace
        elif item["metadata"].get("namespace") not in SHARED:
            item["metadata"]["namespace"] = namespace
    return objects


def _job(path: Path, namespace: str) -> tuple[str, str] | None:
    """Return namespace and name of a file's PyTorchJob."""
    for item in _objects(path, namespace):
        if item["kind"] == "PyTorchJob":
            return str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
    return None


def _apply(kube: Kube, path: Path, namespace: str) -> str:
    """Apply a file with the claims that it expects. Return the server's refusal, or nothing."""
    objects = _objects(path, namespace)
    own = {item["metadata"]["name"] for item in objects if item["kind"] == "PersistentVolumeClaim"}
    wanted = {str(part["claimName"]) for item in objects for _, part in mappings(item, "") if "claimName" in part} - own
    job = _job(path, namespace)
    where = job[0] if job else namespace
    for name in filter(CLAIM.fullmatch, wanted):
        kube.put(shared_claim(where, name), where)
    try:
        kube.put(objects)
    except KubectlError as problem:
        return str(problem).splitlines()[-1]
    return ""


def _settled(kube: Kube, admitted: dict[str, tuple[str, str] | None]) -> dict[str, tuple[str, str]]:
    """Return the result of each admitted file, as far as it is known by now."""
    pods: dict[Any, list[Object]] = {}
    for pod in kube.list("pods"):
        metadata = pod["metadata"]
        job = (metadata.get("labels") or {}).get("training.kubeflow.org/job-name")
        pods.setdefault((metadata["namespace"], job), []).append(pod)
    warnings = {
        (event["metadata"]["namespace"], event["involvedObject"]["name"]): event["message"]
        for event in kube.list("events")
        if event["type"] == "Warning" and event["involvedObject"]["kind"] == "PyTorchJob"
    }
    jobs = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in kube.list("pytorchjobs")}
    known = {
        name: _fate(job, pods.get(job, []), warnings.get(job or NOWHERE), jobs.get(job or NOWHERE))
        for name, job in admitted.items()
    }
    return {name: fate for name, fate in known.items() if fate is not None}


def _fate(
    key: tuple[str, str] | None, pods: list[Object], warning: str | None, job: Object | None
) -> tuple[str, str] | None:
    if key is None:
        return NO_JOB, ""
    if not pods and warning:
        return NO_PODS, warning
    if not pods and condition(job or {}, "Suspended"):
        return NO_PODS, "suspended"
    if pods and all(pod["status"]["phase"] == "Running" for pod in pods):
        return PLACED, f"{len(pods)} pods"
    conditions = [one for pod in pods for one in pod["status"].get("conditions") or []]
    waits = [one["message"] for one in conditions if one.get("reason") == "Unschedulable"]
    return (WAITS, waits[0]) if waits else None
