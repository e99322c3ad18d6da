"""Rules on checkpoints: where they lie, how often they are made, and whether there is time to make one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.core.verdict import Verdict, bad, good, unclear
from tools.kube.quantity import amount
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, Template
from tools.simulator.command_line import literals, number, option, words

SAVE = (
    *(
        "checkpoint-dir",
        "checkpoint-path",
        "checkpoints-dir",
        "ckpt-dir",
        "ckpt-path",
        "save-dir",
        "save-folder",
    ),
    *("save-path", "save", "output-dir", "checkpoint-folder"),
)
RESUME = ("resume-from-checkpoint", "resume-from", "resume", "resume-path")
INTERVAL = (
    *(
        "checkpoint-freq",
        "checkpoint-interval",
        "checkpoint-every",
        "save-interval",
        "save-steps",
        "save-every",
    ),
    *("ckpt-interval", "checkpointing-steps"),
)
STEPS = ("max-steps", "max-train-steps", "train-iters", "num-steps", "total-steps", "steps", "training-steps")
VARIABLES = ("TRAINYARD_RUN", "CHECKPOINT_DIR", "CKPT_DIR", "CHECKPOINT_PATH", "SNAPSHOT_PATH")
REMOTE = ("s3://", "gs://", "hf://", "https://")
NOT_SHARED = ("emptyDir", "hostPath", "ephemeral", "configMap", "secret", "projected", "downwardAPI")
TORCHRUN_DEFAULT = 30  # seconds between SIGTERM and SIGKILL of the workers, torch/distributed/run.py
KUBERNETES_DEFAULT = 30  # terminationGracePeriodSeconds


@rule("checkpoint-shared", "a checkpoint on one node cannot be read by the pod that replaces it on another")
def checkpoint_shared(subject: Subject) -> Iterator[Verdict]:
    """A job of several pods writes its checkpoints to storage that all of them share.

    The directory is read in options such as --checkpoint-dir and variables such as CHECKPOINT_DIR. It must
    lie below a mounted claim (or CSI or NFS volume), or be an object store's address. `./checkpoints` in
    the container's own layer is gone with the pod. A job that names no directory is not judged.
    """
    for template in subject.training():
        path, container = template.trainer()
        found = _directory(container)
        if template.nodes < 2 or found is None:
            continue
        name, directory = found
        place = Place(template.object, f"{path} {name}", directory)
        kind = _storage(template, container, directory)
        if kind == "shared":
            yield good(place, "on storage that all pods share")
        elif kind == "unknown":
            yield unclear(
                place, "a relative path, and the image decides where it begins", "give an absolute path"
            )
        else:
            yield bad(
                place, f"{template.nodes} pods, and {directory} is {kind}", "a path below a shared claim"
            )


def _directory(container: dict[str, object]) -> tuple[str, str] | None:
    given = option(words(container), SAVE)
    values = literals(container)
    if given is not None and given[1] and _is_path(given):
        value = given[1]
        bare = value.strip("${}()")
        return given[0], values.get(bare, value) if value.startswith("$") else value
    return next(((name, values[name]) for name in VARIABLES if values.get(name)), None)


def _is_path(given: tuple[str, str]) -> bool:
    """Say whether an option's value is a path: `--save true` is none, `--checkpoint-dir out` is one."""
    name, value = given
    return any(mark in value for mark in "/$") or any(word in name for word in ("dir", "path", "folder"))


def _storage(template: Template, container: dict[str, object], directory: str) -> str:
    """Return `shared`, `unknown`, or what the directory is instead."""
    if directory.startswith(REMOTE):
        return "shared"
    if directory.startswith("$"):
        return "unknown"
    mounts = container.get("volumeMounts") or []
    volumes = template.volumes()
    kinds = {mount["mountPath"]: _kind(volumes.get(mount["name"], {})) for mount in mounts}  # type: ignore[attr-defined]
    base = str(container.get("workingDir") or "")
    if not directory.startswith("/") and not base:
        return "unknown" if "shared" in kinds.values() else "in the container's own layer"
    whole = PurePosixPath(base or "/") / directory
    below = [
        mount for mount in kinds if whole == PurePosixPath(mount) or PurePosixPath(mount) in whole.parents
    ]
    if not below:
        return "in the container's own layer"
    return kinds[max(below, key=len)]


def _kind(volume: dict[str, object]) -> str:
    own = next((key for key in NOT_SHARED if key in volume), None)
    return "shared" if own is None else f"on a volume of kind {own}"


@rule(
    "claim-access", "a ReadWriteOnce volume is attached to one node, and the other pods wait for it for ever"
)
def claim_access(subject: Subject) -> Iterator[Verdict]:
    """A claim of a job with several pods is ReadWriteMany (or ReadOnlyMany).

    Judged where the claim is in the same manifest.
    """
    for template in subject.training():
        claims = subject.named("PersistentVolumeClaim", template.namespace)
        for name, volume in template.volumes().items():
            claim = claims.get((volume.get("persistentVolumeClaim") or {}).get("claimName", ""))
            spec = claim.get("spec") if claim else None
            modes = spec.get("accessModes") if isinstance(spec, dict) else None
            if template.nodes < 2 or not isinstance(modes, list):
                continue
            place = Place(
                template.object, f"{template.spec_path}.volumes[{name}]", ", ".join(map(str, modes))
            )
            if {"ReadWriteMany", "ReadOnlyMany"} & {str(mode) for mode in modes}:
                yield good(place, "the claim can be mounted on all nodes")
            else:
                yield bad(
                    place, f"{template.nodes} pods on one claim that one node can mount", "ReadWriteMany"
                )


@rule("checkpoint-interval", "a checkpoint that comes after the last step is never made")
def checkpoint_interval(subject: Subject) -> Iterator[Verdict]:
    """The interval between checkpoints is not longer than the training.

    Read in options such as --checkpoint-freq and --max-steps; published presets have 1000 and 30.
    """
    for template in subject.training():
        path, container = template.trainer()
        every, most = (option(words(container), names) for names in (INTERVAL, STEPS))
        interval, steps = (number(found[1]) if found else None for found in (every, most))
        if every is None or most is None or interval is None or steps is None:
            continue
        place = Place(template.object, f"{path}.args", f"{every[0]} {interval}, {most[0]} {steps}")
        if interval <= steps:
            yield good(place, "a checkpoint is made before the end")
        else:
            yield bad(
                place, f"every {interval} steps, and there are {steps}", f"{every[0]} of at most {steps}"
            )


@rule("resume-path", "a job that resumes from another directory than it saves to starts over each time")
def resume_path(subject: Subject) -> Iterator[Verdict]:
    """The directory to resume from is the one that is saved to, or lies in it.

    Options that are no path (true, latest, auto) are not judged.
    """
    for template in subject.training():
        path, container = template.trainer()
        saved, resumed = (option(words(container), names) for names in (SAVE, RESUME))
        if saved is None or resumed is None or "/" not in resumed[1] or not saved[1]:
            continue
        first, second = (PurePosixPath(found[1]) for found in (saved, resumed))
        place = Place(template.object, f"{path}.args", f"{saved[0]} {first}, {resumed[0]} {second}")
        if first == second or first in second.parents:
            yield good(place, "it resumes from where it saves")
        else:
            yield bad(place, f"saves to {first} and resumes from {second}", "make the two one directory")


@rule("grace-period", "a pod that is killed before it has saved loses its steps at each drain")
def grace_period(subject: Subject) -> Iterator[Verdict]:
    """terminationGracePeriodSeconds is longer than the time that torchrun gives its workers to save, with the
    preStop hook before it.

    After SIGTERM torchrun waits PET_SHUTDOWN_TIMEOUT (or --shutdown-timeout, 30 s where neither is given) for
    one step and one checkpoint. The kubelet kills all when the grace period is over, 30 s where none is
    given. Judged where the manifest says at least one of them: with nothing said, whether 30 s are enough for
    a step and a save depends on the job.
    """
    for template in subject.training():
        _, container = template.trainer()
        grace = template.spec.get("terminationGracePeriodSeconds")
        said = _shutdown(container)
        hook = _pre_stop(container)
        if grace is None and said is None and not hook:
            continue
        limit = KUBERNETES_DEFAULT if grace is None else grace
        need = (TORCHRUN_DEFAULT if said is None else said) + hook
        shown = f"grace {limit} s, workers {need - hook} s, preStop {hook} s"
        place = Place(template.object, f"{template.spec_path}.terminationGracePeriodSeconds", shown)
        if limit > need or (said is None and not hook and limit == TORCHRUN_DEFAULT):
            yield good(place, "the workers have their time before the pod is killed")
        else:
            yield bad(place, f"killed after {limit} s, and {need} s are needed", f"more than {need} s")


def save_seconds(template: Template) -> int:
    """Return the seconds that the workers have between SIGTERM and SIGKILL."""
    _, container = template.trainer()
    grace = template.spec.get("terminationGracePeriodSeconds")
    said = _shutdown(container)
    limit = (KUBERNETES_DEFAULT if grace is None else int(grace)) - _pre_stop(container)
    return min(limit, TORCHRUN_DEFAULT if said is None else said)


def _shutdown(container: dict[str, object]) -> int | None:
    given = option(words(container), ("shutdown-timeout",))
    text = given[1] if given else literals(container).get("PET_SHUTDOWN_TIMEOUT", "")
    return number(text)


def _pre_stop(container: dict[str, object]) -> int:
    """Return the seconds that a preStop hook sleeps, as far as it says so."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}  # type: ignore[attr-defined]
    slept = (hook.get("sleep") or {}).get("seconds")
    if isinstance(slept, int):
        return slept
    text = " ".join((hook.get("exec") or {}).get("command") or []).split()
    if "sleep" in text[:-1]:
        seconds = amount(text[text.index("sleep") + 1])
        return int(seconds) if seconds is not None else 0
    return 0
