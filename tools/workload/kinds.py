"""The kinds of job that are modelled, and what a manifest holds of them."""

from __future__ import annotations

from dataclasses import dataclass

from tools.kube.manifests import Manifests, Object
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.volcano import VolcanoJob
from tools.workload.workload import Workload

KINDS: tuple[type[Workload], ...] = (PyTorchJob, VolcanoJob)


@dataclass(frozen=True)
class Unknown:
    """An object that runs pods, or may, and is not of a modelled kind.

    `path` is the path of its first pod template, empty if it has none, and `reason` why it is not judged.
    """

    item: Object
    path: str
    reason: str
    wrapper: str = ""
    prefix: str = ""


@dataclass(frozen=True)
class Found:
    """The jobs of a manifest, and what looks like a job and is not modelled."""

    workloads: list[Workload]
    unknown: list[Unknown]


def find(manifests: Manifests, version: str = "") -> Found:
    """Return the jobs of a manifest, those inside wrappers too, and what is not modelled.

    `version` is the release of the training operator, empty for the newest.
    """
    found = (of(item, manifests, version) for item in manifests.objects)
    return Found([workload for workload in found if workload], [])


def of(item: Object, manifests: Manifests | None = None, version: str = "") -> Workload | None:
    """Return an object as a workload, None if its kind is not modelled. Wrappers are not opened."""
    kind = next((one for one in KINDS if one.matches(item)), None)
    return None if kind is None else kind(item, "", "", manifests or Manifests("", []), version)
