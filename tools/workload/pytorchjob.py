"""PyTorchJob of the Kubeflow training operator, kubeflow.org/v1.

operator_pods.py has its pods and operator_admission.py what is refused. Conditions:
pkg/apis/kubeflow.org/v1/common_types.go (JobConditionType) of github.com/kubeflow/training-operator v1.9.4.
"""

import copy
from dataclasses import replace

from tools.kube.manifests import Object
from tools.workload import operator_pods
from tools.workload.operator_admission import DEFAULT_CONTAINER, MASTER, WORKER, rejections
from tools.workload.operator_pods import LABEL, LATEST
from tools.workload.pod import Pod, PodsUnknown, main_container
from tools.workload.workload import Role, Workload, label, number

RESTARTS_PER_NODE = 3  # losing the rendezvous host restarts every pod once; the limit counts all pods


class PyTorchJob(Workload):
    """A PyTorchJob: roles Master and Worker."""

    kind = "PyTorchJob"
    api = "kubeflow.org/v1"
    resource = "pytorchjobs.kubeflow.org"
    job_label = f"{LABEL}job-name"
    role_label = f"{LABEL}replica-type"
    retry = ("spec.runPolicy.backoffLimit", None, "restarts of all pods together")
    only_training = True
    suspend_path = ("spec", "runPolicy", "suspend")

    @property
    def maker(self) -> str:
        return f"operator {self.version or LATEST}"

    @property
    def no_rendezvous(self) -> str:
        if any(role.name == MASTER for role in self.roles):
            return "a job without elasticPolicy gets no PET_RDZV_ENDPOINT from the operator"
        return (
            "a job without Master and without elasticPolicy gets no rendezvous from the operator"
            " (no PET_RDZV_ENDPOINT, no MASTER_ADDR)"
        )

    @property
    def to_meet(self) -> str:
        return "give the job elasticPolicy with rdzvBackend: c10d, and torchrun no --nnodes, --rdzv* or --node-rank"

    def container_of(self, template: Object) -> str:
        return main_container(template, DEFAULT_CONTAINER)

    def index_of(self, pod: Object) -> int:
        return number(label(pod, f"{LABEL}replica-index"))

    def is_rank_zero(self, pod: Object) -> bool | None:
        """The operator assigns rank 0 to a Master. Among elastic Workers the rendezvous assigns it."""
        if self.role_of(pod) == MASTER.lower():
            return True
        has_master = any(role.name.lower() == MASTER.lower() for role in self.roles)
        return False if has_master or self.index_of(pod) else None

    def _roles(self) -> list[Role]:
        elastic = self.section("elasticPolicy").get("maxReplicas") or 0
        return [
            self._role(name, replica, elastic if name.lower() == WORKER.lower() else 0)
            for name, replica in sorted(self.spec["pytorchReplicaSpecs"].items(), key=str)
        ]

    @staticmethod
    def _role(name: str, replica: Object, elastic: int) -> Role:
        count = replica.get("replicas")
        count = 1 if count is None else count
        path, policy = f"spec.pytorchReplicaSpecs.{name}.template", replica.get("restartPolicy") or "OnFailure"
        return Role(name, path, count, max(count, elastic), replica["template"], policy)

    def _write_replicas(self, place: int, count: int) -> None:
        self.spec["pytorchReplicaSpecs"][self.roles[place].name]["replicas"] = count
        elastic = self.spec.get("elasticPolicy")
        if elastic is not None:
            elastic["minReplicas"] = elastic["maxReplicas"] = count

    def write_processes(self, count: int) -> bool:
        elastic = self.section("elasticPolicy")
        if elastic.get("nProcPerNode") is not None:
            elastic["nProcPerNode"] = count
        else:
            self.spec["nprocPerNode"] = str(count)
        return True

    def write_port(self, port: int) -> None:
        elastic = self.section("elasticPolicy")
        if elastic.get("rdzvPort") is not None:
            elastic["rdzvPort"] = port
        named = {"name": operator_pods.DEFAULT_PORT_NAME, "containerPort": port}
        for role in self.roles:
            for container in role.template["spec"]["containers"]:
                ports = container.get("ports") or []
                container["ports"] = [*(one for one in ports if one.get("name") != named["name"]), named]

    def _pods(self) -> list[Pod]:
        policy = self.section("runPolicy")
        started = {**self.item, "spec": {**self.spec, "runPolicy": {**policy, "suspend": False}}}
        pods = operator_pods.pods(started, self.version or LATEST)
        if not pods:
            raise PodsUnknown(f"{policy.get('managedBy')} makes the job's pods in another cluster")
        return pods

    def corrected(self) -> "PyTorchJob | None":
        """Name the first container of each role as the operator demands, where that is all that is wrong."""
        item = copy.deepcopy(self.item)
        for replica in item["spec"]["pytorchReplicaSpecs"].values() if self.roles else ():
            containers = replica["template"]["spec"]["containers"]
            if containers and all(one.get("name") != DEFAULT_CONTAINER for one in containers):
                containers[0]["name"] = DEFAULT_CONTAINER
        job = replace(self, item=item)
        return None if job.refused else job

    def _refused(self) -> list[str]:
        return rejections(self.item, self.version or LATEST) or super()._refused()
