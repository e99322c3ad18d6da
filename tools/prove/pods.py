"""A job as the small job that proves it in a cluster: the same image, command, volumes and nodes, with the probe.

Process 1 of each pod is then the agent, which carries out the plan. What the script may write on volumes that survive
a pod is a directory of the proof's own, empty at first, so that the user's files are never changed.
"""

import base64
import copy
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tools.cells import kustomize
from tools.core import UserError
from tools.kube import Manifests, Object
from tools.kube.manifests import parse
from tools.prove import trials
from tools.prove.trials import Options, Subject
from tools.workload import PodsUnknown, Workload, kinds
from tools.workload.trainjob import TrainJob
from training.prove import plan as plans
from training.prove.plan import Plan

AGENT, OVERLAYS = "/trainyard-agent/agent.pyz", ("overlays/feature/agent", "overlays/images")
DIRECTORY, ON_VOLUME = "/trainyard-prove", ".trainyard-prove"
NPROC = "PET_NPROC_PER_NODE"  # the operator's variable for torchrun
RESTARTS = "PET_MAX_RESTARTS"
LOCALLY = "leave --submit out: yard prove then proves it on this machine"
DEVICES = ("nvidia.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore")
AROUND, EACH = 1800.0, 120.0  # seconds for all pods to meet and for the records to be fetched; to end each start
CHECKS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")  # of a pod that trains without a pause


@dataclass(frozen=True)
class Trial:
    """A job that carries out a plan: its objects, and the directory in its pods that they share."""

    manifests: Manifests
    plan: Plan
    notes: dict[str, str]
    subject: Subject
    directory: str


def trial(manifests: Manifests, options: Options) -> Trial:
    """Return the job that proves the one job of some manifests. Raises UserError where it cannot be proven so."""
    result = Manifests(manifests.source, copy.deepcopy(manifests.objects))
    job = kinds.job_of(result)
    job.check_shape()
    _check_written(job)
    directory = f"{DIRECTORY}/{job.name}"
    pairs = list(zip(job.training_specs(), job.training_containers(), strict=True))
    commands = [_words(job, container) for _, container in pairs]
    kept = [_keep(job, spec, container, options) for spec, container in pairs]
    subject = _subject(job, pairs[0], commands[0], kept[0], options)
    made, notes = _plan(subject, options, pairs[0][1])
    made = replace(made, scratch=_scratch(*pairs[0]))
    text = base64.b64encode(plans.text_of(made).encode()).decode()
    brought = _agent()
    for (spec, container), words in zip(pairs, commands, strict=True):
        _wrap(container, _alternatives(words, options), directory, text)
        _bring(spec, container, brought)
        spec["activeDeadlineSeconds"] = _deadline(made)
    return Trial(result, made, notes, subject, directory)


def _check_written(job: Workload) -> None:
    """Raise UserError where a part of the pods is not in their templates, so that the proof could not change it."""
    if isinstance(job, TrainJob):
        try:
            job.pods()
        except PodsUnknown as problem:
            raise UserError(f"--submit: {problem.reason}", problem.remedy or LOCALLY) from None
        if (job.runtime or {}).get("kind") != "TrainingRuntime":
            message = f"--submit: the runtime of {job.title} belongs to the whole cluster and cannot be changed"
            raise UserError(message, "copy it as a TrainingRuntime of the namespace into the file, and name that one")
        if not job.training_specs():
            message = f"--submit: spec.trainer of {job.title} has its own image, command, args or resourcesPerNode"
            raise UserError(message, "write them into the container `node` of its TrainingRuntime")
    elif job.spec.get("volumes"):
        message = f"--submit: {job.title} has spec.volumes, which its pods would write to"
        raise UserError(message, "mount the claims in the templates of its tasks")


def _words(job: Workload, container: Object) -> list[str]:
    if not container.get("command"):
        message = f"--submit: the container {container.get('name')} of {job.title} has no command"
        raise UserError(message, "write it: what the image's ENTRYPOINT is cannot be seen in the manifest")
    return [str(word) for word in [*container["command"], *(container.get("args") or [])]]


def _subject(
    job: Workload, pair: tuple[Object, Object], words: list[str], kept: list[str], options: Options
) -> Subject:
    spec, container = pair
    grace = float(spec.get("terminationGracePeriodSeconds") or 30)
    image, keep = str(container.get("image") or ""), [Path(one) for one in kept]
    given = {RESTARTS: "0", **trials.given(options.env)}  # a restart by torchrun would meet the same fault again
    return Subject(words, Path("/"), given, keep, job.nodes, grace, image, job.name, _nproc(job))


def _nproc(job: Workload) -> int | None:
    """Return the ranks of a pod where the operator gives them to torchrun."""
    entries = job.ranks()[0].container.get("env") or []
    value = next((str(one.get("value")) for one in entries if one.get("name") == NPROC), "")
    return int(value) if value.isdigit() and int(value) else None


def _plan(subject: Subject, options: Options, container: Object) -> tuple[Plan, dict[str, str]]:
    """Return the plan with the commands as numbers: 0 the command, 1 that of a restart, 2 that of another world."""
    made, notes = trials.plan(subject, options)
    limits = (container.get("resources") or {}).get("limits") or {}
    one_each = any(str(limits.get(name)) == "1" for name in DEVICES)
    if one_each and any(one.name == "world" for one in made.starts):
        notes["world"] = "each pod has one device, so the number of ranks in a pod cannot change"
    starts = [
        replace(one, command=["2" if one.name == "world" else "1" if one.name in trials.SOURCES else "0"])
        for one in made.starts
        if one.name not in notes
    ]
    return replace(made, starts=starts, pods=True, network=True), notes


def _alternatives(words: list[str], options: Options) -> list[list[str]]:
    again = trials.once(trials.again_of(words, options))
    return [trials.once(words), again, trials.other_world(again) or again]


def _deadline(made: Plan) -> int:
    """Return the seconds after which Kubernetes ends the pods, whatever has become of the proof."""
    return round(AROUND + len(made.starts) * (made.timeout + made.hang_timeout + made.grace + EACH))


def _wrap(container: Object, commands: list[list[str]], directory: str, plan: str) -> None:
    """Make the agent process 1, which gets the commands and the plan."""
    counts = ",".join(str(len(words)) for words in commands)
    container["command"] = ["python3", AGENT, "--prove", directory, counts, "--"]
    container["args"] = [word for words in commands for word in words]
    container["env"] = [*(container.get("env") or []), {"name": plans.VARIABLE, "value": plan}]
    for name in CHECKS:
        container.pop(name, None)


def _keep(job: Workload, spec: Object, container: Object, options: Options) -> list[str]:
    """Give what survives a pod directories of the proof's own, and return their paths in the pod.

    Without --keep these are all mounts of claims that may be written. With it, the rest of those claims is only read.
    """
    claims = {
        one["name"]
        for one in spec.get("volumes") or []
        if one.get("persistentVolumeClaim") and not one["persistentVolumeClaim"].get("readOnly")
    }
    mounts: list[Object] = container.get("volumeMounts") or []
    writable = [one for one in mounts if one["name"] in claims and not one.get("readOnly")]
    if not writable:
        message = f"--submit: {job.title} has no volume that survives a pod, so its pods share nothing"
        raise UserError(message, "mount a claim that all pods may write, or leave --submit out")
    paths = [_inside(path, writable) for path in options.keep] or [(one["mountPath"], one) for one in writable]
    own = []
    for number, (path, mount) in enumerate(paths):
        inside = f"{ON_VOLUME}/{job.name}/kept/{number}"
        own.append({"name": mount["name"], "mountPath": path, "subPath": inside})
    replaced = {path for path, _ in paths}
    for mount in writable:
        mount["readOnly"] = True
    proof = {"name": paths[0][1]["name"], "mountPath": DIRECTORY, "subPath": ON_VOLUME}
    container["volumeMounts"] = [*(one for one in mounts if one["mountPath"] not in replaced), *own, proof]
    return [path for path, _ in paths]


def _inside(path: str, writable: list[Object]) -> tuple[str, Object]:
    place = PurePosixPath(path)
    found = [one for one in writable if place.is_relative_to(one["mountPath"])]
    if not found or ".." in place.parts:
        where = ", ".join(sorted(str(one["mountPath"]) for one in writable))
        raise UserError(f"--keep {path}: lies on no claim that the pods may write", f"they may write {where}")
    return str(place), max(found, key=lambda one: len(one["mountPath"]))


def _scratch(spec: Object, container: Object) -> list[str]:
    """Return the usual temporary directories, and the mounts that end with the pod and that the script may write."""
    empty = {one["name"] for one in spec.get("volumes") or [] if "emptyDir" in one}
    mounts: list[Any] = container.get("volumeMounts") or []
    own = (one["mountPath"] for one in mounts if one["name"] in empty and not one.get("readOnly"))
    return [*dict.fromkeys(("/tmp", "/dev/shm", *own))]


def _agent() -> tuple[Object, Object, Object]:
    """Return init container, mount and volume of overlays/feature/agent, with the images that are pinned."""
    container = {"name": "pytorch", "image": "any"}
    template = {"spec": {"containers": [container]}}
    roles = {"Worker": {"replicas": 1, "template": template}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "any"}}
    objects: list[Object] = [{**job, "spec": {"pytorchReplicaSpecs": roles}}]
    for component in OVERLAYS:
        objects = parse(kustomize.with_component(objects, component), component).objects
    spec = objects[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    mount = spec["containers"][0]["volumeMounts"][0]
    return spec["initContainers"][0], mount, spec["volumes"][0]


def _bring(spec: Object, container: Object, agent: tuple[Object, Object, Object]) -> None:
    """Add the agent's parts to a pod that has none."""
    init, mount, volume = agent
    rows = ((spec, "initContainers", init), (container, "volumeMounts", mount), (spec, "volumes", volume))
    for owner, key, part in rows:
        there = owner.get(key) or []
        if not any(one.get("name") == part["name"] for one in there):
            owner[key] = [copy.deepcopy(part), *there]
