"""The test cluster as fixtures. `make test-cluster` runs these tests; `make test` passes them by."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.cluster import build, packages, registry, storage
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.nodes import TRAINER, Node, images, start_dns
from tests.cluster.sandbox import Sandbox, Unsupported
from tests.cluster.turns import Turns
from tests.parts.gomodule import CannotBuild, Progress
from tools.cells import kustomize, locate
from tools.core import repo
from tools.kube.manifests import Manifests, parse

HERE = Path(__file__).parent
FOREIGN = "TRAINYARD_TEST_KUBECONFIG"
# The files of the process with the real nodes. test_context has a control plane of its own: with it both take as long.
REAL_NODES = (
    "test_context.py",
    "test_controllers.py",
    "test_demo.py",
    "test_job_nodes.py",
    "test_nodes.py",
    "test_own_script.py",
    "test_training.py",
)


class TwoClusters(LoadScopeScheduling):
    """Two processes with a cluster each. One has the real nodes, whose containers use the processors.

    The other has kwok's nodes, where most of the time is waiting, and real nodes at its end: test_own_model and
    test_stage push images under names that test_own_script uses too.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return which of the two a test belongs to."""
        name = Path(nodeid.partition("::")[0]).name
        return "nodes" if name in REAL_NODES else "kwok"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoClusters:
    return TwoClusters(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep kwok's tests off the processors while a test on the real nodes measures seconds."""
    if item.path.parent != HERE or item.path.name in REAL_NODES:
        return (yield)
    with turns(item.config).test():
        return (yield)


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> AbstractContextManager[None]:
    """For a test that measures seconds: wait for the other process's test and keep its next one waiting."""
    return turns(request.config).alone()


def turns(config: pytest.Config) -> Turns:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    base = factory.getbasetemp()
    return Turns(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests on real nodes last in each process: kwok's pods would also go to these nodes."""
    items.sort(key=lambda item: HERE in item.path.parents and "nodes" in getattr(item, "fixturenames", ()))


@contextmanager
def own_plane(say: Progress, modules: Sequence[str] = build.CLUSTER) -> Iterator[ControlPlane]:
    """Start a control plane in a sandbox that ends with the block. Skip where that is not possible."""
    try:
        programs = build.ensure(say, modules)
        sandbox = Sandbox()
    except (CannotBuild, Unsupported) as problem:
        pytest.skip(str(problem))
    try:
        yield ControlPlane(sandbox, programs)
    finally:
        sandbox.close()


@pytest.fixture(scope="session")
def control_plane(say: Progress) -> Iterator[ControlPlane]:
    """The processes of our own control plane. Skipped with a given cluster, or where none can start."""
    if os.environ.get(FOREIGN):
        pytest.skip(f"needs to reach into the control plane: unset {FOREIGN}")
    with own_plane(say) as plane:
        plane.start()
        yield plane


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest) -> Kube:
    """The cluster under test: the one that TRAINYARD_TEST_KUBECONFIG names, or our own."""
    foreign = os.environ.get(FOREIGN)
    if foreign:
        program = shutil.which("kubectl")
        if program is None:
            pytest.skip("no kubectl on PATH: install kubectl 1.31 or newer")
        return Kube(Path(program), Path(foreign))
    plane: ControlPlane = request.getfixturevalue("control_plane")
    return plane.kube


@pytest.fixture
def asked(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `yard` find this cluster's kubectl and kubeconfig."""
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, kube.environment[name])


@pytest.fixture(scope="session")
def fake(request: pytest.FixtureRequest) -> None:
    """kwok, which plays the kubelet of nodes with its annotation. Our own cluster has it."""
    if os.environ.get(FOREIGN):
        pytest.skip(f"needs kwok, which only our own cluster is known to have: unset {FOREIGN}")
    request.getfixturevalue("control_plane")


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """The test's own namespace. It enforces the `restricted` Pod Security standard."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kube.make_namespace(name, enforce="restricted")
    yield name
    kube.delete_namespace(name)


@pytest.fixture(scope="session")
def rendered() -> dict[str, str]:
    """Every cell's YAML by the cell's name."""
    renderer = kustomize.ensure(repo.root(), print)
    return {name: renderer.build(repo.root() / name) for name in locate.cells()}


@pytest.fixture(scope="session")
def cells(rendered: dict[str, str]) -> list[Manifests]:
    """Every cell's objects."""
    return [parse(text, name) for name, text in rendered.items()]


@dataclass(frozen=True)
class Nodes:
    """Two real nodes, and the trainer's image in the registry from which they pull."""

    nodes: list[Node]
    digest: str

    def of(self, pod: Object) -> Node:
        """Return a pod's node."""
        return next(one for one in self.nodes if one.name == pod["spec"]["nodeName"])


@pytest.fixture(scope="session")
def nodes(control_plane: ControlPlane, say: Progress) -> Nodes:
    """Two real nodes with DNS, a registry and a default storage class. Skipped where they cannot run."""
    return real_nodes(control_plane, say)


def real_nodes(control_plane: ControlPlane, say: Progress) -> Nodes:
    """Start the two nodes of a control plane. Skip where they cannot run."""
    try:
        debian = packages.ensure(say)
        made = [Node(control_plane, debian, index) for index in (1, 2)]
        start_dns(control_plane)
        registry.start(control_plane, debian)
        pause, trainer = images(control_plane)
        for node in made:
            node.start([pause])
        say(f"two nodes are Ready {control_plane.age:.1f} s after the cluster was begun")
        digest = made[0].push(trainer, TRAINER)
        storage.start(control_plane, TRAINER, [node.name for node in made])
    except (CannotBuild, Unsupported) as problem:
        pytest.skip(str(problem))
    return Nodes(made, digest)
