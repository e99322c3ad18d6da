"""Checks of the components that a job needs, by what the API server serves and not by names.

A check that does not apply to the cluster returns None.
"""

from tools.cluster.finding import Finding, bad, good, unknown, warn
from tools.cluster.node_checks import is_on_ec2
from tools.cluster.nodes import table
from tools.cluster.snapshot import CLAIMS, CRD, JOBS, OPERATOR_WEBHOOK, SLICES, Snapshot
from tools.cluster.spec import Spec
from tools.facts.node_labels import HEALTH
from tools.kube import Object

FSX = "fsx.csi.aws.com"
CLAIM = "trainyard"
FIX = "yard cluster validate --fix"


def operator(spec: Spec, snapshot: Snapshot) -> Finding:
    """Check that the API server serves PyTorchJobs: the CRD is established, and its webhook has endpoints."""
    crd = snapshot.find(CRD, JOBS)
    if crd is None:
        return bad("operator", f"{JOBS} is not served", _apply(spec, "plugins", "training-operator"))
    conditions = (crd.get("status") or {}).get("conditions") or []
    if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
        return bad("operator", f"the CRD {JOBS} is not established", f"kubectl describe crd {JOBS}")
    silent = [
        f"{hook['name']}: {service['namespace']}/{service['name']} has no ready endpoint"
        for configuration in snapshot.of(OPERATOR_WEBHOOK)
        for hook in configuration.get("webhooks") or []
        if (service := (hook.get("clientConfig") or {}).get("service")) and _is_about_jobs(hook)
        if not _has_endpoint(snapshot, service["namespace"], service["name"])
    ]
    if silent:
        summary = "PyTorchJobs are served, but their webhook does not answer"
        return bad("operator", summary, "wait, or check the pods of the operator", *silent)
    return good("operator", "PyTorchJobs are served, and their webhooks have endpoints")


def dns(spec: Spec, snapshot: Snapshot) -> Finding:
    if _has_endpoint(snapshot, "kube-system", "kube-dns"):
        return good("dns", "kube-system/kube-dns has ready endpoints")
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
    if phase != "Bound":
        return bad("claim", f"{CLAIM} is {phase}", f"kubectl describe pvc {CLAIM} -n {spec.namespace}")
    return good("claim", f"{CLAIM} is bound")


def auto_resume(spec: Spec, snapshot: Snapshot) -> Finding | None:
    """Check that HyperPod resumes jobs in the team's namespace automatically."""
    is_hyperpod = any(HEALTH in (one["metadata"].get("labels") or {}) for one in snapshot.of("nodes"))
    if spec.get("HYPERPOD_CLUSTER_NAME") is None and not (spec.context is not None and is_hyperpod):
        return None
    if spec.namespace != "kubeflow" and not spec.namespace.startswith("hyperpod"):
        remedy = "TEAM_NAMESPACE=hyperpod-..., or resume jobs with: yard job retry"
        return warn("auto-resume", f"HyperPod does not resume jobs in {spec.namespace}", remedy)
    limit = "with --feature hyperpod twice a job; AWS documents it for training operator 1.7.0 to 1.8.1"
    return good("auto-resume", f"HyperPod resumes jobs in {spec.namespace}", limit)


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


def _is_about_jobs(hook: Object) -> bool:
    return any("kubeflow.org" in rule.get("apiGroups", []) for rule in hook.get("rules") or [])


def _has_endpoint(snapshot: Snapshot, namespace: str, service: str) -> bool:
    """Return whether a service has a ready endpoint. An endpoint without the condition counts as ready."""
    for item in snapshot.of(SLICES):
        metadata = item["metadata"]
        named = (metadata.get("labels") or {}).get("kubernetes.io/service-name") == service
        if named and metadata.get("namespace") == namespace:
            ready = [(one.get("conditions") or {}).get("ready") for one in item.get("endpoints") or []]
            if any(one is not False for one in ready):
                return True
    return False
