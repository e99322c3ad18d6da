"""Kubernetes' own Job, batch/v1, and the pods that its controller makes, also for a JobSet.

Follows kubernetes/kubernetes v1.36: pkg/controller/job/indexed_job_utils.go (host name, index as annotation
and label, JOB_COMPLETION_INDEX) and pkg/apis/batch/v1/defaults.go. A pod's name has a random end that is
left out here: `<job>-<index>`, which is also its host name.
"""

from dataclasses import dataclass, field

from tools.core.nested import mapping
from tools.kube.manifests import Object
from tools.workload.launches import launches
from tools.workload.pod import Pod, main_container, with_environment
from tools.workload.workload import JobState, Nameless, Role, Workload, label, number

INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
INDEXED = "Indexed"


@dataclass(frozen=True)
class Batch:
    """One Job that makes pods, its role and owner, the index of its first pod, and what the owner adds to labels."""

    name: str
    namespace: str
    owner: str
    role: str
    spec: Object
    first: int = 0
    subdomain: str = ""
    added: dict[str, str] = field(default_factory=dict)

    def pods(self) -> list[Pod]:
        """Return the pods that run at the same time, by index."""
        return [self._pod(index) for index in range(parallel(self.spec))]

    def _pod(self, index: int) -> Pod:
        template = self.spec["template"]
        metadata = template.get("metadata") or {}
        own = f"{self.name}-{index}"
        labels = {JOB_NAME: self.name, "job-name": self.name, **self.added}
        annotations = dict(self.added)
        given: list[Object] = []
        spec = template["spec"]
        if indexed(self.spec):
            labels[INDEX] = annotations[INDEX] = str(index)
            given.append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
            spec = {**spec, "hostname": own}
        return Pod(
            name=own,
            namespace=self.namespace,
            job=self.owner,
            role=self.role.lower(),
            index=self.first + index,
            labels={**(metadata.get("labels") or {}), **labels},
            annotations={**(metadata.get("annotations") or {}), **annotations},
            restart_policy=str(spec.get("restartPolicy") or "Never"),
            spec=with_environment(spec, given),
            hosts=(f"{own}.{self.subdomain}",) if self.subdomain and indexed(self.spec) else (),
            main=main_container(template),
            random_end=True,
        )


def indexed(spec: Object) -> bool:
    """Return whether the pods of a Job's spec have an index and a host name."""
    return spec.get("completionMode") == INDEXED


def parallel(spec: Object) -> int:
    """Return how many pods of a Job's spec run at the same time."""
    wanted, most = spec.get("parallelism"), spec.get("completions")
    count = 1 if wanted is None else int(wanted)
    return count if most is None else min(count, int(most))


def completions_missing(spec: Object) -> list[str]:
    """Return the fault of an Indexed Job with parallelism and without completions, which is refused."""
    missing = spec.get("completions") is None and spec.get("parallelism") is not None
    return ["must be set when parallelism is set and the Job is Indexed"] if missing and indexed(spec) else []


class IndexedJob(Workload):
    """A Job of the group batch. Without completionMode Indexed its pods have no names of their own."""

    kind = "Job"
    api = "batch/v1"
    resource = "jobs.batch"
    job_label = JOB_NAME
    of_batch = True
    retry = ("spec.backoffLimit", 6, "failed pods of the job")

    @property
    def maker(self) -> str:
        return f"Job controller, {self.spec.get('completionMode') or 'NonIndexed'}"

    @property
    def nameless(self) -> Nameless | None:
        if not indexed(self.spec):
            return Nameless("completionMode is not Indexed", "completionMode: Indexed, with a headless Service")
        subdomain = self._subdomain
        if not subdomain:
            remedy = "set spec.template.spec.subdomain to the name of a headless Service that selects the pods"
            return Nameless("spec.template.spec.subdomain is not set", remedy)
        return _headless(subdomain, self)

    def role_of(self, pod: Object) -> str:
        return "pod"

    def index_of(self, pod: Object) -> int:
        return number(label(pod, INDEX))

    @property
    def _subdomain(self) -> str:
        return str(self.spec["template"]["spec"].get("subdomain") or "")

    def _roles(self) -> list[Role]:
        template = self.spec["template"]
        count = parallel(self.spec)
        policy = str(template["spec"].get("restartPolicy") or "Never")
        trains = launches(template, self.manifests)
        most = max(count, int(self.spec.get("completions") or 0)) if indexed(self.spec) else count
        return [Role("pod", "spec.template", count, most, template, policy, trains)]

    def _write_replicas(self, place: int, count: int) -> None:
        self.spec.update(parallelism=count, completions=count)

    def _pods(self) -> list[Pod]:
        subdomain = "" if self.nameless else self._subdomain
        return Batch(self.name, self.namespace, self.name, "pod", self.spec, 0, subdomain).pods()

    def _refused(self) -> list[str]:
        wrong = super()._refused()
        return wrong or [f"spec.completions: {fault}" for fault in completions_missing(self.spec)]

    def _active(self) -> str:
        if not self.status:
            return JobState.NEW
        return JobState.RUNNING if self.status.get("active") else JobState.CREATED


def _headless(name: str, job: Workload) -> Nameless | None:
    """Return why the Service `name` of the file gives the job's pods no names, None if it does."""
    found = job.manifests.named("Service", name, job.namespace)
    other = job.manifests.named("Service", name, None)
    if found is None and other and job.item["metadata"].get("namespace"):
        space = other["metadata"]["namespace"]
        return Nameless(f"the headless Service {name} is in namespace {space}", f"namespace: {job.namespace}")
    if found is None:
        possible = {"kind": "Service", "metadata": {"name": name}, "spec": {"clusterIP": "None"}}
        return Nameless(f"the headless Service {name} is not in the file", f"add the Service {name}", possible)
    spec = mapping(found.get("spec"))
    if spec.get("clusterIP") != "None":
        return Nameless(f"the Service {name} is not headless", f"Service {name}: clusterIP: None")
    labels = {JOB_NAME: job.name, "job-name": job.name}
    labels |= (job.spec["template"].get("metadata") or {}).get("labels") or {}
    if any(labels.get(key, value) != value for key, value in mapping(spec.get("selector")).items()):
        remedy = f"Service {name}: selector: {{{JOB_NAME}: {job.name}}}"
        return Nameless(f"the Service {name} does not select the job's pods", remedy)
    return None
