"""What pods, or ranks on this machine, have: environment, packages, torch's build, devices, mounts, limits, kernel."""

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.core import UserError
from tools.job import runs
from tools.job.ranks import pod_of, spans
from tools.job.snapshot import JobPod, collect
from tools.job.snapshot.pod_exec import in_pod
from tools.kube import Kubectl
from tools.kube.kubectl import each
from training.remote import pod_env
from training.run import heartbeat
from training.run.directory import RunDir
from training.run.heartbeat import Beat

Env = dict[str, dict[str, str]]  # values by section and name
# Variables that differ between the pods of one job by their meaning, and fields of a pod that make others so.
OWN = frozenset(("HOSTNAME", "RANK", "NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX"))
_OWN_FIELDS = {
    "metadata.name", "metadata.uid", "spec.nodeName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"
}  # fmt: skip
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# What differs on every node: the devices of a pod, its layers, its NFS client, directories of the kubelet.
_OWN_TEXT = {
    "environment": re.compile(f"(?:GPU|MIG)-{_UUID}"),
    "mounts": re.compile(f"(?:lowerdir|upperdir|workdir|clientaddr)=[^,]*|{_UUID}"),
}
PROGRAM = Path(pod_env.__file__)
SECONDS = 60


@dataclass(frozen=True)
class Found:
    """What was asked for of one job: by the name of a pod or rank what it has, or why that is unknown."""

    job: str
    envs: dict[str, Env | str]
    where: dict[str, str]
    """What is printed in place of a name."""
    own: frozenset[str] = OWN
    """Variables that are each pod's own."""


def of_job(kubectl: Kubectl, job: str | None, ranks: Sequence[int | None] | None, salt: str) -> Found:
    """Ask the pods of these ranks (None: the first pod), or all; a run on this machine has ranks in place of pods.

    Answers with the same `salt` can be compared.
    """
    if job and (local := runs.local(job)):
        if len(local) > 1:
            raise UserError(f"{job}: {len(local)} runs are there", f"runs: {', '.join(one.name for one in local)}")
        return _of_run(RunDir(local[0]), ranks, salt)
    here, seen = collect.find(kubectl, job, logs=False, run=ranks is not None and ranks != [None])
    if not seen.pods:
        raise UserError(f"{seen.name} has no pods", code=3)
    pods = seen.pods if ranks is None else [seen.pods[0] if one is None else pod_of(seen, one) for one in ranks]
    envs = dict(zip((pod.name for pod in pods), each(lambda pod: _in_pod(here, pod, salt), pods), strict=True))
    return Found(seen.name, envs, {pod.name: f"{pod.short} on {pod.node}" for pod in pods}, OWN.union(*map(_own, pods)))


def _own(pod: JobPod) -> set[str]:
    """Return the variables that a pod's manifest fills with what is the pod's own."""
    entries = (entry for container in pod.spec["containers"] for entry in container.get("env") or [])
    fields = ((one["name"], ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")) for one in entries)
    return {name for name, field in fields if field in _OWN_FIELDS}


def _in_pod(kubectl: Kubectl, pod: JobPod, salt: str) -> Env | str:
    if not pod.running:
        return f"it does not run ({pod.phase})"
    try:
        return _read(in_pod(kubectl, pod, "python3", "-", salt, stdin=PROGRAM.read_text(encoding="utf-8")))
    except UserError as problem:
        return problem.message


def _of_run(run: RunDir, ranks: Sequence[int | None] | None, salt: str) -> Found:
    """Ask for the processes of a run on this machine, by its heartbeats."""
    numbers = [path.stem.removeprefix("rank-") for path in run.heartbeat.glob("rank-*.json")]
    beats = {int(one): heartbeat.read(heartbeat.path_of(run.heartbeat, int(one))) for one in numbers if one.isdecimal()}
    if not any(beats.values()):
        raise UserError(f"{run.path}: no rank has written a heartbeat", code=3)
    wanted = sorted(beats) if ranks is None else [one or 0 for one in ranks]
    if unknown := [one for one in wanted if one not in beats]:
        raise UserError(f"{run.path.name} has no rank {unknown[0]}", f"ranks: {spans(sorted(beats))}")
    envs = {f"{run.path.name} rank {rank}": _of_rank(beats[rank], run, salt) for rank in wanted}
    return Found(run.path.name, envs, {name: name for name in envs})


def _of_rank(beat: Beat | None, run: RunDir, salt: str) -> Env | str:
    """Ask for one process. Its number is from a file, so the process must say itself that it is this rank."""
    if beat is None:
        return "its heartbeat cannot be read"
    command = [sys.executable, str(PROGRAM), salt, str(beat.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    found = _read(done.stdout)
    own = found.get("environment", {}) if isinstance(found, dict) else {}
    # A forked rank has the environment of the process that forked it: the pod's start and the run, no rank.
    same = own["RANK"] == str(beat.rank) if "RANK" in own else own.get(heartbeat.ATTEMPT, "") == beat.attempt != ""
    if not same or Path(own.get("TRAINYARD_RUN", "")).resolve() != run.path.resolve():
        return f"it does not run (process {beat.pid} is not this rank)"
    return found


def _read(answer: str) -> Env | str:
    try:
        return checked(json.loads(answer))
    except (ValueError, RecursionError):
        return "its answer is not that of the program"


def new_salt() -> str:
    return secrets.token_hex(16)


def checked(answer: object) -> Env:
    """Return the answer of the program; ValueError for another one, because whoever made the image wrote it."""
    if not isinstance(answer, dict) or not all(isinstance(section, dict) for section in answer.values()):
        raise ValueError("sections are needed")
    return {str(name): {str(key): str(value) for key, value in section.items()} for name, section in answer.items()}


def differences(found: Mapping[str, Env], own: frozenset[str] = OWN) -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Yield section, name, and the pods of each value, for what differs between pods.

    A pod's own name in a value, its `own` variables, and what differs on every node do not count as differences.
    """
    names = {(section, name) for env in found.values() for section, values in env.items() for name in values}
    for section, name in sorted(names):
        if section == "environment" and name in own:
            continue
        values: dict[str, list[str]] = {}
        for pod, env in found.items():
            value = env.get(section, {}).get(name, "(missing)").replace(pod, "(this pod)")
            if section in _OWN_TEXT:
                value = _OWN_TEXT[section].sub("(its own)", value)
            values.setdefault(value, []).append(pod)
        if len(values) > 1:
            yield section, name, values
