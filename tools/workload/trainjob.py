"""TrainJob of Kubeflow Trainer, trainer.kubeflow.org/v1alpha1, with the runtime that it names.

Follows github.com/kubeflow/trainer v2.3.0: pkg/runtime/core/trainingruntime.go (runtime and TrainJob become a
JobSet), pkg/runtime/framework/plugins/jobset/{jobset,builder}.go (what the TrainJob overrides),
plugins/torch/{torch,torchtune}.go (variables, and what `tune run` gets) and pkg/constants/constants.go.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tools.core.nested import mapping
from tools.kube.json_patch import value_at
from tools.kube.manifests import Object, name_of
from tools.kube.quantity import quantity
from tools.kube.shapes import RUNTIME, misshapes
from tools.workload.jobset import JobSet
from tools.workload.pod import ControllerFault, Pod, PodsUnknown, main_container
from tools.workload.workload import JobState, RetryLimit, Role, Workload, group_of, number

GROUP = "trainer.kubeflow.org"
ANCESTOR, TRAINER = f"{GROUP}/trainjob-ancestor-step", "trainer"
NODE = "node"  # the name of the training container
PORT = "29500"
RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
ENDPOINT = "PET_RDZV_ENDPOINT"
OVERRIDES = {"image", "command", "args", "resourcesPerNode"}  # of a TrainJob, in its runtime's container
TUNE = ["tune", "run"]  # to which Trainer appends the rendezvous, a recipe and its configuration
# The lists of a pod template whose entries a patch replaces one by one, each with the field that names them. Those
# of containers it merges.
KEYS = {**dict.fromkeys(("env", "imagePullSecrets", "schedulingGates", "volumes"), "name"), "volumeMounts": "mountPath"}


class TrainJob(Workload):
    """A TrainJob. Its roles are the replicated Jobs of its runtime; without the runtime it has none."""

    kind = "TrainJob"
    api = f"{GROUP}/v1alpha1"
    resource = "trainjobs.trainer.kubeflow.org"
    job_label = JobSet.job_label
    role_label = JobSet.role_label
    of_batch = True
    only_training = True

    @property
    def maker(self) -> str:
        return f"Trainer, {self._wanted}"

    @property
    def nodes(self) -> int:
        """Return how many pods train together; without the runtime what the job itself says, else one."""
        return super().nodes or number(str(self._trainer.get("numNodes"))) or 1

    @property
    def retries(self) -> RetryLimit:
        """Return the restarts of the JobSet, which the runtime limits."""
        if self.runtime is None:
            return RetryLimit(f"{self._wanted}: spec.template.spec.failurePolicy", None, False, "unknown")
        limit = self.jobset.retries
        return replace(limit, path=f"{self._wanted}: spec.template.{limit.path}")

    def container_of(self, template: Object) -> str:
        return main_container(template, NODE)

    def index_of(self, pod: Object) -> int:
        return self.jobset.index_of(pod)

    def is_rank_zero(self, pod: Object) -> bool | None:
        """Trainer assigns the node rank by the index of the pod."""
        return self.role_of(pod) == NODE and self.index_of(pod) == 0

    @property
    def _wanted(self) -> str:
        reference = self.section("runtimeRef")
        return f"{reference.get('kind') or 'ClusterTrainingRuntime'}/{reference.get('name')}"

    @functools.cached_property
    def runtime(self) -> Object | None:
        """The runtime that the job names, None if it is not in the file or not of its shape."""
        for item in self.manifests.objects:
            spaces = {one["metadata"].get("namespace") or "" for one in (self.item, item)} - {""}
            if self._is_wanted(item) and len(spaces) < 2:
                return None if any(misshapes(item, RUNTIME, "")) else item
        return None

    def _is_wanted(self, item: Object) -> bool:
        return group_of(item) == GROUP and f"{item.get('kind')}/{name_of(item)}" == self._wanted

    @functools.cached_property
    def jobset(self) -> JobSet:
        """The JobSet that Trainer creates: the runtime's, with what the TrainJob overrides."""
        metadata = {"name": self.name, "namespace": self.namespace}
        spec = {} if self.runtime is None else self.runtime["spec"]["template"]["spec"]
        named = [] if self._shape_faults else spec.get("replicatedJobs") or []
        jobs = [self._replicated(one) for one in named]
        item = {"apiVersion": JobSet.api, "kind": JobSet.kind, "metadata": metadata}
        return JobSet({**item, "spec": {**spec, "replicatedJobs": jobs}}, manifests=self.manifests)

    @property
    def _replicated_jobs(self) -> list[Object]:
        """Return the replicated Jobs as the runtime has them; none without a runtime."""
        jobs: list[Object] = [] if self.runtime is None else self.runtime["spec"]["template"]["spec"]["replicatedJobs"]
        return jobs

    def _replicated(self, one: Object) -> Object:
        """Return a replicated Job with what the TrainJob changes in it: of the trainer, with a pod for each node."""
        spec = one["template"]["spec"]
        template = spec["template"]
        for names, patch in self._patches():
            template = patched(template, patch) if one["name"] in (names or [one["name"]]) else template
        counts = {"parallelism": self._count, "completions": self._count} if _is_trainer(one) else {}
        named = [self._overridden(container, one) for container in template["spec"]["containers"]]
        made = {**template, "spec": {**template["spec"], "containers": named}}
        once = {"replicas": 1} if counts else {}
        return {**one, **once, "template": {**one["template"], "spec": {**spec, **counts, "template": made}}}

    def _patches(self) -> Iterator[tuple[list[str], Object]]:
        """Yield what the TrainJob changes in pod templates, with the names of their Jobs, none for all.

        Trainer 2.2 and newer have runtimePatches, 2.1 podTemplateOverrides, and 2.0 podSpecOverrides.
        """
        for one in self.spec.get("podSpecOverrides") or []:
            yield _targets(one), {"spec": {key: value for key, value in one.items() if key != "targetJobs"}}
        for one in self.spec.get("podTemplateOverrides") or []:
            yield _targets(one), {key: one[key] for key in ("metadata", "spec") if one.get(key)}
        for one in self.spec.get("runtimePatches") or []:
            jobs = value_at(one, ("trainingRuntimeSpec", "template", "spec", "replicatedJobs"))
            yield from (([job["name"]], value_at(job, ("template", "spec", "template")) or {}) for job in jobs or [])

    def _overridden(self, container: Object, job: Object) -> Object:
        """Return a container of a replicated Job with the TrainJob's image, command, resources and variables."""
        step, name = _step(job), container.get("name")
        if step == f"{name}" and (given := mapping(self.section("initializer").get(step.partition("-")[0]))):
            uri = [{"name": "STORAGE_URI", "value": given["storageUri"]}] if given.get("storageUri") else []
            secret = [{"secretRef": given["secretRef"]}] if given.get("secretRef") else []
            more = {"envFrom": [*(container.get("envFrom") or []), *secret]}
            return patched(container, {**more, "env": [*uri, *(given.get("env") or [])]})
        if name != NODE or not self._trainer:
            return container
        given = {key: self._trainer[key] for key in ("image", "command", "args") if self._trainer.get(key)}
        if given.get("command") == TUNE:
            given["command"] = [*TUNE, f"--rdzv_endpoint={self._first_pod}:{PORT}", "RECIPE", "--config", "CONFIG"]
        return patched(
            container,
            {**given, "resources": self._trainer.get("resourcesPerNode") or {}, "env": self._trainer.get("env") or []},
        )

    @property
    def _first_pod(self) -> str:
        return f"{self.name}-{NODE}-0-0.{self.name}"

    @property
    def _trainer(self) -> Object:
        return self.section("trainer")

    @property
    def _count(self) -> int:
        """Return the number of nodes that the job wants."""
        return int(self._trainer.get("numNodes") or self._policy.get("numNodes") or 1)

    @property
    def _policy(self) -> Object:
        return {} if self.runtime is None else self.runtime["spec"].get("mlPolicy") or {}

    def _roles(self) -> list[Role]:
        if self.runtime is None or self.jobset.misshapen:
            return []
        names = {one["name"] for one in self._replicated_jobs if _is_trainer(one)}
        return [
            replace(role, path=f"{self._wanted}: spec.template.{role.path}", trains=role.name in names)
            for role in self.jobset.roles
        ]

    def resize(self, nodes: int) -> None:
        self._write_replicas(0, nodes)

    def _write_replicas(self, place: int, count: int) -> None:
        self.spec.setdefault("trainer", {})["numNodes"] = count

    def write_processes(self, count: int) -> bool:
        self.spec.setdefault("trainer", {})["numProcPerNode"] = count
        return True

    def training_containers(self) -> list[Object]:
        """Return what the job overrides; else the containers of its runtime, if that is in the file."""
        specs = self.training_specs()
        return [main for spec in specs for main in spec["containers"] if main.get("name") == NODE] or [
            self.spec.setdefault("trainer", {})
        ]

    def training_specs(self) -> list[Object]:
        if self.runtime is None or self.jobset.misshapen or OVERRIDES & set(self._trainer):
            return []
        return [one["template"]["spec"]["template"]["spec"] for one in self._replicated_jobs if _is_trainer(one)]

    @property
    def backoff(self) -> Object:
        return next((one["template"]["spec"] for one in self._replicated_jobs if _is_trainer(one)), {})

    def write_port(self, port: int) -> None:
        """Write the port of the rendezvous, which is Trainer's own unless variables name another endpoint."""
        found = [self._trainer, *self.training_containers()]
        entries = [one for part in found for one in part.get("env") or [] if one.get("name") == ENDPOINT]
        for entry in entries:
            entry["value"] = f"{str(entry.get('value')).rpartition(':')[0]}:{port}"
        if not entries:
            super().write_port(port)

    def _pods(self) -> list[Pod]:
        if self.runtime is None:
            get = f"kubectl get {self._wanted.lower()} -o yaml"
            raise PodsUnknown(f"the pods come from {self._wanted}, which is not in the file", f"add it: {get}")
        policy = next((key for key in self._policy if key not in ("numNodes", "torch")), None)
        if policy:
            raise PodsUnknown(f"{self._wanted} has the policy {policy}, which is not modelled")
        training = {role.name.lower() for role in self.roles if role.trains}
        if not training and self._count > 1:
            label = f"no replicated Job of {self._wanted} has the label {ANCESTOR}: {TRAINER}"
            raise ControllerFault(f"{label}: Trainer makes one pod instead of {self._count}, without a rendezvous")
        return [self._with_ranks(pod) if pod.role in training else pod for pod in self.jobset.pods()]

    @property
    def _missing(self) -> str:
        """Return the field without which Trainer sets no variables, empty if both are there."""
        if self.spec.get("trainer") is None:
            return "spec.trainer"
        return "" if self._policy.get("torch") is not None else f"spec.mlPolicy.torch of {self._wanted}"

    @property
    def to_meet(self) -> str:
        return f"add {self._missing}: without it Trainer sets no rendezvous" if self._missing else super().to_meet

    def _with_ranks(self, pod: Pod) -> Pod:
        """Return a pod with Trainer's variables."""
        if self._missing:
            return pod
        count = sum(role.replicas for role in self.roles if role.trains)
        values = {
            "PET_NNODES": str(count),
            "PET_NPROC_PER_NODE": self._processes(pod),
            "PET_NODE_RANK": str(pod.index),
            "PET_MASTER_ADDR": self._first_pod,
            "PET_MASTER_PORT": PORT,
        }
        added = [{"name": name, "value": value} for name, value in values.items()]
        return replace(pod, spec=patched(pod.spec, {"containers": [{"name": NODE, "env": added}]}), main=NODE)

    def _processes(self, pod: Pod) -> str:
        """Return numProcPerNode, else `auto` with GPUs, else the CPUs that are asked for (getNumCPUPerNode)."""
        if self._trainer.get("numProcPerNode") is not None:
            return str(self._trainer["numProcPerNode"])
        asked = self._trainer.get("resourcesPerNode")
        resources = (pod.container.get("resources") if asked is None else asked) or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        amounts = [amount for part in (limits, requests) for name, amount in part.items() if "gpu" in name.lower()]
        if any(quantity(str(amount)) for amount in amounts):
            return "auto"
        cpus = quantity(str(requests.get("cpu") or limits.get("cpu") or 0)) or 0
        return str(max(1, math.ceil(cpus)))

    def _refused(self) -> list[str]:
        wrong = super()._refused()
        names = [] if wrong else [entry.get("name") for entry in self._trainer.get("env") or []]
        wrong += [f"spec.trainer.env: {name} is reserved for Trainer" for name in names if name in RESERVED]
        if not wrong and self.runtime is None:
            there = [one["metadata"].get("namespace") for one in self.manifests.objects if self._is_wanted(one)]
            own = self.item["metadata"].get("namespace")
            spaces = [space for space in there if own and space and space != own]
            wrong += [f"spec.runtimeRef: {self._wanted} is in namespace {space}" for space in spaces]
        jobset = [] if wrong or self.runtime is None else [*self._webhook_faults(), *self.jobset.refused]
        return wrong + [f"{self._wanted}: spec.template.{fault}" for fault in jobset]

    def _webhook_faults(self) -> Iterator[str]:
        """Yield what Trainer's webhook refuses in a runtime (pkg/webhooks/trainingruntime_webhook.go)."""
        for place, one in enumerate(self._replicated_jobs):
            path, spec = f"spec.replicatedJobs[{place}]", one["template"]["spec"]["template"]["spec"]
            if _is_trainer(one) and one.get("replicas") not in (None, 1):
                yield f"{path}.replicas: must be 1; spec.trainer.numNodes of the TrainJob is the number of pods"
            if _is_trainer(one) and all(each.get("name") != NODE for each in spec["containers"]):
                yield f"{path}.template.spec.template.spec.containers: one must have the name {NODE}"

    def _active(self) -> str:
        jobs = self.status.get("jobsStatus")
        active = isinstance(jobs, list) and any(isinstance(one, dict) and one.get("active") for one in jobs)
        return JobState.RUNNING if active else JobState.CREATED if self.status else JobState.NEW


def jobset_of(job: Workload | None) -> JobSet | None:
    """Return the JobSet that a job is, or that Trainer creates for it; None for other kinds."""
    return job.jobset if isinstance(job, TrainJob) else job if isinstance(job, JobSet) else None


def _step(one: Object) -> str:
    """Return what a replicated Job is for by its label: trainer, dataset-initializer or model-initializer."""
    labels = mapping(one["template"].get("metadata")).get("labels")
    return str(mapping(labels).get(ANCESTOR))


def _is_trainer(one: Object) -> bool:
    return _step(one) == TRAINER


def _targets(override: Object) -> list[str]:
    return [one["name"] for one in override.get("targetJobs") or []]


def _upserted(entries: list[Object], added: list[Object], key: str = "name") -> list[Object]:
    """Return entries with others, which stand in the places of those of the same name (UpsertEnvVars)."""
    return list(({one.get(key): one for one in entries} | {one.get(key): one for one in added}).values())


def patched(own: Object, patch: Object) -> Object:
    """Return a part of a pod template with a patch as Kubernetes merges it (strategic merge)."""
    result = dict(own)
    for key, value in patch.items():
        old: Any = own.get(key) or ([] if isinstance(value, list) else {})
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = patched(old, value)
        elif key in ("containers", "initContainers"):
            named = {one.get("name"): one for one in old}
            result[key] = _upserted(old, [patched(named.get(one["name"], {}), one) for one in value])
        else:
            result[key] = _upserted(old, value, KEYS[key]) if key in KEYS else value
    return result
