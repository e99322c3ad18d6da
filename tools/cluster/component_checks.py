"""Checks of the components that a job needs, by what the API server serves and not by names.

A check that does not apply to the cluster returns None.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tools.cluster import snapshot as snapshots
from tools.cluster.finding import Finding, bad, good, unknown, warn
from tools.cluster.node_checks import is_on_ec2
from tools.cluster.nodes import table
from tools.cluster.snapshot import CLAIMS, CRD, DAEMONS, DEPLOYMENTS, JOBS, QUEUES, SLICES, Snapshot, images
from tools.cluster.spec import Spec
from tools.core import tables, worst
from tools.facts import compatibility, node_labels
from tools.kube import Object, name_of
from tools.kube.images import last_word
from tools.kube.selectors import labels_of
from tools.workload import operator_pods

FSX = "fsx.csi.aws.com"
CLAIM = QUEUE = "trainyard"
HYPERPOD_JOBS = "hyperpodpytorchjobs.sagemaker.amazonaws.com"
KUEUE_CLASSES = ("trainyard-high", "trainyard-low")  # of base/plugins/kueue/queue
CONTROLLERS: dict[str, dict[str, Any]] = tables.load("cluster/tables.yaml")["controllers"]
FIX = "yard cluster validate --fix"
SERVICE = "kubernetes.io/service-name"  # the label of an EndpointSlice; its other labels are those of the Service


def operator(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that the API server serves PyTorchJobs: the CRD is established, and its webhooks have endpoints."""
    crd = snapshot.find(CRD, JOBS)
    if crd is None:
        if serves_only_trainjobs(snapshot):
            return warn("operator", f"{JOBS} is not served, only TrainJob is", "--feature trainjob")
        return bad("operator", f"{JOBS} is not served", _apply(spec, "plugins", "training-operator"))
    if not _is_established(crd):
        return bad("operator", f"the CRD {JOBS} is not established", f"kubectl describe crd {JOBS}")
    silent = _silent(snapshot, "kubeflow.org") + _without_replica(snapshot, ["training-operator"])
    if silent:
        summary = "PyTorchJobs are served, but their webhook or controller does not answer"
        return bad("operator", summary, "wait, or check the pods of the operator", *silent)
    if not _traces(snapshot, "kubeflow.org", ["training-operator"]):
        summary = "PyTorchJobs are served, and nothing shows that the operator runs"
        return warn("operator", summary, _apply(spec, "plugins", "training-operator"))
    return good("operator", "PyTorchJobs are served, and their webhooks have endpoints")


def serves_only_trainjobs(snapshot: Snapshot) -> bool:
    """Return whether the API server serves TrainJobs and no PyTorchJobs."""
    return snapshot.find(CRD, JOBS) is None and snapshot.find(CRD, CONTROLLERS["trainer"]["type"]) is not None


def controllers(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check Trainer, JobSet, Kueue and Volcano, where their types show that they are installed."""
    served = {name: crd for name, row in CONTROLLERS.items() if (crd := snapshot.find(CRD, row["type"]))}
    if "trainer" in served and "jobset" not in served:
        remedy = "install JobSet, which Trainer makes its pods with"
        return bad("controllers", "TrainJobs are served without JobSets", remedy)
    ill = [
        f"{name}: the CRD {name_of(crd)} is not established" for name, crd in served.items() if not _is_established(crd)
    ]
    absent = []
    for name in served:
        row = CONTROLLERS[name]
        silent = _silent(snapshot, row["group"]) + _without_replica(snapshot, row["images"])
        ill += [f"{name}: {line}" for line in silent]
        absent += [] if _traces(snapshot, row["group"], row["images"]) else [name]
    if ill:
        return bad("controllers", f"{len(ill)} parts of controllers do not answer", "check their pods and events", *ill)
    if absent:
        summary = f"types are served, and nothing shows that a controller of {', '.join(absent)} runs"
        return warn("controllers", summary, "install it; without it a job of such a type stays as it is created")
    return good("controllers", f"{', '.join(served)}: types served, controllers running") if served else None


def queue(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check the team's queue of Kueue with its priority classes, and that of Volcano, where these are installed."""
    found = [*_kueue(spec, snapshot), *_volcano(snapshot)]
    return next((one for one in found if one.state is worst(each.state for each in found)), None)


def _kueue(spec: Spec, snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.find(CRD, snapshots.CLUSTER_QUEUES) is None:
        return
    hidden = [
        snapshot.unseen[kind]
        for kind in (QUEUES, snapshots.CLUSTER_QUEUES, snapshots.PRIORITIES)
        if kind in snapshot.unseen
    ]
    local = snapshot.find(QUEUES, QUEUE, spec.namespace)
    if local is None:
        remedy = _apply(spec, "queues" if spec.context is None else "plugins", "kueue/queue")
        summary = f"Kueue is installed, and {spec.namespace} has no LocalQueue {QUEUE}"
        yield unknown("queue", hidden[0]) if hidden else bad("queue", summary, remedy)
        return
    cluster = snapshot.find(snapshots.CLUSTER_QUEUES, str((local.get("spec") or {}).get("clusterQueue")))
    ill = [line for one in (local, cluster) if one for line in _inactive(one)]
    known = {name_of(one) for one in snapshot.of(snapshots.PRIORITIES)}
    absent = [name for name in KUEUE_CLASSES if name not in known]
    if ill:
        yield bad("queue", "the team's queue admits no job", "kubectl describe clusterqueue", *ill)
    elif hidden:
        yield unknown("queue", hidden[0])
    elif absent:
        remedy = "apply base/plugins/kueue/queue again"
        yield warn("queue", f"no WorkloadPriorityClass {' and '.join(absent)}", remedy)
    else:
        yield good("queue", f"{spec.namespace}/{QUEUE} admits jobs, and its priority classes exist")


def _inactive(item: Object) -> list[str]:
    """Return why a queue of Kueue admits nothing, in its controller's words."""
    kinds = {one["type"]: one for one in (item.get("status") or {}).get("conditions") or []}
    active = kinds.get("Active", {"status": "Unknown", "message": "its controller has not looked at it"})
    held = (item.get("spec") or {}).get("stopPolicy") or "None"
    lines = [] if active["status"] == "True" else [str(active.get("message") or active.get("reason"))]
    lines += [f"stopPolicy is {held}"] if held != "None" else []
    return [f"{item.get('kind', 'queue')} {name_of(item)}: {line}" for line in lines]


def _volcano(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.find(CRD, snapshots.VOLCANO_QUEUES) is None:
        return
    found = snapshot.find(snapshots.VOLCANO_QUEUES, QUEUE)
    state = ((found or {}).get("status") or {}).get("state")
    if snapshots.VOLCANO_QUEUES in snapshot.unseen:
        yield unknown("queue", snapshot.unseen[snapshots.VOLCANO_QUEUES])
    elif found is None:
        yield bad("queue", f"Volcano is installed without a queue {QUEUE}", "apply base/plugins/volcano/queue")
    elif state not in (None, "Open"):
        yield bad(
            "queue", f"Volcano's queue {QUEUE} is {state}", f"open it: vcctl queue operate --action open -n {QUEUE}"
        )
    else:
        yield good("queue", f"Volcano's queue {QUEUE} is open")


def device_plugins(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that the pods of DaemonSets that serve devices to the kubelet run."""
    plugins = {_place(one): one for one in snapshot.of(DAEMONS) if _serves_devices(one)}
    owned = [
        (pod, (pod["metadata"].get("namespace"), owner.get("name")))
        for pod in snapshot.of("pods")
        for owner in pod["metadata"].get("ownerReferences") or []
        if owner.get("kind") == "DaemonSet"
    ]
    owned = [(pod, owner) for pod, owner in owned if owner in plugins]
    ill, counts = [line for pod, _ in owned for line in _not_started(pod)], Counter(owner for _, owner in owned)
    for place, one in plugins.items():
        wanted = (one.get("status") or {}).get("desiredNumberScheduled") or 0
        if counts[place] < wanted:
            where = f"{place[0]}/{place[1]}: {counts[place]} of {wanted} pods exist"
            ill.append(f"{where}; kubectl describe daemonset names the reason")
    if ill:
        remedy = "kubectl describe pod; a node without its device plugin offers no devices"
        return bad("device plugins", f"not all pods of {len(plugins)} DaemonSets run", remedy, *ill)
    return good("device plugins", f"{len(owned)} pods of {len(plugins)} DaemonSets run") if owned else None


def _place(item: Object) -> tuple[Any, str]:
    return item["metadata"].get("namespace"), name_of(item)


def _serves_devices(daemon: Object) -> bool:
    """Return whether a DaemonSet mounts the directory where device plugins register."""
    template: Object = (daemon.get("spec") or {}).get("template") or {}
    paths = [str((one.get("hostPath") or {}).get("path")) for one in (template.get("spec") or {}).get("volumes") or []]
    return any(path.startswith("/var/lib/kubelet/device-plugins") for path in paths)


def _not_started(pod: Object) -> list[str]:
    """Return why a pod does not run, in the kubelet's words."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waits = [waiting for one in containers if (waiting := (one.get("state") or {}).get("waiting"))]
    reasons = [
        f"{one.get('reason')}: {one.get('message') or 'no message'}"
        for one in waits
        if one.get("reason") not in ("ContainerCreating", "PodInitializing")
    ]
    if not reasons and status.get("phase") in ("Pending", "Failed", "Unknown") and not waits:
        unscheduled = (one.get("message") for one in status.get("conditions") or [] if one.get("status") == "False")
        found = [status.get("reason"), status.get("message"), *unscheduled, "no reason given"]
        reasons = [f"{status['phase']}: {next(filter(None, found))}"]
    where = f"{metadata.get('namespace')}/{metadata['name']} on {(pod.get('spec') or {}).get('nodeName') or 'no node'}"
    return [f"{where}: {reason}" for reason in reasons[:1]]


def dns(spec: Spec, snapshot: Snapshot) -> Finding:
    if _has_endpoint(snapshot, "kube-system", "kube-dns"):
        return good("dns", "kube-system/kube-dns has ready endpoints")
    slices = [labels_of(one) for one in snapshot.of(SLICES)]
    others = {str(one.get(SERVICE)) for one in slices if one.get("k8s-app") == "kube-dns"} - {"kube-dns"}
    for item in snapshot.of(SLICES) if others else ():
        name, space = str(labels_of(item).get(SERVICE)), str(item["metadata"].get("namespace"))
        if name in others and _has_endpoint(snapshot, space, name):
            return good("dns", f"{space}/{name} has ready endpoints")
    if not spec.get("CLUSTER_NAME") and all(one.get(SERVICE) != "kube-dns" for one in slices):
        remedy = "kubectl get services --all-namespaces shows which one has port 53"
        return unknown("dns", "no Service is kube-system/kube-dns, and DNS may have another name", remedy)
    remedy = "install the add-on coredns, and start a node for it"
    return bad("dns", "kube-system/kube-dns has no ready endpoint", remedy)


def fsx_driver(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that ready nodes serve FSx, and that the driver gives new file systems to the jobs' user."""
    driver = snapshot.find("csidrivers", FSX)
    wanted = spec.get("FSX_FILE_SYSTEM_ID") or spec.get("FSX_SUBNET_ID")
    if wanted is None and (spec.context is None or driver is None):
        return None
    if driver is None:
        remedy = f"apply `yard platform {spec.title}/plugins`, or install the EKS add-on"
        return bad("fsx", f"no CSI driver {FSX}", remedy)
    ready = [one.name for one in table(snapshot) if one.ready]
    serving = {
        one["metadata"]["name"]
        for one in snapshot.of("csinodes")
        if any(item["name"] == FSX for item in (one.get("spec") or {}).get("drivers") or [])
    }
    without = [name for name in ready if name not in serving]
    if without:
        summary = f"{len(without)} of {len(ready)} nodes do not serve {FSX}"
        return bad("fsx", summary, "check the driver's pods on these nodes", *without)
    if (driver.get("spec") or {}).get("fsGroupPolicy") != "File":
        return bad("fsx", "new file systems belong to root: fsGroupPolicy of the driver is not File", FIX)
    return good("fsx", f"{len(ready)} nodes serve {FSX}")


def namespace(spec: Spec, snapshot: Snapshot) -> Finding:
    if snapshot.find("namespaces", spec.namespace) is None:
        return bad("namespace", f"the namespace {spec.namespace} does not exist", FIX)
    return good("namespace", spec.namespace)


def claim(spec: Spec, snapshot: Snapshot) -> Finding:
    found = snapshot.find(CLAIMS, CLAIM, spec.namespace)
    if found is None:
        remedy = _apply(spec, "storage", f"default-class -n {spec.namespace}")
        return bad("claim", f"{spec.namespace} has no claim {CLAIM}", remedy)
    phase = (found.get("status") or {}).get("phase")
    name = str((found.get("spec") or {}).get("storageClassName"))
    storage_class = snapshot.find(snapshots.CLASSES, name) or {}
    if phase == "Pending" and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer":
        return good("claim", f"{CLAIM} gets its volume when its first pod starts (class {name})")
    if phase == "Pending" and snapshots.CLASSES in snapshot.unseen:
        return unknown(
            "claim", f"whether {CLAIM} waits for its first pod is hidden: {snapshot.unseen[snapshots.CLASSES]}"
        )
    if phase != "Bound":
        return bad("claim", f"{CLAIM} is {phase}", f"kubectl describe pvc {CLAIM} -n {spec.namespace}")
    return good("claim", f"{CLAIM} is bound")


def auto_resume(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that HyperPod resumes jobs in the team's namespace automatically."""
    is_hyperpod = any(node_labels.HEALTH in (one["metadata"].get("labels") or {}) for one in snapshot.of("nodes"))
    if spec.get("HYPERPOD_CLUSTER_NAME") is None and not (spec.context is not None and is_hyperpod):
        return None
    if spec.namespace != "kubeflow" and not spec.namespace.startswith("hyperpod"):
        remedy = "TEAM_NAMESPACE=hyperpod-..., or resume jobs with: yard job retry"
        return warn("auto-resume", f"HyperPod does not resume jobs in {spec.namespace}", remedy)
    seen = {
        "training operator": [operator_pods.release(image for one in snapshot.of(DEPLOYMENTS) for image in images(one))]
    }
    outside = compatibility.outside_hyperpod("auto-resume", seen)
    outside += compatibility.outside_hyperpod("service", {"kubernetes": _minors(snapshot)})
    if outside:
        remedy = "use documented versions, or resume jobs with: yard job retry"
        return warn("auto-resume", "AWS documents it for other versions", remedy, *outside)
    return good("auto-resume", f"HyperPod resumes jobs in {spec.namespace}", "with --feature hyperpod twice a job")


def hyperpod_operator(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Compare Kubernetes and Kueue with the versions for which AWS documents the HyperPod training operator."""
    if snapshot.find(CRD, HYPERPOD_JOBS) is None:
        return None
    tags = [last_word(image) for one in snapshot.of(DEPLOYMENTS) for image in images(one)]
    running = {
        "kubernetes": _minors(snapshot),
        "kueue": {tag.removeprefix("v") for name, tag in tags if name == "kueue" and tag},
    }
    outside = compatibility.outside_hyperpod("own operator", running)
    torch = "torch " + " to ".join(compatibility.HYPERPOD["own operator"]["torch"]) + " in the job's image"
    if outside:
        remedy = f"submit PyTorchJobs (no feature hyperpod-job), or use documented versions, also {torch}"
        return warn("hyperpod operator", "AWS documents it for other versions", remedy, *outside)
    return good("hyperpod operator", "Kubernetes and Kueue are versions for which AWS documents it", f"also {torch}")


def _minors(snapshot: Snapshot) -> set[str]:
    """Return the versions of Kubernetes that the nodes run, as 1.33."""
    infos = [(one.get("status") or {}).get("nodeInfo") or {} for one in snapshot.of("nodes")]
    texts = [str(one.get("kubeletVersion") or "").removeprefix("v").partition("-")[0] for one in infos]
    return {compatibility.series(text) for text in texts if text}


def bucket(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Say that the bucket of a cluster on EC2 is unknown where there is only a context."""
    if spec.context is None or not any(map(is_on_ec2, snapshot.of("nodes"))):
        return None
    return unknown("bucket", f"{spec.source} names no S3_BUCKET", "yard cluster validate CLUSTER")


def _apply(spec: Spec, part: str, folder: str) -> str:
    """Return how to apply a part of the platform: of a cluster's directory, or a folder of base/."""
    if spec.context is None:
        return f"apply `yard platform {spec.title}/{part}`, or use Flux"
    return f"kubectl apply --server-side -k base/{part}/{folder}"


def _is_established(crd: Object) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _silent(snapshot: Snapshot, group: str) -> list[str]:
    """Return the webhooks that judge objects of an API group and have no ready endpoint."""
    return [
        f"{hook}: {service['namespace']}/{service['name']} has no ready endpoint"
        for hook, service in _webhooks(snapshot, group)
        if not _has_endpoint(snapshot, service["namespace"], service["name"])
    ]


def _webhooks(snapshot: Snapshot, group: str) -> list[tuple[str, Object]]:
    """Return the webhooks that judge objects of an API group, each with its Service."""
    return [
        (hook["name"], service)
        for configuration in [*snapshot.of(snapshots.OPERATOR_WEBHOOK), *snapshot.of(snapshots.MUTATING)]
        for hook in configuration.get("webhooks") or []
        if (service := (hook.get("clientConfig") or {}).get("service"))
        if any(group in (rule.get("apiGroups") or []) for rule in hook.get("rules") or [])
    ]


def _traces(snapshot: Snapshot, group: str, names: list[str]) -> list[Any]:
    """Return what shows that a controller was installed: its webhooks, and Deployments with its images."""
    return [*_webhooks(snapshot, group), *_deployments(snapshot, names)]


def _without_replica(snapshot: Snapshot, names: list[str]) -> list[str]:
    """Return the Deployments with these images that have no available replica."""
    return [
        f"Deployment {one['metadata'].get('namespace')}/{name_of(one)} has no available replica"
        for one in _deployments(snapshot, names)
        if not (one.get("status") or {}).get("availableReplicas")
    ]


def _deployments(snapshot: Snapshot, names: list[str]) -> list[Object]:
    """Return the Deployments with these images."""
    return [one for one in snapshot.of(DEPLOYMENTS) if any(last_word(image)[0] in names for image in images(one))]


def _has_endpoint(snapshot: Snapshot, namespace: str, service: str) -> bool:
    """Return whether a service has a ready endpoint. An endpoint without the condition counts as ready."""
    for item in snapshot.of(SLICES):
        metadata = item["metadata"]
        named = labels_of(item).get(SERVICE) == service
        if named and metadata.get("namespace") == namespace:
            ready = [(one.get("conditions") or {}).get("ready") for one in item.get("endpoints") or []]
            if any(one is not False for one in ready):
                return True
    return False
