"""One job, whatever its kind: what it runs, how it is selected, and what its status says."""

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from tools.core.errors import UserError
from tools.core.nested import mapping
from tools.core.tables import load
from tools.kube.json_patch import value_at
from tools.kube.manifests import Manifests, Object
from tools.kube.shapes import JOBS, META, Misshape, misshapes
from tools.workload.pod import Pod, check_size, main_container, with_environment

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class JobState(StrEnum):
    """What a job's status says of it. A job is New before a controller has seen it."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RESTARTING = "Restarting"
    RUNNING = "Running"
    CREATED = "Created"
    NEW = "New"


@dataclass(frozen=True)
class Role:
    """One group of equal pods.

    `path` is the path of the pod template in the workload's `item`, and `template` its content (metadata and
    spec). `replicas` is the number of pods, `most` the number that elasticity may raise it to; in an
    Indexed Job the number of its indices, also of those that start when other pods have ended.
    `restart_policy` is the one that is effective for the pods. `trains` says whether the pods are ranks of
    the training: an initializer's are not.
    """

    name: str
    path: str
    replicas: int
    most: int
    template: Object
    restart_policy: str
    trains: bool = True


@dataclass(frozen=True)
class Nameless:
    """Why pods cannot be found by name, and the remedy. `possible` is a missing object that would give them names."""

    reason: str
    remedy: str
    possible: Object | None = None


@dataclass(frozen=True)
class RetryLimit:
    """How often a job starts again before it fails: `limit` times, None for no limit.

    `path` is the field that holds the limit and `written` whether the manifest has it. `counts` says what is
    counted, such as `restarts of all pods together`.
    """

    path: str
    limit: int | None
    written: bool
    counts: str


@dataclass(frozen=True)
class Workload(ABC):
    """One job of a modelled kind, from a manifest or from a cluster.

    `item` is the object itself. If it is inside another object, `wrapper` is that object
    (`AppWrapper/x`) and `prefix` the path of `item` in it (`spec.components[0].template.`), else both are
    empty. `manifests` are the other objects of the file, such as Services and runtimes. `version` is the
    release of the training operator.

    A workload of a wrong shape (`misshapen`) has no roles.
    """

    item: Object
    wrapper: str = ""
    prefix: str = ""
    manifests: Manifests = field(default_factory=lambda: Manifests("", []))
    version: str = ""

    kind: ClassVar[str]
    api: ClassVar[str]  # the served apiVersion
    resource: ClassVar[str]  # kubectl's full name: pytorchjobs.kubeflow.org
    job_label: ClassVar[str]  # of the job's pods, with its name
    role_label: ClassVar[str]  # of a pod, with the name of its role
    retry: ClassVar[tuple[str, int | None, str]]  # path of the limit, its default, and what it counts
    suspend_path: ClassVar[tuple[str, ...]] = ("spec", "suspend")  # empty: the kind cannot suspend
    of_batch: ClassVar[bool] = False  # whether Kubernetes' Job controller makes the pods
    only_training: ClassVar[bool] = False  # whether every object of this kind is a training

    @classmethod
    def matches(cls, item: Object) -> bool:
        """Return whether an object is of this kind, in any version of its API group."""
        return item.get("kind") == cls.kind and group_of(item) == cls.api.rpartition("/")[0]

    @property
    def served(self) -> bool:
        """Return whether the object has the API version that clusters serve."""
        return self.item.get("apiVersion") == self.api

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Return the namespace, `default` if the object does not set it."""
        return str(self.item["metadata"].get("namespace") or "default")

    @property
    def title(self) -> str:
        """Return `PyTorchJob/x`."""
        return f"{self.item.get('kind')}/{self.name}"

    @property
    @abstractmethod
    def maker(self) -> str:
        """Return what creates the pods, for evidence."""

    @property
    def spec(self) -> Object:
        """Return the spec, empty if it is not a mapping."""
        return mapping(self.item.get("spec"))

    def section(self, key: str) -> Object:
        """Return a mapping of the spec, empty if it is missing or something else."""
        return mapping(self.spec.get(key))

    @functools.cached_property
    def misshapen(self) -> list[Misshape]:
        """The values of a wrong type, in the fields that are read."""
        return self._shape_faults or [
            Misshape(f"{role.path}.spec.containers", [], "at least one container")
            for role in self._roles()
            if not role.template["spec"]["containers"]
        ]

    @functools.cached_property
    def _shape_faults(self) -> list[Misshape]:
        shape = JOBS[type(self).__name__]
        return [*misshapes(self.item["metadata"], META, "metadata"), *misshapes(self.item, shape, "")]

    @functools.cached_property
    def roles(self) -> list[Role]:
        """The groups of equal pods, in the order in which their pods are listed."""
        return [] if self.misshapen else self._roles()

    @functools.cached_property
    def trains(self) -> bool:
        """Whether the job is a distributed training: its kind says so, or its pods start a launcher."""
        return self.only_training or any(role.trains for role in self.roles)

    @property
    def replicas(self) -> int:
        """Return how many pods the job has."""
        return sum(role.replicas for role in self.roles)

    @property
    def nodes(self) -> int:
        """Return how many pods may train together, with the elastic maximum."""
        return sum(role.most for role in self.roles if role.trains)

    def pods(self) -> list[Pod]:
        """Return the pods that the controller makes when the job runs, in the order of the roles, by index.

        A suspended job is looked at as if it was started. Raises UserError for a job of a wrong shape or with
        too many pods, ControllerFault where the controller itself fails, and PodsUnknown where the manifest
        does not say what the pods will be.
        """
        self.check_shape()
        check_size((role.replicas, role.template["spec"]) for role in self.roles)
        return self._pods()

    def check_shape(self) -> None:
        """Raise UserError for a job of a wrong shape."""
        if self.misshapen:
            fault = self.misshapen[0]
            raise UserError(f"{self.title}: {self.prefix}{fault.path} must be {fault.wanted}")

    def ranks(self) -> list[Pod]:
        """Return those of `pods` that are ranks of the training."""
        training = {role.name.lower() for role in self.roles if role.trains}
        return [pod for pod in self.pods() if pod.role in training]

    @functools.cached_property
    def refused(self) -> list[str]:
        """The reasons why the API server or a webhook refuses the job, each as `path: reason`."""
        version = f"apiVersion: {self.item.get('apiVersion')} is not served, {self.api} is"
        return [*([] if self.served else [version]), *self._refused()]

    def corrected(self) -> "Workload | None":
        """Return the refused job with the names that its controller demands, None if that is not enough."""
        return None

    @property
    def selector(self) -> dict[str, str]:
        """Return the labels that select the job's live pods, and no other job's."""
        return {self.job_label: self.name}

    @property
    def nameless(self) -> Nameless | None:
        """Return why the pods have no host names, None if they have host names."""
        return None

    @property
    def injects(self) -> str:
        """Return what the controller adds to the pods that is not modelled, else an empty text."""
        return ""

    @property
    def no_rendezvous(self) -> str:
        """Return why pods that give their launcher no rendezvous have none."""
        return f"a {self.kind} gives the launcher no rendezvous"

    @property
    def to_meet(self) -> str:
        """Return how the pods of this kind of job find each other, as a remedy."""
        return (
            "start torchrun with --nnodes (the number of pods), --rdzv-backend=c10d, and --rdzv-endpoint"
            " (the first pod's host name and a port)"
        )

    @property
    def container(self) -> str:
        """Return the name of the training container of the first role that trains, by the kind's rule."""
        return self.container_of(self._first.template) if self.roles else ""

    def container_of(self, template: Object) -> str:
        """Return the name of the training container of a pod template or a live pod."""
        return main_container(template)

    def training_containers(self) -> list[Object]:
        """Return the parts of `item` with image, command and variables of the containers that train."""
        found = []
        for role in self.roles:
            if role.trains:
                template = self._written(role)
                named = self.container_of(template)
                found += [one for one in template["spec"]["containers"] if one.get("name") == named]
        return found

    def training_specs(self) -> list[Object]:
        """Return the pod specs in `item` of the roles that train."""
        return [self._written(role)["spec"] for role in self.roles if role.trains]

    def _written(self, role: Role) -> Object:
        """Return the template of a role as `item` has it."""
        found: Any = self.item
        for key in re.findall(r"[^.\[\]]+", role.path):
            found = found[int(key)] if isinstance(found, list) else found[key]
        template: Object = found
        return template

    def resize(self, nodes: int) -> None:
        """Write into `item` that `nodes` pods train together. Raises UserError if it cannot say so."""
        training = [role for role in self.roles if role.trains]
        chosen = [role for role in training if role.name.lower() == "worker"] or training
        if len(chosen) != 1:
            names = ", ".join(role.name for role in chosen) or "none"
            raise UserError(f"{self.title}: its training pods are not one group of equal pods: {names}")
        fixed = sum(role.replicas for role in training) - chosen[0].replicas
        if nodes <= fixed:
            named = ", ".join(role.name for role in training if role is not chosen[0])
            raise UserError(f"{self.title} has {fixed} of {named}, so it needs {fixed + 1} nodes or more")
        self._write_replicas(self.roles.index(chosen[0]), nodes - fixed)

    @abstractmethod
    def _write_replicas(self, place: int, count: int) -> None:
        """Write the number of pods of the role at `place` in `roles`."""

    def write_processes(self, count: int) -> bool:
        """Write the processes of each pod into the kind's field for them; return whether it has one."""
        return False

    @property
    def backoff(self) -> Object:
        """Return the mapping of `item` whose backoffLimit counts the failures of pods."""
        return self.section("runPolicy")

    def write_port(self, port: int) -> None:
        """Write into `item` that the pods meet at `port`. Raises UserError for a kind without such a field."""
        raise UserError(f"--port {port}: {self.title} has no field for the port of its rendezvous")

    @property
    def status(self) -> Object:
        return mapping(self.item.get("status"))

    @property
    def state(self) -> str:
        """Return the state by the conditions; New before a controller has seen the job."""
        for kind, state in self.states.items():
            if self.condition(kind):
                return state
        return self._active()

    @property
    def states(self) -> dict[str, str]:
        """Return the states by the condition or phase that says them, the final ones first."""
        found: dict[str, str] = load("workload/kinds.yaml")["states"][type(self).__name__]
        return found

    def condition(self, kind: str) -> Object | None:
        """Return the condition of a type if its status is True."""
        found = self.status.get("conditions")
        for one in found if isinstance(found, list) else []:
            if isinstance(one, dict) and one.get("type") == kind and one.get("status") == "True":
                return one
        return None

    @property
    def suspended(self) -> bool:
        """Return whether the job asks not to run now."""
        return bool(self.suspend_path) and value_at(self.item, self.suspend_path) is True

    def suspend_patch(self, value: bool) -> Object | None:
        """Return the JSON merge patch that suspends or resumes the job, None if the kind cannot."""
        patch: Any = value
        for key in reversed(self.suspend_path):
            patch = {key: patch}
        return patch if self.suspend_path else None

    @property
    def queue(self) -> str:
        """Return the queue that the job names (Kueue's label), else an empty text."""
        return str(mapping(self.item["metadata"].get("labels")).get(QUEUE_LABEL) or "")

    @property
    def retries(self) -> RetryLimit:
        """Return how often the job starts again before it fails."""
        path, default, counts = self.retry
        limit = value_at(self.item, tuple(path.split(".")))
        return RetryLimit(path, default if limit is None else limit, limit is not None, counts)

    def role_of(self, pod: Object) -> str:
        """Return the role of a live pod, in lower case, or an empty text if its labels do not say it."""
        return label(pod, self.role_label).lower()

    @abstractmethod
    def index_of(self, pod: Object) -> int:
        """Return the number of a live pod in its role; 0 if its labels do not say it."""

    def is_rank_zero(self, pod: Object) -> bool | None:
        """Return whether a live pod is node rank 0.

        True if the controller assigns that rank to it. None if it is the first pod, and the rendezvous or the
        command decides.
        """
        first = self._first.name.lower() if self.roles else ""
        return None if self.index_of(pod) == 0 and self.role_of(pod) in ("", first) else False

    @property
    def _first(self) -> Role:
        return next((role for role in self.roles if role.trains), self.roles[0])

    @abstractmethod
    def _roles(self) -> list[Role]:
        """Return the roles of a job of the right shape."""

    @abstractmethod
    def _pods(self) -> list[Pod]:
        """Return the pods of a job of the right shape."""

    def _pod_of(
        self, role: Role, index: int, labels: dict[str, str], given: Iterable[Object] = (), hosts: tuple[str, ...] = ()
    ) -> Pod:
        """Return the pod `<job>-<role>-<index>`, with what the controller adds to the role's template."""
        metadata = role.template.get("metadata") or {}
        return Pod(
            name=f"{self.name}-{role.name}-{index}",
            namespace=self.namespace,
            job=self.name,
            role=role.name.lower(),
            index=index,
            labels={**(metadata.get("labels") or {}), **labels},
            annotations=dict(metadata.get("annotations") or {}),
            restart_policy=role.restart_policy,
            spec=with_environment(role.template["spec"], given),
            hosts=hosts,
            main=main_container(role.template),
        )

    def _refused(self) -> list[str]:
        return [fault.shown for fault in self.misshapen]

    def _active(self) -> str:
        """Return the state of a job without a condition that says it."""
        return JobState.CREATED if self.status else JobState.NEW


def group_of(item: Object) -> str:
    """Return the API group of an object, empty for the core group."""
    return str(item.get("apiVersion")).rpartition("/")[0]


def label(pod: Object, *names: str) -> str:
    """Return the first of several labels, or else annotations, that a live pod has, or an empty text."""
    metadata = pod.get("metadata") or {}
    for places in ("labels", "annotations"):
        values = mapping(metadata.get(places))
        for name in names:
            if isinstance(values.get(name), str) and values[name]:
                return str(values[name])
    return ""


def number(text: str) -> int:
    """Return a short text of digits as a number, else 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0
