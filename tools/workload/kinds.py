"""The kinds of job that are modelled, and what a manifest holds of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.errors import UserError
from tools.core.nested import mapping, mappings
from tools.core.repo import nearest
from tools.core.tables import load
from tools.kube.json_patch import value_at
from tools.kube.manifests import Manifests, Object, name_of
from tools.kube.shapes import TEMPLATE, misshapes
from tools.workload import wrappers
from tools.workload.hyperpod import HyperPodPyTorchJob
from tools.workload.indexed_job import IndexedJob
from tools.workload.jobset import JobSet
from tools.workload.launches import launches
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import GROUP as TRAINER_GROUP
from tools.workload.trainjob import TrainJob
from tools.workload.volcano import VolcanoJob
from tools.workload.workload import Workload, group_of
from tools.workload.wrappers import Part

KINDS: tuple[type[Workload], ...] = (*(PyTorchJob, TrainJob, HyperPodPyTorchJob, VolcanoJob, JobSet, IndexedJob),)
_TABLE: dict[str, Any] = load("workload/kinds.yaml")


@dataclass(frozen=True)
class Unknown:
    """An object that may run pods and is not modelled: the `path` of its first pod template, if any, and the reason."""

    item: Object
    path: str
    reason: str
    wrapper: str = ""
    prefix: str = ""


@dataclass(frozen=True)
class Found:
    """The jobs of a manifest, all its objects with those in wrappers, and what is not modelled."""

    workloads: list[Workload]
    unknown: list[Unknown]
    parts: list[Part]


def find(manifests: Manifests, version: str = "") -> Found:
    """Return the jobs of a manifest, also in wrappers, and what is not modelled. `version` is the operator's."""
    return among(wrappers.opened(manifests.objects), manifests.source, version)


def among(parts: list[Part], source: str, version: str = "") -> Found:
    """Return the jobs among the opened objects of a manifest, as `find` does."""
    every = Manifests(source, [part.item for part in parts])
    jobs = [(part, _kind(part.item)) for part in parts]
    workloads = [kind(part.item, part.wrapper, part.prefix, every, version) for part, kind in jobs if kind]
    holders = {part.wrapper for part in parts}
    unknown = [one for part, kind in jobs if not kind and (one := _unknown(part, every, holders))]
    return Found(workloads, unknown, parts)


def job_of(manifests: Manifests) -> Workload:
    """Return the only training of the manifests; UserError if there is none or more than one."""
    held = find(manifests)
    found = [one for one in held.workloads if one.trains]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.title for one in found)
    unknown = "".join(f"; {one.reason}" for one in held.unknown[:1])
    text = f"contains {len(found)} jobs, one is needed: {names}" if found else f"contains no job that trains{unknown}"
    raise UserError(f"{manifests.source}: {text}")


def of(item: Object, manifests: Manifests | None = None, version: str = "") -> Workload | None:
    """Return an object as a workload, None if its kind is not modelled. Wrappers are not opened."""
    kind = _kind(item)
    return None if kind is None else kind(item, "", "", manifests or Manifests("", []), version)


def native_path(item: Object) -> tuple[str, ...] | None:
    """Return the path of the pod template in an object of Kubernetes' own kinds, None for other kinds."""
    group, path = _TABLE["native"].get(str(item.get("kind")), (None, ()))
    return tuple(path) if group == group_of(item) else None


def templates(item: Object) -> Iterator[tuple[str, Object]]:
    """Yield the paths of mappings that look like pod templates: with spec.containers, each with an image."""
    for path, part in mappings(item):
        containers = value_at(part, ("spec", "containers"))
        if isinstance(containers, list) and any(isinstance(one, dict) and "image" in one for one in containers):
            yield path, part


def meant(item: Object) -> str | None:
    """Return the kind that an object's kind misspells, None if it misspells no modelled kind of its group."""
    kind, group = str(item.get("kind")), group_of(item)
    modelled = [one.kind for one in KINDS if one.api.rpartition("/")[0] == group]
    native = [name for name, (served, _) in _TABLE["native"].items() if served == group]
    holders = [name for name, resource in wrappers.RESOURCES.items() if resource.partition(".")[2] == group]
    names = [*modelled, *native, *holders]
    return None if kind in names or kind in _TABLE["quiet"] else nearest(kind, names, cutoff=0.8)


def _kind(item: Object) -> type[Workload] | None:
    return next((one for one in KINDS if one.matches(item)), None)


def _unknown(part: Part, every: Manifests, holders: set[str]) -> Unknown | None:
    """Return an object that runs pods and is not modelled, None for any other."""
    item, group = part.item, group_of(part.item)
    path = native_path(item)
    if path is not None:
        started = _starts(item, path, every)
        reason = f"a {item.get('kind')} starts a distributed training: its wiring is not judged"
        return Unknown(item, ".".join(path), reason, part.wrapper, part.prefix) if started else None
    if wrappers.shape_of(item) is not None:
        empty = item.get("kind") == "Experiment" and f"Experiment/{name_of(item)}" not in holders and not part.faults
        reason = "the trial of this Experiment is in a ConfigMap that the file does not have"
        return Unknown(item, "spec.trialTemplate", reason, part.wrapper, part.prefix) if empty else None
    if group in _TABLE["patterns"]:
        return None
    if group == TRAINER_GROUP and item.get("kind") in _TABLE["quiet"]:
        used = any(f"{item['kind']}/{name_of(item)}" == _runtime(one) for one in every.of_kind("TrainJob"))
        reason = "no TrainJob of the file uses this runtime"
        return None if used else Unknown(item, "spec.template", reason, part.wrapper, part.prefix)
    found = next((path or "spec" for path, _ in templates(item)), None)
    known = group in _TABLE["groups"] and item.get("kind") not in _TABLE["quiet"]
    if found is None and not known and not _names_program(item):
        return None
    near = f" (did you mean {meant(item)}?)" if meant(item) else ""
    reason = f"{item.get('kind')} ({item.get('apiVersion')}) is not a kind that is modelled{near}"
    checked = not any(fault for _, one in templates(item) for fault in misshapes(one, TEMPLATE, ""))
    reason += ": its containers are checked, and not how its pods meet" if found and checked else ""
    return Unknown(item, found or "", reason, part.wrapper, part.prefix)


def _names_program(item: Object) -> bool:
    """Return whether an object of an unknown kind names an image and what starts in it: its controller makes pods."""
    parts = (part for _, part in mappings(item.get("spec")) if isinstance(part.get("image"), str))
    if not any(isinstance(part.get(key), list) for part in parts for key in ("command", "args")):
        return False
    from tools.kube import schemas  # slow to import, and few objects come here

    return not schemas.shipped().knows(item)


def _starts(item: Object, path: tuple[str, ...], every: Manifests) -> bool:
    template = value_at(item, path)
    if not isinstance(template, dict) or any(misshapes(template, TEMPLATE, "")):
        return False
    return launches(template, every)


def _runtime(job: Object) -> str:
    reference = mapping(mapping(job.get("spec")).get("runtimeRef"))
    return f"{reference.get('kind') or 'ClusterTrainingRuntime'}/{reference.get('name')}"
