"""JobSet, jobset.x-k8s.io/v1alpha2: replicated Jobs whose pods have names in one headless Service.

Follows github.com/kubernetes-sigs/jobset v0.12.0: pkg/controllers/jobset_controller.go (constructJob,
labelAndAnnotateObject, GetSubdomain, CoordinatorEndpoint), pkg/util/placement/placement.go (names),
pkg/webhooks/jobset_webhook.go (defaults), api/jobset/v1alpha2/jobset_types.go (conditions).
"""

from tools.core.command_line import is_label
from tools.kube.manifests import Object
from tools.workload.indexed_job import INDEX, INDEXED, Batch, completions_missing, parallel
from tools.workload.launches import launches
from tools.workload.pod import Pod
from tools.workload.workload import JobState, Nameless, Role, Workload, label, number

LABEL = "jobset.sigs.k8s.io/"
SUFFIX = "-abcde"  # Kubernetes appends five random characters to a pod's name


class JobSet(Workload):
    """A JobSet: each replicated Job is a role, whose pods are numbered through all its Jobs."""

    kind = "JobSet"
    maker = "JobSet"
    api = "jobset.x-k8s.io/v1alpha2"
    resource = "jobsets.jobset.x-k8s.io"
    of_batch = True
    job_label = f"{LABEL}jobset-name"
    role_label = f"{LABEL}replicatedjob-name"
    # Each Job has a backoffLimit as well.
    retry = ("spec.failurePolicy.maxRestarts", 0, "restarts of the JobSet")

    @property
    def nameless(self) -> Nameless | None:
        if self.section("network").get("enableDNSHostnames") is False:
            return Nameless("spec.network.enableDNSHostnames is false", "remove enableDNSHostnames")
        return None

    @property
    def subdomain(self) -> str:
        """Return the name of the headless Service, which is the JobSet's by default."""
        return str(self.section("network").get("subdomain") or self.name)

    @property
    def coordinator(self) -> str:
        """Return the host name of the coordinator's pod, empty if the JobSet names none."""
        chosen = self.spec.get("coordinator")
        if not chosen:
            return ""
        job, pod = (chosen.get(key) or 0 for key in ("jobIndex", "podIndex"))
        return f"{self.name}-{chosen['replicatedJob']}-{job}-{pod}.{self.subdomain}"

    def index_of(self, pod: Object) -> int:
        each = next((parallel(one) for name, one, _ in self._jobs() if name == self.role_of(pod)), 1)
        return number(label(pod, f"{LABEL}job-index")) * each + number(label(pod, INDEX))

    def _jobs(self) -> list[tuple[str, Object, int]]:
        """Return name, Job spec with defaults, and number of Jobs of each replicated Job."""
        return [
            (one["name"].lower(), {"completionMode": INDEXED, **one["template"]["spec"]}, _count(one))
            for one in ([] if self.misshapen else self.spec["replicatedJobs"])
        ]

    def _roles(self) -> list[Role]:
        return [self._role(place, one) for place, one in enumerate(self.spec["replicatedJobs"])]

    def _role(self, place: int, one: Object) -> Role:
        path = f"spec.replicatedJobs[{place}].template.spec.template"
        template = one["template"]["spec"]["template"]
        count = _count(one) * parallel(one["template"]["spec"])
        policy = str(template["spec"].get("restartPolicy") or "OnFailure")
        return Role(one["name"], path, count, count, template, policy, launches(template, self.manifests))

    def _write_replicas(self, place: int, count: int) -> None:
        one = self.spec["replicatedJobs"][place]
        if _count(one) > 1 and parallel(one["template"]["spec"]) == 1:
            one["replicas"] = count
            return
        one["replicas"] = 1
        one["template"]["spec"].update(parallelism=count, completions=count)

    def _pods(self) -> list[Pod]:
        return [
            pod
            for name, spec, count in self._jobs()
            for index in range(count)
            for pod in self._batch(name, spec, index).pods()
        ]

    def _batch(self, name: str, spec: Object, index: int) -> Batch:
        added = {f"{LABEL}jobset-name": self.name, f"{LABEL}replicatedjob-name": name, f"{LABEL}job-index": str(index)}
        if self.coordinator:
            added[f"{LABEL}coordinator"] = self.coordinator
        subdomain = "" if self.nameless else self.subdomain
        own = f"{self.name}-{name}-{index}"
        return Batch(own, self.namespace, self.name, name, spec, index * parallel(spec), subdomain, added)

    def _refused(self) -> list[str]:
        """Return what the webhook refuses: long names of Jobs and pods, and a wrong coordinator."""
        wrong = super()._refused()
        if wrong:
            return wrong
        for place, (name, spec, count) in enumerate(self._jobs()):
            longest = f"{self.name}-{name}-{count - 1}-{parallel(spec) - 1}{SUFFIX}"
            if not is_label(longest):
                reason = f"{longest} must be lower-case letters, digits and -, at most 63 characters"
                wrong.append(f"spec.replicatedJobs[{place}].name: {reason}")
            path = f"spec.replicatedJobs[{place}].template.spec.completions"
            wrong += [f"{path}: {fault}" for fault in completions_missing(spec)]
        chosen = self.section("coordinator").get("replicatedJob")
        if chosen is not None and all(one["name"] != chosen for one in self.spec["replicatedJobs"]):
            wrong.append(f"spec.coordinator.replicatedJob: {chosen!r} is not one of spec.replicatedJobs")
        return wrong

    def _active(self) -> str:
        statuses = self.status.get("replicatedJobsStatus")
        active = isinstance(statuses, list) and any(
            isinstance(one, dict) and (one.get("active") or one.get("ready")) for one in statuses
        )
        return JobState.RUNNING if active else JobState.CREATED if self.status else JobState.NEW


def _count(one: Object) -> int:
    count = one.get("replicas")
    return 1 if count is None else int(count)
