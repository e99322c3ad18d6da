"""The steps of `yard demo`: one cell, from an empty cluster to a trained model and back.

Each step is a command that a person can type. What the demo makes has a label or the demo's name, by which it
is removed again without touching anything else.
"""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tools.cells import locate
from tools.cluster.cluster_directory import claim_folder
from tools.cluster.machines import usable
from tools.cluster.observe import DEFAULT_CLASS, is_default
from tools.cluster.snapshot import CLASSES, CRD, JOBS, Snapshot
from tools.cluster.steps import Step
from tools.core import UserError, repo
from tools.kube import Kubectl, Object, images, name_of
from tools.kube.selectors import labels_of
from tools.workload.kinds import job_of

FAILED = "yard job why -n trainyard-demo explains a job; yard demo --down removes what the demo made"
NAME = "trainyard-demo"  # of the namespace, and of a cluster that kind makes
MARK = "trainyard/demo"  # the label of what the demo made
OPERATOR, OPERATOR_NAMESPACE = "base/plugins/training-operator", "kubeflow"
CELL = "cpu/llama-tiny"
# A minute of training.
SETTINGS = ("--set=train.steps=60", "--set=train.warmup_steps=10")
SEEN = ("nodes", "namespaces", CRD, CLASSES, JOBS)
INSTALL = "install Docker and kind (https://kind.sigs.k8s.io), or choose a cluster: kubectl config use-context NAME"


@dataclass(frozen=True)
class Demo:
    """The commands of a demo on the cluster of a context. `image` is one that the nodes can pull, or None."""

    context: str
    image: str | None = None

    def _kubectl(self, *words: str) -> tuple[str, ...]:
        return ("kubectl", f"--context={self.context}", *words)

    def _job(self, verb: str, *words: str) -> tuple[str, ...]:
        return ("yard", "job", verb, *words, f"--context={self.context}", f"--namespace={NAME}")

    def platform(self, seen: Snapshot) -> Iterator[Step]:
        """Yield the commands that bring operator, namespace, claim and image. Raises UserError."""
        if not any(map(usable, seen.of("nodes"))):
            raise UserError("no node of the cluster is ready and takes pods", "kubectl get nodes", 1)
        space = seen.find("namespaces", NAME)
        if space is not None and MARK not in labels_of(space):
            raise UserError(f"the namespace {NAME} exists and is not of a demo", f"no label {MARK}", 1)
        if seen.find(CRD, JOBS) is None:
            apply = ("apply", "--server-side", "-k", _path(OPERATOR))
            if seen.find("namespaces", OPERATOR_NAMESPACE) is not None:
                message = f"PyTorchJobs are not served, but the namespace {OPERATOR_NAMESPACE} exists"
                raise UserError(message, f"install the operator: kubectl {' '.join(apply)}", 1)
            yield Step("the training operator", self._kubectl(*apply))
            mark = ("label", "namespace", OPERATOR_NAMESPACE, f"{MARK}=operator", "--overwrite")
            yield Step("its mark", self._kubectl(*mark))
            words = ("rollout", "status", "deployment/training-operator", "-n", OPERATOR_NAMESPACE)
            yield Step("its start", self._kubectl(*words, "--timeout=300s"))
        if space is None:
            yield Step("a namespace", self._kubectl("create", "-f", _path("tools/cluster/demo.yaml")))
        claim = ("apply", "--server-side", "-n", NAME, "-k", _path(f"base/storage/{_storage(seen)}"))
        yield Step("the claim for data and runs", self._kubectl(*claim))
        yield from self._images(seen)

    def train(self) -> Iterator[Step]:
        """Yield the commands that train the cell to its end, and look at it."""
        image = (f"--image={self.image}",) if self.image else ()
        yield Step("train: up to the first step", self._job("submit", CELL, *SETTINGS, *image))
        yield Step("explain", self._job("why"))
        yield Step("what rank 0 writes", self._job("logs", "--rank", "0", "--tail", "5"))
        yield Step("watch: to the end", self._job("status", "--watch"))

    def remove(self, seen: Snapshot) -> Iterator[Step]:
        """Yield the commands that remove what a demo made on the cluster."""
        if self.context == f"kind-{NAME}":
            yield Step("the cluster", ("kind", "delete", "cluster", "--name", NAME))
            return
        space, home = seen.find("namespaces", NAME), seen.find("namespaces", OPERATOR_NAMESPACE)
        if space is not None and labels_of(space).get(MARK) == "namespace":
            if seen.find(CRD, JOBS) is not None:
                yield Step("the jobs", self._kubectl("delete", "pytorchjobs", "--all", "-n", NAME))
            yield Step("the namespace with its claim and volume", self._kubectl("delete", "namespace", NAME))
        if home is not None and labels_of(home).get(MARK) == "operator" and not _others(seen):
            yield Step("the training operator", self._kubectl("delete", "-k", _path(OPERATOR)))

    def left(self, seen: Snapshot) -> Iterator[str]:
        """Yield a line for each thing that `remove` leaves."""
        home = seen.find("namespaces", OPERATOR_NAMESPACE)
        if self.context == f"kind-{NAME}":
            yield "the image in the Docker engine (docker image rm)"
        elif home is not None and labels_of(home).get(MARK) == "operator" and (others := _others(seen)):
            yield f"the training operator, because other jobs use it: {', '.join(others[:3])}"
        elif seen.find(CRD, JOBS) is not None and MARK not in labels_of(home or _NOTHING):
            yield "the training operator, which was there before"
        yield "the image on the nodes, and volumes whose storage class retains them"

    def _images(self, seen: Snapshot) -> Iterator[Step]:
        """Yield the commands that build the cell's image and load it into the nodes. Raises UserError."""
        containers = job_of(locate.rendered(CELL)).roles[0].template["spec"]["containers"]
        image = str(containers[0]["image"])
        nodes = [one for one in seen.of("nodes") if usable(one)]
        if self.image or all(images.lists(node, image) for node in nodes):
            return
        load = _loader(nodes[0], image)
        if load is None:
            hint = "make push TO=REGISTRY/trainer-cpu, then: make demo ARGS=--image=REGISTRY/trainer-cpu@DIGEST"
            raise UserError(f"the nodes do not have the image {image}, and only kind and minikube can load it", hint)
        if shutil.which("docker") is None:
            raise UserError("no docker on PATH, which builds the image", "install Docker, or give --image")
        if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode:
            yield Step("the image, once", ("yard", "image", "build", "trainer-cpu"))
        yield Step("the image on the nodes", load)


def cluster(new: bool) -> Step | None:
    """Return the command that makes a cluster, or None where the kubeconfig has a current context.

    `new` asks for a new one. Raises UserError where there is neither a cluster nor kind.
    """
    if not new and Kubectl().json("config", "view").get("current-context"):
        return None
    if shutil.which("kind") is None or shutil.which("docker") is None:
        lacking = " and ".join(name for name in ("docker", "kind") if shutil.which(name) is None)
        there = "a new cluster is asked for" if new else "the kubeconfig has no current context"
        raise UserError(f"no cluster for the demo: {there}, and PATH has no {lacking}", INSTALL)
    return Step("a cluster of one node", ("kind", "create", "cluster", "--name", NAME, "--wait=120s"))


_NOTHING: Object = {"metadata": {}}


def _path(path: str) -> str:
    """Return a path that commands find: they run in the checkout, or in any directory."""
    return path if repo.is_checkout() else str(repo.root() / path)


def _storage(seen: Snapshot) -> str:
    """Return the folder of base/storage that fits the default storage class. Raises UserError without one."""
    default = next(filter(is_default, seen.of(CLASSES)), None)
    if default is None:
        there = ", ".join(map(name_of, seen.of(CLASSES))) or "none"
        hint = f"kubectl annotate storageclass NAME {DEFAULT_CLASS}=true; classes: {there}"
        raise UserError("the cluster has no default storage class", hint, 1)
    return claim_folder(default, seen)


def _others(seen: Snapshot) -> list[str]:
    """Return the jobs in other namespaces than the demo's."""
    names = ((str(one["metadata"].get("namespace")), name_of(one)) for one in seen.of(JOBS))
    return sorted(f"{space}/{name}" for space, name in names if space != NAME)


def _loader(node: Object, image: str) -> tuple[str, ...] | None:
    """Return the command that loads an image of the Docker engine into a cluster like this node's."""
    provider = str((node.get("spec") or {}).get("providerID")).split("/")  # kind://docker/CLUSTER/NODE
    if provider[0] == "kind:" and len(provider) > 3:
        return ("kind", "load", "docker-image", image, "--name", provider[3])
    profile = labels_of(node).get("minikube.k8s.io/name")
    return ("minikube", "image", "load", image, "--profile", str(profile)) if profile else None
