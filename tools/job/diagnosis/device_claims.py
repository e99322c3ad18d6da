"""Devices that a pod claims by Dynamic Resource Allocation (resource.k8s.io): what is claimed, what is free.

Counted are the devices that drivers have published (ResourceSlices) less those allocated to any claim. The
selectors of classes and requests are programs (CEL) and are not run: which of the free devices a claim may
have is then the scheduler's word alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tools.job.diagnosis.cause import Cause, Layer
from tools.job.diagnosis.scheduler_fit import Place
from tools.job.snapshot.kinds import CLAIMS
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.manifests import Object

KIND = "unschedulable/resource-claim"
DRIVER = re.compile(r"device\.driver\s*==\s*[\"']([^\"']+)[\"']")
SHOWN = 4


def missing(snapshot: Snapshot, pods: list[JobPod]) -> Iterator[Cause]:
    """A claim, its template or its class of devices does not exist."""
    for pod in pods[:1]:
        for kind, name, why in _named(snapshot, pod):
            if snapshot.saw(kind) and _find(snapshot, kind, name) is None:
                where = "" if kind == "DeviceClass" else f" in namespace {snapshot.namespace}"
                summary = f"the {kind} {name} does not exist{where}"
                others = ", ".join(one["metadata"]["name"] for one in snapshot.of(kind)[:SHOWN]) or "none"
                evidence = [f"{pod.short} {why}", f"there are: {others}"]
                advice = f"make it, or name one that is there: kubectl get {CLAIMS[kind]}"
                yield Cause(KIND, Layer.BLOCKED, summary, evidence, pod.name, at=pod.created, advice=advice)
                return


def unallocated(snapshot: Snapshot, pod: JobPod) -> Iterator[Cause]:
    """A claim has no devices although everything else that the pod needs is there."""
    for name in _names(pod):
        claim = _find(snapshot, "ResourceClaim", name)
        if claim is None or (claim.get("status") or {}).get("allocation"):
            continue
        facts = [line for request in _requests(claim) for line in _supply(snapshot, request)]
        summary = f"the ResourceClaim {name} of {pod.short} is not allocated"
        advice = "does the driver run on the nodes, and publish such devices? kubectl get resourceslices"
        yield Cause(KIND, Layer.BLOCKED, summary, facts, pod.name, at=pod.created, advice=advice)
        return


def places(snapshot: Snapshot, pod: JobPod) -> list[Place]:
    """Return where the devices are that are already allocated to the pod's claims."""
    found = []
    for name in _names(pod):
        claim = _find(snapshot, "ResourceClaim", name) or {}
        allocation = (claim.get("status") or {}).get("allocation") or {}
        terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms")
        if terms:
            found.append(Place("device-place", f"ResourceClaim {name}", terms))
    return found


def _find(snapshot: Snapshot, kind: str, name: str) -> Object | None:
    """Return the object of a name in the job's namespace, or of the cluster."""
    for one in snapshot.of(kind):
        namespace = one["metadata"].get("namespace", snapshot.namespace)
        if one["metadata"]["name"] == name and namespace == snapshot.namespace:
            return one
    return None


def _names(pod: JobPod) -> list[str]:
    """Return the names of a pod's claims; those made from a template stand in its status."""
    made = {
        one.get("name"): one.get("resourceClaimName") for one in pod.status.get("resourceClaimStatuses") or []
    }
    own = [one.get("resourceClaimName") or made.get(one["name"]) for one in _entries(pod)]
    return [str(name) for name in own if name]


def _entries(pod: JobPod) -> list[Object]:
    return pod.spec.get("resourceClaims") or []


def _named(snapshot: Snapshot, pod: JobPod) -> Iterator[tuple[str, str, str]]:
    """Yield what a pod's claims name: kind, name, and in words where."""
    for one in _entries(pod):
        if one.get("resourceClaimName"):
            yield "ResourceClaim", one["resourceClaimName"], f"claims it as {one['name']}"
        elif one.get("resourceClaimTemplateName"):
            yield "ResourceClaimTemplate", one["resourceClaimTemplateName"], f"claims by it {one['name']}"
    for name in _names(pod):
        for request in _requests(_find(snapshot, "ResourceClaim", name) or {}):
            if request.get("deviceClassName"):
                yield "DeviceClass", request["deviceClassName"], f"claims {name}, which asks for it"


def _requests(claim: Object) -> list[Object]:
    """Return what a claim asks for: in v1 `exactly` or the first of several, in v1beta1 at once."""
    asked = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []
    return [each for one in asked for each in (one.get("firstAvailable") or [one.get("exactly") or one])]


def _supply(snapshot: Snapshot, request: Object) -> Iterator[str]:
    """Yield what there is of the devices that a request asks for."""
    wanted, name = int(request.get("count") or 1), str(request.get("deviceClassName"))
    many = "all" if request.get("allocationMode") == "All" else str(wanted)
    yield f"it asks for {many} of class {name}"
    if not snapshot.saw("ResourceSlice") or not snapshot.saw("DeviceClass"):
        yield "what devices there are was not seen"
        return
    driver = _driver(_find(snapshot, "DeviceClass", name) or {})
    slices = [one for one in snapshot.of("ResourceSlice") if driver in (None, one["spec"].get("driver"))]
    if not slices:
        yield f"no node has published devices of the driver {driver or 'of any class'}: no ResourceSlice"
        return
    taken = _taken(snapshot)
    total, free = Counter[str](), Counter[str]()
    for one in slices:
        spec = one["spec"]
        pool = str((spec.get("pool") or {}).get("name"))
        where = str(spec.get("nodeName") or f"pool {pool}")
        keys = [(spec.get("driver"), pool, device["name"]) for device in spec.get("devices") or []]
        total[where] += len(keys)
        free[where] += sum(key not in taken for key in keys)
    lines = [f"{where}: {free[where]} of {number} devices free" for where, number in sorted(total.items())]
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN} more"
    if max(free.values()) >= wanted:
        yield "enough are free: the selectors of class and claim decide, and are not computed here"


def _driver(kind: Object) -> str | None:
    """Return the driver that a class of devices is about, None where its selectors do not name one."""
    selectors = (kind.get("spec") or {}).get("selectors") or []
    found = (DRIVER.search(str((one.get("cel") or {}).get("expression", ""))) for one in selectors)
    return next((match[1] for match in found if match), None)


def _taken(snapshot: Snapshot) -> set[tuple[Any, str, str]]:
    """Return the devices that are allocated to any claim: driver, pool, name."""
    return {
        (one.get("driver"), str(one.get("pool")), str(one.get("device")))
        for claim in snapshot.of("ResourceClaim")
        for one in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results")
        or []
    }
