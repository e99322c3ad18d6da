"""The all-reduce test between a cell's pods: runs it, reads its log, and checks the measurements."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.cells import kustomize, locate
from tools.core import Say, State, UserError, Verdict, repo
from tools.facts.bandwidth import Measured, measured
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCE_LABEL, INSTANCES
from tools.job import submit
from tools.job.diagnosis.log_patterns import form
from tools.job.follow import follow
from tools.job.snapshot import lookup
from tools.job.snapshot.pod import template_specs
from tools.kube import Kubectl, Manifests, quantity, selectors
from tools.kube.manifests import parse
from tools.workload import Workload, kinds

ENOUGH = 0.8  # of the published bandwidth at the same message size
MIB = 2**20
# Rows of base/services/nccl-test/allreduce.py, of nccl-tests (2.10 to 2.17; an old one has no column `root`),
# and of nccom-test (Neuron 2.28).
_OURS = re.compile(r"^\s*(\d+)\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+(right|WRONG)$")
_NCCL = re.compile(
    r"^\s*+(?:\d++:\s*+)?(\d++)\s++\d++\s++[a-z]\w*+\s++[a-z]\w*+\s++(?:-?\d++\s++)?[\d.]+\s+[\d.]+\s+([\d.]+)\s+(\S+)(?:\s|$)"
)
_NCCOM = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+[\d.]+\s+[\d.]+\s+([\d.]+)$")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values : (\d+)")


@dataclass(frozen=True)
class Row:
    """The measurement at one message size: `size` in bytes, bus bandwidth `bus` in 10^9 bytes/s.

    `right` is whether every sum is right, None if they were not checked (nccl-tests without -c, nccom-test).
    """

    size: int
    bus: float
    right: bool | None


def rows(lines: list[str]) -> list[Row]:
    """Return the measurements in a log, by message size."""
    found = []
    for line in lines:
        text = re.sub(r"^\[\w+\]:", "", line).rstrip()
        if ours := _OURS.match(text):
            found.append(Row(int(ours[1]), float(ours[2]), ours[3] == "right"))
        elif nccl := _NCCL.match(text):
            wrong = nccl[3].isdigit() and int(nccl[3]) > 0
            found.append(Row(int(nccl[1]), float(nccl[2]), None if nccl[3] == "N/A" else not wrong))
        elif nccom := _NCCOM.match(text):
            found.append(Row(int(nccom[1]), float(nccom[2]), None))
    return sorted(found, key=lambda row: row.size)


def instances(job: Workload) -> list[str]:
    """Return the instance types that the job's node affinity allows."""
    values = selectors.allowed_values(template_specs(job)[0], INSTANCE_LABEL)
    return [name for name in dict.fromkeys(one.removeprefix(HYPERPOD_PREFIX) for one in values) if name in INSTANCES]


def manifests(cell: str) -> Manifests:
    """Return a cell with base/services/nccl-test above it; messages up to the largest published size."""
    path = locate.cell_path(cell)
    found = parse(kustomize.with_component(path, "base/services/nccl-test"), f"{repo.shown(path)} with nccl-test")
    largest = [one.size for name in instances(kinds.job_of(found)) for one in measured(name)]
    for spec in template_specs(kinds.job_of(found)) if largest else []:
        spec["containers"][0]["args"] += ["--largest", str(-(-max(largest) // MIB))]
    return found


def check_absent(kubectl: Kubectl, found: Manifests) -> None:
    """Raise UserError if a test of this name exists: it may be another user's."""
    job = kinds.job_of(found)
    if lookup.existing(kubectl, job) is not None:
        raise UserError(f"{job.name} exists already", f"kubectl delete {job.resource} {job.name}", 1)


def run(kubectl: Kubectl, found: Manifests, seconds: float, say: Say) -> list[str]:
    """Apply the test, wait for its end, and return the lines of all pods' logs.

    Raises UserError with the cause if it cannot run, and with exit code 3 after `seconds`.
    """
    job = kinds.job_of(found)
    name = job.name
    for warning in submit.dry_run(kubectl, found, replaced=False):
        say(warning)
    applied, _ = submit.apply(kubectl, found)
    uid = submit.uid_of(applied, job.item)
    say(f"{kubectl.namespace}/{name} ({uid}) is applied")
    last = follow(kubectl, job, uid, seconds, say, steps=False)
    summary = last.explanation.summary
    if not last.is_over and last.cause:
        raise UserError(f"{name} does not run: {last.cause.kind}: {summary}", last.cause.remedy, 1)
    if not last.is_over:
        raise UserError(f"{name} has not ended after {seconds:.0f} s: {summary}", code=3)
    lines: list[str] = []
    for pod in last.snapshot.pods:
        done = kubectl.run("logs", f"--container={pod.container_name}", "--tail=-1", names=[pod.name])
        lines += done.stdout.splitlines()
    return lines


def remove(kubectl: Kubectl, found: Manifests) -> None:
    """Delete all objects of the test."""
    kubectl.text("delete", "--ignore-not-found", "--filename=-", stdin=found.as_list())


def check(job: Workload, lines: list[str]) -> Iterator[Verdict]:
    """Yield the verdicts on a log: the sums, the network, and the bandwidth at its message size."""
    found = rows(lines)
    yield _sums(found, lines)
    several = job.replicas > 1
    if several and _limit(job, EFA) > 0:
        yield _network(lines)
    devices = {str(one.device_resource) for one in INSTANCES.values() if one.device_resource}
    if found and several and any(_limit(job, resource) > 0 for resource in devices):
        yield from _bandwidth(job, found)


def _verdict(name: str, state: State, summary: str, *evidence: str, remedy: str | None = None) -> Verdict:
    return Verdict(state, summary, list(evidence), remedy, {"check": name})


def _sums(found: list[Row], lines: list[str]) -> Verdict:
    bounds = [int(match[1]) for line in lines if (match := _OUT_OF_BOUNDS.search(line))]
    if not found:
        last = [line for line in lines if line.strip()][-3:]
        remedy = "yard job why JOB, or read the whole log: kubectl logs"
        return _verdict("sums", State.CANNOT_TELL, "the log has no measurement", *last, remedy=remedy)
    wrong = [row.size for row in found if row.right is False]
    if wrong or any(bounds):
        remedy = "do not train on these machines: check them with yard job devices, replace them one by one"
        sizes = ", ".join(f"{size:,}" for size in wrong) or "some"
        return _verdict("sums", State.FAIL, f"wrong sums at {sizes} bytes", remedy=remedy)
    if all(row.right is None for row in found):
        remedy = "nccl-tests checks them with -c 1, nccom-test with --check"
        return _verdict("sums", State.CANNOT_TELL, "the sums were not checked", remedy=remedy)
    return _verdict("sums", State.PASS, f"all sums are right, {len(found)} sizes to {found[-1].size:,} bytes")


def _limit(job: Workload, resource: str) -> int:
    resources = template_specs(job)[0]["containers"][0].get("resources") or {}
    return int(quantity.amount((resources.get("limits") or {}).get(resource, 0)) or 0)


def _network(lines: list[str]) -> Verdict:
    efa = next((line.strip() for line in lines if form("ofi").search(line)), None)
    tcp = next((line.strip() for line in lines if form("socket").search(line)), None)
    if efa:
        return _verdict("network", State.PASS, "NCCL uses EFA", efa)
    if tcp:
        remedy = "the image lacks the EFA plugin, or the pod its resource (NCCL_NET_PLUGIN=ofi: an error)"
        return _verdict("network", State.FAIL, "NCCL uses TCP instead of EFA", tcp, remedy=remedy)
    return _verdict("network", State.CANNOT_TELL, "no line names the network that NCCL uses")


def _bandwidth(job: Workload, found: list[Row]) -> Iterator[Verdict]:
    names, count = instances(job), job.replicas
    known = [one for name in names for one in measured(name)]
    if not known:
        where = ", ".join(names) or "these machines"
        best = f"{found[-1].bus:.2f} GB/s at {found[-1].size:,} bytes"
        rates = [f"{name}: {INSTANCES[name].network_mbps / 8000:,.1f} GB/s to the network" for name in names]
        line = f"no published measurement of {where} to compare {best} with"
        yield _verdict("bandwidth", State.CANNOT_TELL, line, *rates)
    for one in [one for one in known if one.nodes == count] or known:
        yield _compared(one, count, found)


def _compared(one: Measured, count: int, found: list[Row]) -> Verdict:
    """Compare the smallest message that is at least as large as the published one."""
    row = next((row for row in found if row.size >= one.size), None)
    source = f"{one.bus:.0f} GB/s at {one.size:,} bytes with {one.nodes} x {one.instance}: {one.source}"
    if row is None:
        largest = f"the largest message has {found[-1].size:,} bytes"
        return _verdict("bandwidth", State.CANNOT_TELL, f"{largest}: too small to compare", source)
    said = f"{row.bus:.2f} GB/s at {row.size:,} bytes, {row.bus / one.bus:.0%} of the published bandwidth"
    if row.bus >= ENOUGH * one.bus:
        return _verdict("bandwidth", State.PASS, said, source)
    if count != one.nodes:
        return _verdict("bandwidth", State.CANNOT_TELL, f"{said}, but with {count} machines", source)
    remedy = "run it on pairs of the machines to find the slow one; check that the pod has all EFA interfaces"
    return _verdict("bandwidth", State.FAIL, said, source, remedy=remedy)
