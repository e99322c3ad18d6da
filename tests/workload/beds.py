"""One small job of each kind, as a manifest, in the form in which users write it."""

from __future__ import annotations

import copy
from typing import Any

from tools.kube.manifests import Manifests
from tools.simulator import environment
from tools.workload import kinds
from tools.workload.workload import Workload

Object = dict[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"

TORCHRUN = ["torchrun", "-m", "trainer"]
JOBSET_RUN = [
    *("torchrun", "--nnodes=2", "--nproc-per-node=1", "--node-rank=$(JOB_COMPLETION_INDEX)"),
    *("--master-addr=job-workers-0-0.job", "--master-port=3389", "train.py"),
]
JOB_RUN = [*JOBSET_RUN[:4], "--master-addr=job-0.trainers", "--master-port=3389", "train.py"]
VOLCANO_RUN = [
    *("torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=job-worker-0.job:29400"),
    *("--nproc-per-node=1", "train.py"),
]


def template(command: list[str], name: str = "main", **spec: Any) -> Object:
    """Return a pod template with one container."""
    return {"spec": {"containers": [{"name": name, "image": "trainer:1", "command": command}], **spec}}


def made(api: str, kind: str, spec: Object) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "job"}, "spec": spec}


PYTORCHJOB = made(
    "kubeflow.org/v1",
    "PyTorchJob",
    {
        "elasticPolicy": {"rdzvBackend": "c10d", "maxReplicas": 4, "minReplicas": 2},
        "runPolicy": {"backoffLimit": 6},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template(TORCHRUN, "pytorch")}},
    },
)
VOLCANO = made(
    "batch.volcano.sh/v1alpha1",
    "Job",
    {
        "schedulerName": "volcano",
        "queue": "team",
        "maxRetry": 5,
        "plugins": {"svc": [], "env": []},
        "tasks": [{"name": "worker", "replicas": 2, "template": template(VOLCANO_RUN)}],
    },
)
JOBSET = made(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    {
        "failurePolicy": {"maxRestarts": 3},
        "coordinator": {"replicatedJob": "workers"},
        "replicatedJobs": [
            {
                "name": "workers",
                "template": {"spec": {"parallelism": 2, "completions": 2, "template": template(JOBSET_RUN)}},
            }
        ],
    },
)
JOB = made(
    "batch/v1",
    "Job",
    {
        "completionMode": "Indexed",
        "parallelism": 2,
        "completions": 2,
        "template": template(JOB_RUN, subdomain="trainers", restartPolicy="Never"),
    },
)
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "trainers"},
    "spec": {"clusterIP": "None", "selector": {"job-name": "job"}},
}
HYPERPOD = made(
    "sagemaker.amazonaws.com/v1",
    "HyperPodPyTorchJob",
    {
        "nprocPerNode": "8",
        "runPolicy": {"cleanPodPolicy": "None", "jobMaxRetryCount": 10},
        "replicaSpecs": [
            {
                "name": "pod",
                "replicas": 2,
                "template": template(["hyperpodrun", "--nproc-per-node=8", "a.py"]),
            }
        ],
    },
)
TRAINJOB = made(
    "trainer.kubeflow.org/v1alpha1",
    "TrainJob",
    {
        "runtimeRef": {"name": "torch"},
        "trainer": {
            "numNodes": 2,
            "numProcPerNode": 4,
            "image": "mine:2",
            "env": [{"name": "A", "value": "1"}],
        },
    },
)
RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "failurePolicy": {"maxRestarts": 1},
                "replicatedJobs": [
                    {"name": "dataset", "template": {"spec": {"template": template(["fetch"])}}},
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                            "spec": {"template": template(TORCHRUN, "node")},
                        },
                    },
                ],
            }
        },
    },
}
# Each kind with the other objects of its file.
BEDS: dict[str, list[Object]] = {
    "PyTorchJob": [PYTORCHJOB],
    "Volcano": [VOLCANO],
    "JobSet": [JOBSET],
    "Job": [JOB, SERVICE],
    "HyperPodPyTorchJob": [HYPERPOD],
    "TrainJob": [TRAINJOB, RUNTIME],
}


def bed(name: str) -> list[Object]:
    """Return a copy of a bed's objects, the job first."""
    return copy.deepcopy(BEDS[name])


def of(objects: list[Object]) -> Workload:
    """Return the only workload of some objects."""
    (workload,) = kinds.find(Manifests("here", objects)).workloads
    return workload


def values(workload: Workload, index: int) -> dict[str, str]:
    """Return the variables of a rank's container as the kubelet resolves them."""
    pod = workload.ranks()[index]
    return environment.resolve(pod, pod.container, workload.manifests, share=1).values
