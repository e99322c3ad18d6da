"""The all-reduce test between a cell's own pods: what is applied, what its log says, what that is worth."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.cells import kustomize, locate
from tools.cells.instance_patch import INSTANCE_LABEL
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.facts.bandwidth import Measured, measured
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES
from tools.job import submit
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.explain import Answer, explain
from tools.job.diagnosis.performance import OFI, SOCKET
from tools.job.snapshot.collect import collect
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, Object, name_of, parse
from tools.kube.quantity import amount

ENOUGH = 0.8  # of what was measured elsewhere, at the same message size
MIB = 2**20
# Rows of base/services/nccl-test/allreduce.py, of nccl-tests (2.10 to 2.17; an old one has no column `root`),
# and of nccom-test (Neuron 2.28).
_OURS = re.compile(r"^\s*(\d+)\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+(right|WRONG)$")
_NCCL = re.compile(
    r"^\s*(?:\d+:)?\s*(\d+)\s+\d+\s+[a-z]\w*\s+[a-z]\w*\s+(?:-?\d+\s+)?[\d.]+\s+[\d.]+\s+([\d.]+)\s+(\S+)(?:\s|$)"
)
_NCCOM = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+[\d.]+\s+[\d.]+\s+([\d.]+)$")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values : (\d+)")


@dataclass(frozen=True)
class Row:
    """One message size in bytes, its bus bandwidth in 10^9 bytes/s, and whether every sum was right.

    `right` is None where the sums were not looked at: nccl-tests without -c, nccom-test.
    """

    size: int
    bus: float
    right: bool | None


def rows(lines: list[str]) -> list[Row]:
    """Return the measurements in a log, by message size."""
    found = []
    for line in lines:
        text = re.sub(r"^\[\w+\]:", "", line).rstrip()
        if own := _OURS.match(text):
            found.append(Row(int(own[1]), float(own[2]), own[3] == "right"))
        elif nccl := _NCCL.match(text):
            wrong = nccl[3].isdigit() and int(nccl[3]) > 0
            found.append(Row(int(nccl[1]), float(nccl[2]), None if nccl[3] == "N/A" else not wrong))
        elif nccom := _NCCOM.match(text):
            found.append(Row(int(nccom[1]), float(nccom[2]), None))
    return sorted(found, key=lambda row: row.size)


def instances(job: Object) -> list[str]:
    """Return the instance types that the job's pods may be on, by their affinity."""
    spec = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))["template"]["spec"]
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    values = [
        str(value).removeprefix(HYPERPOD_PREFIX)
        for term in required.get("nodeSelectorTerms") or []
        for one in term.get("matchExpressions") or []
        if one["key"] == INSTANCE_LABEL and one["operator"] == "In"
        for value in one.get("values") or []
    ]
    return [name for name in dict.fromkeys(values) if name in INSTANCES]


def pods(job: Object) -> int:
    """Return how many pods the job has."""
    return sum(int(one.get("replicas") or 1) for one in job["spec"]["pytorchReplicaSpecs"].values())


def manifests(cell: str) -> Manifests:
    """Return a cell with base/services/nccl-test above it; messages as large as the largest measured one."""
    path = locate.cell_path(cell)
    renderer = kustomize.ensure(repo.root(), output.note)
    cache = repo.root() / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nccl-test-", dir=cache) as directory:
        above = {
            "resources": [os.path.relpath(path, directory)],
            "components": [os.path.relpath(repo.root() / "base/services/nccl-test", directory)],
        }
        (Path(directory) / "kustomization.yaml").write_text(json.dumps(above), encoding="utf-8")
        found = parse(renderer.build(Path(directory)), f"{repo.shown(path)} with nccl-test")
    largest = [one.size for name in instances(found.job()) for one in measured(name)]
    if largest:
        for replica in found.job()["spec"]["pytorchReplicaSpecs"].values():
            arguments = replica["template"]["spec"]["containers"][0]["args"]
            arguments += ["--largest", str(-(-max(largest) // MIB))]
    return found


def check_absent(kubectl: Kubectl, found: Manifests) -> None:
    """Raise UserError where a test of this name is there: it is somebody's, and stays."""
    name = name_of(found.job())
    if submit.existing(kubectl, name) is not None:
        raise UserError(f"{name} is there already", f"kubectl delete pytorchjob {name}", 1)


def run(kubectl: Kubectl, found: Manifests, seconds: float, say: Callable[[str], None]) -> list[str]:
    """Apply the test, wait for its end, and return the lines of all its pods' logs.

    UserError where it does not come to an end: with the cause as `why` names it, or after `seconds`.
    """
    name = name_of(found.job())
    for warning in submit.try_out(kubectl, found, replaced=False):
        say(warning)
    applied, _ = submit.apply(kubectl, found)
    uid = next(one.uid for one in applied if one.kind == "PyTorchJob")
    say(f"{kubectl.namespace}/{name} ({uid}) is applied")
    seen = _wait(kubectl, name, seconds, say)
    return [line for pod in seen.pods for line in _log(kubectl, pod)]


def _wait(kubectl: Kubectl, name: str, seconds: float, say: Callable[[str], None]) -> Snapshot:
    began, shown = time.monotonic(), ""
    cause: tuple[str, float] | None = None
    while True:
        seen = collect(kubectl, name, run=False)
        if is_over(seen):
            return seen
        found = explain(seen)
        kind = found.causes[0].kind if found.state is Answer.CAUSE else None
        if kind is None or cause is None or cause[0] != kind:
            cause = (kind, time.monotonic()) if kind else None
        elif time.monotonic() - cause[1] > submit.STANDS:
            raise UserError(f"{name} does not run: {kind}: {found.summary}", found.causes[0].remedy, 1)
        words = re.sub(r"\d+", "", found.summary)
        if words != shown:
            shown = words
            say(found.summary)
        if time.monotonic() - began > seconds:
            raise UserError(f"{name} has not ended after {seconds:.0f} s: {found.summary}", code=3)
        time.sleep(submit.EVERY)


def _log(kubectl: Kubectl, pod: JobPod) -> list[str]:
    done = kubectl.run("logs", pod.name, f"--container={pod.container_name}", "--tail=-1")
    return done.stdout.splitlines()


def remove(kubectl: Kubectl, found: Manifests) -> None:
    """Delete everything that the test has brought."""
    kubectl.text("delete", "--ignore-not-found", "--filename=-", stdin=submit.text_of(found))


def judge(job: Object, lines: list[str]) -> Iterator[Verdict]:
    """Yield what the log is worth: the sums, the network, and the bandwidth at its message size."""
    found = rows(lines)
    yield _sums(found, lines)
    several = pods(job) > 1
    if several and _asks_efa(job):
        yield _network(lines)
    if found and several and _accelerated(job):
        yield from _bandwidth(job, found)


def _verdict(name: str, state: State, summary: str, *evidence: str, remedy: str | None = None) -> Verdict:
    return Verdict(state, summary, list(evidence), remedy, {"check": name})


def _sums(found: list[Row], lines: list[str]) -> Verdict:
    bounds = [int(match[1]) for line in lines if (match := _OUT_OF_BOUNDS.search(line))]
    if not found:
        last = [line for line in lines if line.strip()][-3:]
        remedy = "yard job why JOB, or the whole log: kubectl logs"
        return _verdict("sums", State.CANNOT_TELL, "the log holds no measurement", *last, remedy=remedy)
    wrong = [row.size for row in found if row.right is False]
    if wrong or any(bounds):
        remedy = "do not train on these machines: yard job devices; exchange them one by one"
        sizes = ", ".join(f"{size:,}" for size in wrong) or "some"
        return _verdict("sums", State.FAIL, f"wrong sums at {sizes} bytes", remedy=remedy)
    if all(row.right is None for row in found):
        remedy = "nccl-tests looks at them with -c 1, nccom-test with --check"
        return _verdict("sums", State.CANNOT_TELL, "the sums were not looked at", remedy=remedy)
    return _verdict("sums", State.PASS, f"all sums are right, {len(found)} sizes to {found[-1].size:,} bytes")


def _asks_efa(job: Object) -> bool:
    return _limit(job, EFA) > 0


def _accelerated(job: Object) -> bool:
    return any(_limit(job, str(one.device_resource)) > 0 for one in INSTANCES.values() if one.device_resource)


def _limit(job: Object, resource: str) -> int:
    spec = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))["template"]["spec"]
    limits = ((spec["containers"][0].get("resources") or {}).get("limits")) or {}
    return int(amount(limits.get(resource, 0)) or 0)


def _network(lines: list[str]) -> Verdict:
    efa = next((line for line in lines if OFI.search(line)), None)
    tcp = next((line for line in lines if SOCKET.search(line)), None)
    if efa:
        return _verdict("network", State.PASS, "NCCL goes over EFA", efa.strip())
    if tcp:
        remedy = "the image lacks the EFA plugin, or the pod its resource (NCCL_NET_PLUGIN=ofi: an error)"
        return _verdict(
            "network", State.FAIL, "NCCL goes over TCP and not over EFA", tcp.strip(), remedy=remedy
        )
    return _verdict("network", State.CANNOT_TELL, "no line says which network NCCL has found")


def _bandwidth(job: Object, found: list[Row]) -> Iterator[Verdict]:
    names, count = instances(job), pods(job)
    best = f"{found[-1].bus:.2f} GB/s at {found[-1].size:,} bytes"
    known = [one for name in names for one in measured(name)]
    if not known:
        where = ", ".join(names) or "these machines"
        line = f"nothing that was measured with {where} is known to hold {best} against"
        rates = [f"{name}: {INSTANCES[name].network_mbps / 8000:,.1f} GB/s to the network" for name in names]
        yield _verdict("bandwidth", State.CANNOT_TELL, line, *rates)
    for one in [one for one in known if one.nodes == count] or known:
        yield _against(one, count, found)


def _against(one: Measured, count: int, found: list[Row]) -> Verdict:
    """Judge one measurement: the smallest message that is no smaller must come near it."""
    row = next((row for row in found if row.size >= one.size), None)
    source = f"{one.bus:.0f} GB/s at {one.size:,} bytes with {one.nodes} x {one.instance}: {one.source}"
    if row is None:
        largest = f"the largest message has {found[-1].size:,} bytes"
        return _verdict("bandwidth", State.CANNOT_TELL, f"{largest}: too small to compare", source)
    said = f"{row.bus:.2f} GB/s at {row.size:,} bytes, {row.bus / one.bus:.0%} of what was measured"
    if row.bus >= ENOUGH * one.bus:
        return _verdict("bandwidth", State.PASS, said, source)
    if count != one.nodes:
        return _verdict("bandwidth", State.CANNOT_TELL, f"{said}, but with {count} machines", source)
    remedy = "run it on pairs of the machines to find the slow one; are all EFA interfaces in the pod?"
    return _verdict("bandwidth", State.FAIL, said, source, remedy=remedy)
