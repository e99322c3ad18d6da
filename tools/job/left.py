"""What jobs leave behind, and what it costs a month: finished jobs, claims, volumes, load balancers, TensorBoards.

A command that deletes is given only for what `yard` has provably made: a job that a ConfigMap of `yard job submit`
names by its UID, and the TensorBoard of `yard job tensorboard`. Whatever holds data is never offered.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tools.core.tables import load
from tools.job import tensorboard
from tools.job.snapshot import lookup
from tools.job.snapshot.kinds import NOT_READ
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.queries import Queries
from tools.kube import Kubectl, Object, name_of
from tools.kube.quantity import amount, requests
from tools.workload import JobState

PRICES = load("facts/aws_prices.yaml")
HOURS_A_MONTH = 730
LUSTRE = {str(throughput): price for throughput, price in PRICES["lustre_gib_month"].items()}
GIB = 2**30
NAMESPACED = {
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Service": "services",
    "Deployment": "deployments.apps",
    "ConfigMap": "configmaps",
    "Pod": "pods",
}
GLOBAL: dict[str, tuple[str, ...]] = {"StorageClass": ("storageclasses",), "PersistentVolume": ("persistentvolumes",)}
OPTIONAL = {*GLOBAL, *NOT_READ}  # what a team may not see, and what is not read
FINISHED = (JobState.SUCCEEDED, JobState.FAILED)


@dataclass(frozen=True)
class Left:
    """Something that is left. `price` is in USD a month, None if unknown; `remove` is the command that deletes it."""

    kind: str
    namespace: str
    name: str
    detail: str
    price: float | None = 0.0
    remove: str | None = None


def find(kubectl: Kubectl, everywhere: bool) -> tuple[list[Left], dict[str, str]]:
    """Return what is left, and why kinds of objects could not be listed."""
    jobs, queries = lookup.jobs(kubectl, everywhere), Queries(kubectl)
    queries.ask(GLOBAL, [NAMESPACED], *(["--all-namespaces"] if everywhere else []))
    objects = queries.objects
    found = [*_jobs(jobs, objects.get("ConfigMap", [])), *_claims(objects), *_volumes(objects)]
    return [*found, *_balancers(objects), *_boards(objects)], {**jobs.unseen, **queries.unseen}


def _place(item: Object) -> tuple[str, str]:
    return str(item["metadata"].get("namespace") or "-"), name_of(item)


def _jobs(jobs: lookup.Jobs, maps: list[Object]) -> Iterator[Left]:
    """Yield finished jobs. Their pods hold no devices, but their names, logs and ConfigMaps are there."""
    kept = {owner.get("uid") for one in maps for owner in one["metadata"].get("ownerReferences") or []
            if name_of(one).endswith("-submitted")}  # fmt: skip
    for job in jobs.topmost:
        if job.state in FINISHED:
            name = name_of(job.top)
            ours = job.top["metadata"].get("uid") in kept
            remove = f"yard job stop {name} --delete -n {job.namespace}" if ours else None
            yield Left("finished job", job.namespace, name, job.state, 0.0, remove)


def _claims(objects: Mapping[str, list[Object]]) -> Iterator[Left]:
    """Yield claims with a volume that no pod mounts; none where the pods could not be listed."""
    mounted = {
        (_place(item)[0], claim)
        for item in objects.get("Pod", [])
        if (pod := JobPod(item)).phase not in ("Succeeded", "Failed")
        for claim in claim_names(pod)
    }
    for claim in objects.get("PersistentVolumeClaim", []) if "Pod" in objects else []:
        spec, status = claim["spec"], claim.get("status") or {}
        of_a_pod = any(owner.get("kind") == "Pod" for owner in claim["metadata"].get("ownerReferences") or [])
        if status.get("phase") != "Pending" and not of_a_pod and _place(claim) not in mounted:
            size = (status.get("capacity") or requests(spec)).get("storage")
            price = _stored(size, spec.get("storageClassName"), objects.get("StorageClass", []))
            yield Left("claim", *_place(claim), f"{size}, no pod mounts it, holds data", price)


def _volumes(objects: Mapping[str, list[Object]]) -> Iterator[Left]:
    """Yield volumes whose claim is gone, and those that could not be deleted after it."""
    for volume in objects.get("PersistentVolume", []):
        if (volume.get("status") or {}).get("phase") in ("Released", "Failed"):
            spec = volume["spec"]
            size = (spec.get("capacity") or {}).get("storage")
            price = _stored(size, spec.get("storageClassName"), objects.get("StorageClass", []))
            yield Left("volume", "-", name_of(volume), f"{size}, its claim is gone, holds data", price)


def _stored(size: object, class_name: str | None, classes: list[Object]) -> float | None:
    """The price a month of a volume of a storage class, None where the class does not tell it."""
    known: Object = next((one for one in classes if name_of(one) == class_name), {})
    parameters, asked = known.get("parameters") or {}, amount(size)
    rates = {
        "ebs.csi.aws.com": PRICES["ebs_gb_month"].get(str(parameters.get("type", "gp3"))),
        "fsx.csi.aws.com": LUSTRE.get(str(parameters.get("perUnitStorageThroughput"))),
    }
    rate = rates.get(str(known.get("provisioner")))
    return None if rate is None or asked is None else float(asked) / GIB * rate


def _balancers(objects: Mapping[str, list[Object]]) -> Iterator[Left]:
    for service in objects.get("Service", []):
        if service["spec"].get("type") == "LoadBalancer":
            given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or [{}]
            host = str(given[0].get("hostname") or given[0].get("ip") or "no address yet")
            known = host.endswith(".amazonaws.com") and not host.endswith(".elb.amazonaws.com")  # a classic one
            price = PRICES["load_balancer_hour"] * HOURS_A_MONTH if known else None
            yield Left("load balancer", *_place(service), f"{host}, without its traffic", price)


def _boards(objects: Mapping[str, list[Object]]) -> Iterator[Left]:
    for item in objects.get("Deployment", []):
        labels = item["metadata"].get("labels") or {}
        if name_of(item) == tensorboard.NAME and labels.get("app.kubernetes.io/part-of") == "trainyard":
            namespace, name = _place(item)
            remove = f"yard job tensorboard --stop -n {namespace}"
            yield Left("TensorBoard", namespace, name, "uses existing nodes", 0.0, remove)
