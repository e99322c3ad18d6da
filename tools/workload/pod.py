"""A pod as the controller of its kind creates it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tools.core.errors import UserError
from tools.kube.manifests import MOST_PODS, Object

MOST_VARIABLES = 1_000_000
DEFAULT_CONTAINER_NOTE = "kubectl.kubernetes.io/default-container"


class ControllerFault(Exception):
    """The kind's controller itself fails on this job, so the job never gets its pods."""


class PodsUnknown(Exception):
    """The manifest does not say what the pods will be: the reason, and what is needed."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True)
class Pod:
    """One pod that a controller creates. `spec` includes the injected environment.

    `role` is the role's name in lower case and `index` the pod's number in its role. `hosts` are the names
    by which other pods of the namespace find this pod, without `.<namespace>.svc.cluster.local`. `main` is
    the name of the training container. `random_end`: the controller adds characters to the pod's name.
    `files` are those that the controller mounts in each container, by path.
    """

    name: str
    namespace: str
    job: str
    role: str
    index: int
    labels: dict[str, str]
    annotations: dict[str, str]
    restart_policy: str
    spec: Object
    hosts: tuple[str, ...]
    main: str
    random_end: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """The pod's name in the cluster, with an example of the random characters."""
        return f"{self.name}-x7k2p" if self.random_end else self.name

    @property
    def container(self) -> Object:
        """The training container: the one named `main`, or the first one."""
        containers: list[Object] = self.spec["containers"]
        return next((item for item in containers if item.get("name") == self.main), containers[0])


def main_container(template: Object, name: str = "") -> str:
    """Return the name of the container called `name`, else of that in the template's annotation, else of the first."""
    containers: list[Object] = (template.get("spec") or {}).get("containers") or []
    names = [str(container.get("name")) for container in containers]
    noted = ((template.get("metadata") or {}).get("annotations") or {}).get(DEFAULT_CONTAINER_NOTE)
    return next((one for one in (name, noted) if one in names), names[0] if names else name)


def with_environment(template_spec: Object, variables: Iterable[Object]) -> Object:
    """Return a pod spec whose containers have `variables` after their own: of two with one name the last wins."""
    added = list(variables)
    made = [one | {"env": [*(one.get("env") or []), *added]} for one in template_spec["containers"]]
    return {**template_spec, "containers": made}


def check_size(roles: Iterable[tuple[int, Object]]) -> None:
    """Raise UserError for too many pods or variables. `roles` are pairs of a number of pods and the spec of one."""
    pods = variables = 0
    for count, spec in roles:
        pods += count
        variables += count * sum(len(container.get("env") or []) for container in spec["containers"])
    if pods > MOST_PODS:
        raise UserError(f"the job has {pods:,} pods", f"at most {MOST_PODS:,} can be checked")
    if variables > MOST_VARIABLES:
        limit = f"at most {MOST_VARIABLES:,} can be checked"
        raise UserError(f"the job's pods have {variables:,} variables", limit)
