"""What the Kubeflow training operator makes of a PyTorchJob: its pods and their environment.

Read in the source of github.com/kubeflow/training-operator (v1.9.4 also as github.com/kubeflow/trainer),
tags v1.7.0, v1.8.0, v1.8.1 and v1.9.0 to v1.9.4. The functions name the files they follow.
tools/workload/kinds.yaml lists the differences between the versions that change pods.

Not modelled: gang scheduling and custom init container templates, which are options of the operator itself.
"""

import copy
import re
from collections.abc import Iterable

from tools.core.tables import load
from tools.kube.images import last_word
from tools.kube.manifests import Object
from tools.workload.operator_admission import DEFAULT_CONTAINER, MASTER, REPLICA_TYPES, WORKER, parsed
from tools.workload.pod import ControllerFault, Pod, check_size, main_container, with_environment

RELEASES: dict[str, str] = load("workload/kinds.yaml")["operator releases"]  # by the tag of the image
VERSIONS = tuple(RELEASES.values())
LATEST = VERSIONS[-1]
IMAGE = "training-operator"  # the last word of its name

DEFAULT_PORT_NAME = "pytorchjob-port"
DEFAULT_PORT = 23456
ELASTIC = {"maxRestarts": "PET_MAX_RESTARTS", "nProcPerNode": "PET_NPROC_PER_NODE", "rdzvId": "PET_RDZV_ID"}
LABEL = "training.kubeflow.org/"


def release(images: Iterable[str]) -> str:
    """Return the operator's release by the images of a cluster, empty where it is unknown or not one."""
    tags = {tag for name, tag in map(last_word, images) if name == IMAGE}
    found = {RELEASES.get(tag, tag.removeprefix("v")) for tag in tags}
    return found.pop() if len(found) == 1 and found < {*VERSIONS} else ""


def defaulted(job: Object) -> Object:
    """Return a copy of `job` with the operator's defaults filled in.

    Follows SetDefaults_PyTorchJob in pkg/apis/kubeflow.org/v1/pytorch_defaults.go (equal in all versions).
    Raises ControllerFault where that code dereferences a nil pointer.
    """
    result = copy.deepcopy(job)
    spec = result["spec"]
    run_policy = spec["runPolicy"] = spec.get("runPolicy") or {}
    if run_policy.get("cleanPodPolicy") is None:
        run_policy["cleanPodPolicy"] = "None"
    replicas = spec["pytorchReplicaSpecs"] = _camel_case(spec.get("pytorchReplicaSpecs") or {})
    for replica in replicas.values():
        _default_replica(replica)
    if spec.get("elasticPolicy") is not None:
        _default_elastic(spec)
    if spec.get("nprocPerNode") is None and (spec.get("elasticPolicy") or {}).get("nProcPerNode") is None:
        spec["nprocPerNode"] = "auto"
    return result


def pods(job: Object, version: str = LATEST) -> list[Pod]:
    """Return the pods that operator `version` creates for `job`, Master before Worker, by index.

    Follows createNewPod and ReconcilePods in pkg/controller.v1/common/pod.go. A suspended job, or one that
    another controller manages, has no pods. Raises ControllerFault where the operator would fail before a
    lasting pod exists.
    """
    release = parsed(version)
    job = defaulted(job)
    run_policy = job["spec"]["runPolicy"]
    if run_policy.get("suspend"):
        return []
    if release >= (1, 9) and run_policy.get("managedBy") == "kueue.x-k8s.io/multikueue":
        return []
    replicas = job["spec"]["pytorchReplicaSpecs"].values()
    check_size((one["replicas"], one["template"]["spec"]) for one in replicas)
    return [
        _pod(job, release, replica_type, index)
        for replica_type in (MASTER, WORKER)
        if (replica := job["spec"]["pytorchReplicaSpecs"].get(replica_type))
        for index in _indices(replica_type, replica["replicas"])
    ]


def pod_name(job_name: str, replica_type: str, index: int) -> str:
    """Return the name of a pod and of its service (GenGeneralName in pkg/core/utils.go)."""
    return f"{job_name}-{replica_type.lower()}-{index}".replace("/", "-")


def _camel_case(replicas: Object) -> Object:
    """Spell replica types as Master and Worker in any case (setTypeNameToCamelCase)."""
    known = {name.lower(): name for name in REPLICA_TYPES}
    return {known.get(name.lower(), name): replica for name, replica in replicas.items()}


def _default_replica(replica: Object) -> None:
    if replica.get("replicas") is None:
        replica["replicas"] = 1
    if not replica.get("restartPolicy"):
        replica["restartPolicy"] = "OnFailure"
    containers = replica["template"]["spec"]["containers"]
    named = (item for item in containers if item.get("name") == DEFAULT_CONTAINER)
    container = next(named, containers[0])
    ports = container["ports"] = list(container.get("ports") or [])
    if not any(port.get("name") == DEFAULT_PORT_NAME for port in ports):
        ports.append({"name": DEFAULT_PORT_NAME, "containerPort": DEFAULT_PORT})


def _default_elastic(spec: Object) -> None:
    elastic = spec["elasticPolicy"]
    low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if low is None and high is None:
        if WORKER not in spec["pytorchReplicaSpecs"]:
            raise ControllerFault("elasticPolicy needs a Worker: the operator fails on a nil pointer")
        low = high = spec["pytorchReplicaSpecs"][WORKER]["replicas"]
    elastic["minReplicas"] = high if low is None else low
    elastic["maxReplicas"] = low if high is None else high


def _indices(replica_type: str, replicas: int) -> range:
    if replicas < 1:
        raise ControllerFault(
            f"{replica_type}.replicas is {replicas}: the operator creates and deletes pod 0 in a loop"
            " (CalculatePodSliceSize in pkg/core/pod.go is never below one)"
        )
    return range(replicas)


def _pod(job: Object, release: tuple[int, ...], replica_type: str, index: int) -> Pod:
    replica = job["spec"]["pytorchReplicaSpecs"][replica_type]
    template = replica["template"]
    metadata = template.get("metadata") or {}
    name = job["metadata"]["name"]
    labels = {
        **(metadata.get("labels") or {}),
        LABEL + "operator-name": "pytorchjob-controller",
        LABEL + "job-name": name,
        LABEL + "replica-type": replica_type.lower(),
        LABEL + "replica-index": str(index),
    }
    if _is_master(job, release, replica_type, index):
        labels[LABEL + "job-role"] = "master"
    spec = with_environment(template["spec"], _environment(job, release, replica_type, index))
    if replica_type == WORKER and MASTER in job["spec"]["pytorchReplicaSpecs"]:
        spec["initContainers"] = [*(spec.get("initContainers") or []), _init_container(name)]
    policy = replica["restartPolicy"]
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    own = pod_name(name, replica_type, index)
    return Pod(
        name=own,
        namespace=job["metadata"].get("namespace") or "default",
        job=name,
        role=replica_type.lower(),
        index=index,
        labels=labels,
        annotations=dict(metadata.get("annotations") or {}),
        restart_policy=policy,
        spec=spec,
        hosts=(own,),
        main=main_container(template, DEFAULT_CONTAINER),
    )


def _is_master(job: Object, release: tuple[int, ...], replica_type: str, index: int) -> bool:
    if release < (1, 8) or MASTER in job["spec"]["pytorchReplicaSpecs"]:
        return replica_type == MASTER
    return index == 0


def _environment(job: Object, release: tuple[int, ...], replica_type: str, index: int) -> list[Object]:
    """Return what setPodEnv (pytorch/envvar.go) appends to each container's environment, where it wins over `env`."""
    spec = job["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    total = sum(replica["replicas"] for replica in replicas.values())
    pairs: list[tuple[str, str]] = [("PYTHONUNBUFFERED", "1")]
    if MASTER in replicas:
        rank = index + 1 if replica_type == WORKER else index
        pairs += _master(job, rank, total, with_nproc=release < (1, 8))
    if release >= (1, 8) and spec.get("nprocPerNode") is not None:
        pairs.append(("PET_NPROC_PER_NODE", spec["nprocPerNode"]))
    if spec.get("elasticPolicy") is None:
        pairs.append(("PET_NNODES", str(total)))
    else:
        pairs += _elastic(job)
    return [{"name": name, "value": value} for name, value in pairs]


def _master(job: Object, rank: int, total: int, with_nproc: bool) -> list[tuple[str, str]]:
    """Return the variables of a job with a Master (pytorch/master.go, pytorch/envvar.go)."""
    spec = job["spec"]
    nproc = spec.get("nprocPerNode")
    port = str(_default_port(spec["pytorchReplicaSpecs"][MASTER]))
    address = pod_name(job["metadata"]["name"], MASTER, 0)
    pairs = [
        ("MASTER_PORT", port),
        ("PET_MASTER_PORT", port),
        ("MASTER_ADDR", address),
        ("PET_MASTER_ADDR", address),
        ("WORLD_SIZE", str(total * _processes(nproc))),
        ("RANK", str(rank)),
    ]
    if with_nproc:
        if nproc is None:
            raise ControllerFault("operator 1.7.0 fails on elasticPolicy.nProcPerNode with a Master")
        pairs.append(("PET_NPROC_PER_NODE", nproc))
    return [*pairs, ("PET_NODE_RANK", str(rank))]


def _processes(nproc: str | None) -> int:
    """Return the processes of a node for WORLD_SIZE: one when nprocPerNode is not an integer (getNprocPerNodeInt)."""
    return int(nproc) if nproc is not None and re.fullmatch(r"[+-]?[0-9]+", nproc) else 1


def _elastic(job: Object) -> list[tuple[str, str]]:
    """Return the variables of a job with elasticPolicy (pytorch/elastic.go), in the order of Generate."""
    spec, name = job["spec"], job["metadata"]["name"]
    elastic = spec["elasticPolicy"]
    host = elastic.get("rdzvHost")
    port = elastic.get("rdzvPort")
    if port is None:
        if WORKER not in spec["pytorchReplicaSpecs"]:
            raise ControllerFault("elasticPolicy needs a Worker: the operator fails on a nil pointer")
        port = _default_port(spec["pytorchReplicaSpecs"][WORKER])
    backend = elastic.get("rdzvBackend")
    pairs = [
        ("PET_RDZV_ENDPOINT", f"{name + '-worker-0' if host is None else host}:{port}"),
        ("PET_RDZV_BACKEND", "c10d" if backend is None else backend),
        ("PET_NNODES", f"{elastic['minReplicas']}:{elastic['maxReplicas']}"),
    ]
    pairs += [(name, str(elastic[key])) for key, name in ELASTIC.items() if elastic.get(key) is not None]
    if elastic.get("rdzvConf") is not None:
        pairs.append(("PET_RDZV_CONF", _rdzv_conf(elastic["rdzvConf"])))
    if elastic.get("standalone"):
        pairs.append(("PET_STANDALONE", ""))
    return pairs


def _rdzv_conf(entries: list[Object]) -> str:
    if not entries:
        raise ControllerFault("elasticPolicy.rdzvConf is an empty list: the operator fails on it")
    return ",".join(f"{entry.get('key') or ''}={entry.get('value') or ''}" for entry in entries)


def _default_port(replica: Object) -> int:
    """Return the port named pytorchjob-port of the container named pytorch (getPortFromPyTorchJob)."""
    for container in replica["template"]["spec"]["containers"]:
        for port in container.get("ports") or []:
            if container.get("name") == DEFAULT_CONTAINER and port.get("name") == DEFAULT_PORT_NAME:
                return int(port["containerPort"])
    raise ControllerFault(f"no container named {DEFAULT_CONTAINER} with a port named {DEFAULT_PORT_NAME}")


def _init_container(job_name: str) -> Object:
    """Return the container in which a worker waits for its Master's name."""
    given: Object = load("workload/kinds.yaml")["init container"]
    *shell, script = given["command"]
    return {**given, "command": [*shell, script.replace("MASTER", pod_name(job_name, MASTER, 0))]}
