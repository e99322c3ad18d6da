"""Volcano's Job (batch.volcano.sh/v1alpha1), as TorchX creates it: one task for each replica.

Follows github.com/volcano-sh/volcano v1.15.1, pkg/controllers/job: job_controller_util.go (createJobPod),
plugins/svc/svc.go (host name, subdomain, lists of hosts), plugins/env/env.go and
plugins/distributed-framework/pytorch/pytorch.go; pkg/webhooks/admission/jobs/mutate/mutate_job.go (defaults)
and validate/admit_job.go.
"""

from dataclasses import replace

from tools.core.nested import mapping
from tools.kube.manifests import Object
from tools.workload.launches import launches
from tools.workload.pod import Pod
from tools.workload.workload import Nameless, Role, Workload, label, number

# These give each pod its name as host name, and the job's as subdomain. The frameworks' imply svc.
NAMES_PLUGINS = ("svc", "pytorch", "mpi", "tensorflow", "ray")
PLUGINS = (*NAMES_PLUGINS, "env", "ssh", "hcclrank")  # plugins/factory.go
LABEL = "volcano.sh/"


class VolcanoJob(Workload):
    """A Volcano Job: each task is a role."""

    kind = "Job"
    maker = "Volcano"
    api = "batch.volcano.sh/v1alpha1"
    resource = "jobs.batch.volcano.sh"
    job_label = f"{LABEL}job-name"
    role_label = f"{LABEL}task-spec"
    # The default is that of pkg/webhooks/admission/jobs/mutate/mutate_job.go.
    retry = ("spec.maxRetry", 3, "restarts of the job")
    suspend_path = ()  # Volcano suspends a job through an object of its own (bus.volcano.sh Command)

    @property
    def nameless(self) -> Nameless | None:
        if any(name in self.section("plugins") for name in NAMES_PLUGINS):
            return None
        return Nameless("spec.plugins has no svc", "spec.plugins: {svc: []}")

    @property
    def state(self) -> str:
        return self.states.get(str(mapping(self.status.get("state")).get("phase")), self._active())

    @property
    def queue(self) -> str:
        return str(self.spec.get("queue") or "default")

    def index_of(self, pod: Object) -> int:
        written = label(pod, f"{LABEL}task-index")
        return number(written or str((pod.get("metadata") or {}).get("name")).rpartition("-")[2])

    def is_rank_zero(self, pod: Object) -> bool | None:
        """The plugin pytorch assigns rank 0 to the master task. Otherwise the command decides."""
        if "pytorch" not in self.section("plugins"):
            return super().is_rank_zero(pod)
        return self.role_of(pod) == self._framework("master") and self.index_of(pod) == 0

    def _framework(self, name: str) -> str:
        """Return an argument of the plugin pytorch, such as `--master=leader`."""
        words = " ".join(str(word) for word in self.section("plugins").get("pytorch") or [])
        pairs = words.replace("=", " ").split()
        given = {key.lstrip("-"): value for key, value in zip(pairs[::2], pairs[1::2], strict=False)}
        return given.get(name, {"master": "master", "worker": "worker", "port": "23456"}[name]).lower()

    def _roles(self) -> list[Role]:
        return [self._role(place, task) for place, task in enumerate(self.spec["tasks"])]

    def _role(self, place: int, task: Object) -> Role:
        count = int(task.get("replicas") or 0)
        name = str(task.get("name") or f"default{place}")
        template = {**task["template"], "spec": self._with_volumes(task["template"]["spec"])}
        # The API server completes a pod without restartPolicy with Always.
        policy = str(template["spec"].get("restartPolicy") or "Always")
        ranks = "pytorch" in self.section("plugins") and name.lower() in map(self._framework, ("master", "worker"))
        trains = ranks or launches(template, self.manifests)
        return Role(name, f"spec.tasks[{place}].template", count, count, template, policy, trains)

    def _with_volumes(self, spec: Object) -> Object:
        """Return a pod spec with the volumes of the job, which each container mounts."""
        for place, one in enumerate(self.spec.get("volumes") or []):
            name, claim = f"{self.name}-{place}", one.get("volumeClaimName")
            made: Object = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"ephemeral": {}}
            mount = {"name": name, "mountPath": str(one.get("mountPath"))}
            mounted = [
                {**container, "volumeMounts": [*(container.get("volumeMounts") or []), mount]}
                for container in spec["containers"]
            ]
            volumes = [*(spec.get("volumes") or []), {"name": name, **made}]
            spec = {**spec, "containers": mounted, "volumes": volumes}
        return spec

    def _write_replicas(self, place: int, count: int) -> None:
        self.spec["tasks"][place]["replicas"] = count
        if "minAvailable" in self.spec:
            self.spec["minAvailable"] = sum(int(task.get("replicas") or 0) for task in self.spec["tasks"])

    def _refused(self) -> list[str]:
        """Return what the webhook refuses: a high minAvailable, two tasks of one name, unknown plugins."""
        wrong = super()._refused()
        if wrong:
            return wrong
        least, total = self.spec.get("minAvailable"), self.replicas
        if least is not None and least > total:
            wrong.append(f"spec.minAvailable: {least} is more than the {total} pods of all tasks")
        names = [role.name for role in self.roles]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            wrong.append(f"spec.tasks: two tasks have the name {twice}")
        unknown = sorted(set(self.section("plugins")) - set(PLUGINS))
        return wrong + [f"spec.plugins.{name}: Volcano has no plugin {name}" for name in unknown]

    def _pods(self) -> list[Pod]:
        hosts, files = self._hosts(), self._files()
        return [
            replace(self._pod(role, index, hosts), files=files) for role in self.roles for index in range(role.replicas)
        ]

    def _files(self) -> dict[str, str]:
        """Return the files of the plugin svc: the hosts of each task, one a line."""
        named = {} if self.nameless else {role.name: self._host_names(role) for role in self.roles}
        return {f"/etc/volcano/{name}.host": "\n".join(hosts) for name, hosts in named.items()}

    def _host_names(self, role: Role) -> list[str]:
        return list(dict.fromkeys(self._host(role, index) for index in range(role.replicas)))

    def _host(self, role: Role, index: int) -> str:
        spec = role.template["spec"]
        name = spec.get("hostname") or f"{self.name}-{role.name}-{index}"
        return f"{name}.{spec.get('subdomain') or self.name}"

    def _hosts(self) -> list[Object]:
        """Return the variables of the plugin svc: the hosts of each task, and their number."""
        options = [str(word) for word in self.section("plugins").get("svc") or []]
        if self.nameless or any(word.lstrip("-") == "inject-hosts-env=false" for word in options):
            return []
        found: list[Object] = []
        for role in self.roles:
            hosts, task = self._host_names(role), role.name.replace("-", "_").upper()
            found.append({"name": f"VC_{task}_HOSTS", "value": ",".join(hosts)})
            found.append({"name": f"VC_{task}_NUM", "value": str(len(hosts))})
        return found

    def _ranks(self, role: Role, index: int) -> list[Object]:
        """Return the variables of the plugin pytorch."""
        names = [self._framework("master"), self._framework("worker")]
        master = next((one for one in self.roles if one.name.lower() == names[0]), None)
        if "pytorch" not in self.section("plugins") or master is None:
            return []
        world = sum(one.replicas for one in self.roles if one.name.lower() in names)
        values = {
            "MASTER_ADDR": self._host(master, 0),
            "MASTER_PORT": self._framework("port"),
            "WORLD_SIZE": str(world),
        }
        if role.name.lower() in names:
            values["RANK"] = str(index + 1 if role.name.lower() == names[1] else 0)
        return [{"name": name, "value": value} for name, value in values.items()]

    def _pod(self, role: Role, index: int, hosts: list[Object]) -> Pod:
        given = [*hosts, *self._ranks(role, index)]
        if "env" in self.section("plugins"):
            given += [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
        labels = {
            f"{LABEL}job-name": self.name,
            f"{LABEL}job-namespace": self.namespace,
            f"{LABEL}queue-name": self.queue,
            f"{LABEL}task-spec": role.name,
            f"{LABEL}task-index": str(index),
        }
        own = () if self.nameless else (self._host(role, index),)
        return self._pod_of(role, index, labels, given, own)
