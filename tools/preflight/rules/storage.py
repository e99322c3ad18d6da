"""Rules on checkpoints: where they are saved, how often, and whether there is time to save one."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good, unclear
from tools.kube.manifests import Object
from tools.kube.quantity import amount
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, Template
from tools.simulator.command_line import command, literals, number, option, script, words

_WORDS: dict[str, list[str]] = load("preflight/words.yaml")
SAVE, RESUME, INTERVAL, STEPS = (_WORDS[name] for name in ("save", "resume", "interval", "steps"))
SHARED, UNKNOWN = "shared", "unknown"
LAYER = "in the container's own layer"
READ_ONLY = "on a mount that is read-only"
ON_NODE = "a directory of the node"
TORCHRUN_DEFAULT = 30  # seconds between SIGTERM and SIGKILL of the workers, torch/distributed/run.py
KUBERNETES_DEFAULT = 30  # seconds, terminationGracePeriodSeconds


@rule("checkpoint-shared", each="training")
def checkpoint_shared(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, container = template.trainer()
    saved = _directory(*subject.started(template))
    if saved is None or saved[1].startswith("$"):
        return
    name, directory = saved
    place = Place(template.object, f"{path} {name}", directory)
    where = storage(template, container, directory)
    if where == SHARED:
        yield good(place, "on storage that all pods share")
    elif where == UNKNOWN:
        summary = "a relative path: lost with the pod if the image's working directory is not on a claim"
        yield doubtful(place, summary, "use an absolute path")
    elif where == ON_NODE:
        summary = f"{directory} is {ON_NODE}: lost with the node, unless all nodes share that directory"
        yield doubtful(place, summary, "a path below a shared claim")
    elif where == READ_ONLY:
        yield bad(place, f"{directory} is {where}", "a path on storage that the pod can write")
    elif any(word in " ".join(command(container)) for word in _WORDS["uploads"]):
        yield good(place, "the command copies it to an object store")
    else:
        yield bad(place, f"{directory} is {where}: lost with its pod", "a path below a shared claim")


def _directory(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the option or variable that names the checkpoint directory, and the directory."""
    given = option(words, SAVE)
    name, value = given or ("", "")
    # The value of `--save true` is not a path; that of `--checkpoint-dir out` is one.
    named = any(word in name for word in ("dir", "path", "folder", "file"))
    if value and (named or "/" in value or "$" in value):
        return name, values.get(value.strip("${}()"), value) if value.startswith("$") else value
    return next(((name, values[name]) for name in _WORDS["directory variables"] if values.get(name)), None)


def storage(template: Template, container: Object, directory: str) -> str:
    """Return SHARED, UNKNOWN, or where the directory is instead."""
    if directory.startswith(tuple(_WORDS["remote"])):
        return SHARED
    volumes = template.volumes()
    mounts = container.get("volumeMounts") or []
    kinds = {mount["mountPath"]: _kind(volumes.get(mount["name"], {}), mount) for mount in mounts}
    base = _working_directory(container)
    if not directory.startswith("/") and not base:
        return UNKNOWN if SHARED in kinds.values() else LAYER
    whole = PurePosixPath(base or "/") / directory
    below = [mount for mount in kinds if PurePosixPath(mount) in (whole, *whole.parents)]
    return kinds[max(below, key=len)] if below else LAYER


def _working_directory(container: Object) -> str:
    """Return the directory that relative paths count from, or an empty text if the image decides it."""
    given = words(container) if script(container) else []
    entered = [word for before, word in itertools.pairwise(given) if before == "cd" and word.startswith("/")]
    return (entered or [str(container.get("workingDir") or "")])[-1].rstrip(";&")


def _kind(volume: Object, mount: Object) -> str:
    sources = [one for one in volume.values() if isinstance(one, dict)]
    closed = any(one.get("readOnly") for one in (mount, *sources))
    if closed or any(key in volume for key in _WORDS["read-only volumes"]):
        return READ_ONLY
    if "hostPath" in volume:
        return ON_NODE
    kind = next((key for key in _WORDS["not shared"] if key in volume), None)
    return SHARED if kind is None else f"on a volume of kind {kind}"


@rule("claim-access", each="training")
def claim_access(subject: Subject, template: Template) -> Iterator[Verdict]:
    claims = subject.named("PersistentVolumeClaim", template.namespace)
    for name, volume in template.volumes().items():
        named = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        claim = (claims.get(named) or {}).get("spec") or {}
        if (modes := claim.get("accessModes")) is None:
            continue
        place = Place(template.object, f"{template.spec_path}.volumes[{name}]", ", ".join(modes))
        yield from _unbound(subject, place, claim)
        if (pods := template.nodes - _without(named, template, subject)) < 2:
            continue
        if {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
            yield good(place, "all nodes can mount the claim")
        else:
            yield bad(place, f"{pods} pods use a claim that only one node can mount", "ReadWriteMany")


def _unbound(subject: Subject, place: Place, claim: Object) -> Iterator[Verdict]:
    """Yield why a claim of the manifest never gets a volume, or may not get one."""
    modes, name = set(claim["accessModes"]), claim.get("storageClassName")
    maker = (subject.named("StorageClass", "").get(str(name)) or {}).get("provisioner")
    if "ReadWriteMany" in modes and claim.get("volumeMode") != "Block":
        remedy = "a class of shared storage, such as those of base/storage"
        if maker in _WORDS["provisioners for one node"]:
            yield bad(place, f"{maker} makes volumes of one node, and none for a claim with ReadWriteMany", remedy)
        elif maker is None and name in _WORDS["classes for one node"]:
            summary = f"a class {name} usually makes volumes of one node, and none for a claim with ReadWriteMany"
            yield unclear(place, summary, remedy)
    volume = (subject.named("PersistentVolume", "").get(str(claim.get("volumeName"))) or {}).get("spec")
    if volume is None:
        return
    named, theirs = f"the volume {claim['volumeName']}", volume.get("storageClassName") or ""
    if (name or "") != theirs:
        yield bad(place, f"{named} has the class {theirs!r}, and the claim {name!r}", f"storageClassName: {theirs!r}")
    elif name is None:
        summary = f"{named} has no class, and a default class of the cluster keeps the claim from it"
        yield doubtful(place, summary, 'storageClassName: ""')
    if missing := modes - set(volume.get("accessModes") or []):
        yield bad(place, f"{named} has no access mode {', '.join(sorted(missing))}", "the same modes in both")
    need, room = (
        amount((one.get(key) or {}).get("storage"))
        for one, key in ((claim.get("resources") or {}, "requests"), (volume, "capacity"))
    )
    if need is not None and room is not None and need > room:
        yield bad(place, f"{named} is smaller than the claim", "the volume's capacity, or less, in the claim")


def _without(claim: str, template: Template, subject: Subject) -> int:
    """Return how many pods of a template's job do not use a claim."""
    ranks = [one for one in subject.templates_of(template.item) if one.training]
    used = [
        {(one.get("persistentVolumeClaim") or {}).get("claimName") for one in rank.volumes().values()} for rank in ranks
    ]
    return sum(rank.replicas for rank, claims in zip(ranks, used, strict=True) if claim not in claims)


@rule("compile-cache", each="training")
def compile_cache(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, container = template.trainer()
    values = literals(container)
    for name in filter(values.get, _WORDS["compiled"]):
        place = Place(template.object, f"{path}.env[{name}]", values[name])
        mount = mount_of(container, values[name])
        volume = template.volumes().get(mount["name"], {}) if mount else {}
        if "hostPath" in volume:
            summary = "compiled code on a directory of the node, which other pods can write"
            yield bad(place, summary, "a path on an emptyDir")
        elif mount and "subPathExpr" not in mount and _kind(volume, mount) == SHARED:
            yield doubtful(place, "whoever writes to this volume runs code in the job", "a path on an emptyDir")
        else:
            yield good(place, "no other job writes there")


def mount_of(container: Object, directory: str) -> Object | None:
    """Return the mount that a path is on, None in the container's own layer."""
    whole = PurePosixPath(directory)
    every = container.get("volumeMounts") or []
    mounts = [mount for mount in every if whole.is_relative_to(PurePosixPath(mount["mountPath"]))]
    return max(mounts, key=lambda mount: len(mount["mountPath"]), default=None)


@rule("checkpoint-interval", each="training")
def checkpoint_interval(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, given_words = template.trainer()[0], subject.started(template)[0]
    every, most = (option(given_words, names) for names in (INTERVAL, STEPS))
    interval, steps = (number(given[1]) if given else None for given in (every, most))
    if every is None or most is None or interval is None or steps is None:
        return
    place = Place(template.object, f"{path}.args", f"{every[0]} {interval}, {most[0]} {steps}")
    if interval <= steps:
        yield good(place, "a checkpoint is saved before the end")
    else:
        yield bad(place, f"every {interval} steps, and training has {steps} steps", f"{every[0]} of at most {steps}")


@rule("resume-path", each="training")
def resume_path(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, given = template.trainer()[0], subject.started(template)[0]
    saved, resumed = (option(given, names) for names in (SAVE, RESUME))
    if saved is None or resumed is None or "/" not in resumed[1] or not saved[1]:
        return
    target, source = PurePosixPath(saved[1]), PurePosixPath(resumed[1])
    place = Place(template.object, f"{path}.args", f"{saved[0]} {target}, {resumed[0]} {source}")
    if target in (source, *source.parents):
        yield good(place, "the job resumes from where it saves")
    else:
        yield bad(place, f"saves to {target} and resumes from {source}", "use one directory for both")


@rule("grace-period", each="training")
def grace_period(subject: Subject, template: Template) -> Iterator[Verdict]:
    _, container = template.trainer()
    grace = template.spec.get("terminationGracePeriodSeconds")
    timeout, hook = _shutdown(container), _pre_stop(container)
    if grace is None and timeout is None and not hook:
        return
    limit = KUBERNETES_DEFAULT if grace is None else grace
    need = (TORCHRUN_DEFAULT if timeout is None else timeout) + hook
    times = f"grace {limit} s, workers {need - hook} s, preStop {hook} s"
    place = Place(template.object, f"{template.spec_path}.terminationGracePeriodSeconds", times)
    if limit > need or (timeout is None and not hook and limit == TORCHRUN_DEFAULT):
        yield good(place, "the workers have time to save before the pod is killed")
    else:
        yield bad(place, f"killed after {limit} s, but {need} s are needed", f"more than {need} s")


def save_seconds(template: Template) -> int:
    """Return the seconds that the workers have between SIGTERM and SIGKILL."""
    _, container = template.trainer()
    grace = template.spec.get("terminationGracePeriodSeconds")
    timeout = _shutdown(container)
    limit = (KUBERNETES_DEFAULT if grace is None else int(grace)) - _pre_stop(container)
    return min(limit, TORCHRUN_DEFAULT if timeout is None else timeout)


def _shutdown(container: Object) -> int | None:
    given = option(words(container), ("shutdown-timeout",))
    return number(given[1] if given else literals(container).get("PET_SHUTDOWN_TIMEOUT", ""))


def _pre_stop(container: Object) -> int:
    """Return the seconds that a preStop hook sleeps, or 0 if that is unknown."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    if seconds := (hook.get("sleep") or {}).get("seconds"):
        return int(seconds)
    text = " ".join((hook.get("exec") or {}).get("command") or []).split()
    if "sleep" in text[:-1]:
        return int(amount(text[text.index("sleep") + 1]) or 0)
    return 0
