"""HyperPodPyTorchJob of Amazon SageMaker HyperPod's training operator, sagemaker.amazonaws.com/v1.

The operator's source is not public. Fields, conditions and the label of pods follow its client,
github.com/aws/sagemaker-hyperpod-cli v3.12.0 (src/sagemaker/hyperpod/training/hyperpod_pytorch_job.py and
config/hyperpod_pytorch_job_unified_config.py). In PyPI's hyperpod-elastic-agent 1.1.3, `hyperpodrun` reads
NNODES and asks the operator for rank and master. What else the operator sets in the pods is unknown.
"""

import re

from tools.kube.manifests import Object
from tools.workload.pod import Pod
from tools.workload.workload import JobState, Role, Workload, group_of, label, number

JOB_LABEL = "HPJob"
BOUNDS = ("minReplicas", "maxReplicas")  # of elasticPolicy


class HyperPodPyTorchJob(Workload):
    """A HyperPodPyTorchJob: each entry of replicaSpecs is a role."""

    kind = "HyperPodPyTorchJob"
    maker = "HyperPod operator"
    injects = "the HyperPod operator's own variables, NNODES among them, and its rendezvous for hyperpodrun"
    api = "sagemaker.amazonaws.com/v1"
    resource = "hyperpodpytorchjobs.sagemaker.amazonaws.com"
    job_label = JOB_LABEL
    retry = ("spec.runPolicy.jobMaxRetryCount", None, "restarts of the job")
    only_training = True
    suspend_path = ("spec", "runPolicy", "suspend")

    @classmethod
    def matches(cls, item: Object) -> bool:
        """Return whether an object is of this kind, which AWS's pages also spell HyperPodPytorchJob."""
        return str(item.get("kind")).lower() == cls.kind.lower() and group_of(item) == "sagemaker.amazonaws.com"

    @property
    def state(self) -> str:
        """Return the state by the newest condition that is True, which is the last one."""
        found = self.status.get("conditions")
        for one in reversed(found if isinstance(found, list) else []):
            if isinstance(one, dict) and one.get("status") == "True":
                return self.states.get(str(one.get("type")), JobState.CREATED)
        return super().state

    def role_of(self, pod: Object) -> str:
        return self._place(pod)[0]

    def index_of(self, pod: Object) -> int:
        return self._place(pod)[1]

    def _place(self, pod: Object) -> tuple[str, int]:
        """Return role and index by the pod's name, `<job>-<replica>-<index>`."""
        name = str((pod.get("metadata") or {}).get("name"))
        found = re.fullmatch(r"(.+)-([0-9]{1,6})", name.removeprefix(f"{self.name}-"))
        return (found[1].lower(), number(found[2])) if found and label(pod, JOB_LABEL) else ("", 0)

    def _roles(self) -> list[Role]:
        most = self.section("elasticPolicy").get("maxReplicas") or 0
        return [self._role(place, one, most) for place, one in enumerate(self.spec["replicaSpecs"])]

    @staticmethod
    def _role(place: int, one: Object, most: int) -> Role:
        count = int(one.get("replicas") or 0)
        template = one["template"]
        policy = str(template["spec"].get("restartPolicy") or "Always")
        limit = max(count, one.get("maxReplicas") or 0, most)
        path = f"spec.replicaSpecs[{place}].template"
        return Role(str(one.get("name") or f"replica-{place}"), path, count, limit, template, policy)

    def _write_replicas(self, place: int, count: int) -> None:
        one = self.spec["replicaSpecs"][place]
        one["replicas"] = count
        for bounds, key in ((one, "maxReplicas"), *((self.section("elasticPolicy"), key) for key in BOUNDS)):
            if key in bounds:
                bounds[key] = count

    def write_processes(self, count: int) -> bool:
        self.spec["nprocPerNode"] = str(count)
        return True

    def _pods(self) -> list[Pod]:
        labels = {JOB_LABEL: self.name}
        return [self._pod_of(role, index, labels) for role in self.roles for index in range(role.replicas)]
