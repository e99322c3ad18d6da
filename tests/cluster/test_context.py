"""A cluster of which only a context is known: what is read, written and said, with rights and without."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cluster.api import Object
from tests.cluster.conftest import own_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import shared_claim
from tests.cluster.machines import fake_node
from tests.house import printed
from tests.parts.gomodule import Progress
from tools import cli
from tools.cells import kustomize
from tools.cluster import cluster_env, isolation
from tools.cluster import spec as specs
from tools.core import repo
from tools.facts.instances import NVIDIA, instance
from tools.gitops import flux_objects

PAGE = "docs/tutorials/namespace-only.md"
TEAM, USER = "training", "system:serviceaccount:training:trainee"
ZONE = {"topology.kubernetes.io/zone": "us-west-2b", "topology.kubernetes.io/region": "us-west-2"}
# What each printed command answers with the rights of the page; all others exit with 0.
CODES = {
    "yard cluster validate -n training": {3},
    "yard preflight overlays/cpu/llama-tiny --cluster mine": {3},  # the nodes are unknown
    "yard job why -n training": {0, 3},  # kwok's pods write no log, so that only a new job is healthy
    "yard job stop -n training --delete": {3},  # nor a checkpoint
}


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Yard = Callable[[str], Ran]


@pytest.fixture(scope="module")
def plane(say: Progress) -> Iterator[ControlPlane]:
    """Its own control plane with nodes of EC2 and one of no cloud, and two storage classes."""
    with own_plane(say) as plane:
        plane.start()
        own = fake_node(instance("m5.2xlarge"), "own-0")
        del own["metadata"]["labels"]["node.kubernetes.io/instance-type"]
        own["status"]["allocatable"] = own["status"]["capacity"] | {NVIDIA: "4"}
        own["status"]["capacity"] = own["status"]["allocatable"]
        bare = fake_node(instance("p5.48xlarge"), "bare-0", ZONE)  # a GPU node without device plugins
        for part in ("allocatable", "capacity"):
            bare["status"][part] = {key: value for key, value in bare["status"][part].items() if "/" not in key}
        nodes = [fake_node(instance("m5.2xlarge"), f"cpu-{number}", ZONE) for number in range(2)]
        for number, node in enumerate([*nodes, bare]):
            node["spec"]["providerID"] = f"aws:///us-west-2b/i-{number:017x}"
        plane.kube.put([*nodes, bare, own, _class("slow"), _class("fast", default=True)])
        for name in ("cpu-0", "cpu-1", "bare-0", "own-0"):
            plane.kube.wait(f"{name} to be Ready", lambda name=name: _is_ready(plane, name), 60)  # type: ignore[misc]
        yield plane


def _class(name: str, default: bool = False) -> Object:
    notes = {"storageclass.kubernetes.io/is-default-class": str(default).lower()}
    metadata = {"name": name, "annotations": notes}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": metadata,
        "provisioner": "test/none",
    }


def _is_ready(plane: ControlPlane, name: str) -> bool:
    conditions = ((plane.kube.get("node", name) or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose clusters/ a test may change."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "pyproject.toml").touch()
    for name in ("base", "overlays"):
        shutil.copytree(repo.root() / name, root / name)
    monkeypatch.setattr(repo, "root", lambda: root)
    return root


@pytest.fixture
def yard(plane: ControlPlane, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Yard:
    """A function that runs a printed command on this cluster."""
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, plane.kube.environment[name])
    monkeypatch.setattr(isolation, "STARTS", 2.0)
    monkeypatch.setattr(isolation, "SETTLES", 1)

    def run(line: str) -> Ran:
        capsys.readouterr()
        code = cli.invoke(shlex.split(line)[1:])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def test_a_directory_is_written_from_what_is_there(plane: ControlPlane, yard: Yard, tree: Path) -> None:
    """Types and zones, devices of a machine of no cloud, classes, kinds; then the platform is what lacks."""
    ran = yard("yard cluster init lab")
    assert ran.code == 0, ran.err
    facts = {name: one.value for name, one in cluster_env.read(tree / "clusters/lab/cluster.env").items()}
    assert (
        facts.items()
        >= {
            "AWS_REGION": "us-west-2",
            "ZONES": "us-west-2b",
            "KUBERNETES_VERSION": "1.36",
            "STORAGE_CLASSES": "fast,slow",
            "DEFAULT_STORAGE_CLASS": "fast",
            "CLAIMS": "none",
            "QUEUES": "none",
            "JOB_KINDS": "Job,PyTorchJob",
            "NODES_M5_2XLARGE": "m5.2xlarge 2-2 us-west-2b",
            "NODES_P5_48XLARGE": "p5.48xlarge 1-1 us-west-2b",
        }.items()
    )
    amounts = r"1 cpu=7910m memory=29317Mi ephemeral-storage=102400Mi nvidia\.com/gpu=4 with "
    assert re.match(amounts, facts["MACHINES_1"])
    assert [one.instance.name for one in specs.load(tree, "lab").groups] == ["m5.2xlarge", "p5.48xlarge"]
    plugins = (tree / "clusters/lab/plugins/kustomization.yaml").read_text(encoding="utf-8")
    lacking = re.findall(r"base/plugins/(\S+)", plugins.partition("resources:")[2])
    assert lacking == ["namespace", "nvidia", "efa"], "the operator is there"
    assert "base/storage/default-class" in (tree / "clusters/lab/storage/kustomization.yaml").read_text()
    renderer = kustomize.ensure(tree, print)
    names = {one.item["metadata"]["name"] for one in flux_objects.kustomizations(tree / "clusters/lab", renderer)}
    assert {"plugins", "storage", "runs"} <= names, "Flux can reconcile it"

    assert yard("yard cluster init lab").out == "clusters/lab: up to date\n"
    plane.kube.apply(yard("yard platform lab/storage").out.replace("namespace: training", "namespace: default"), None)
    plane.kube.make_namespace("team-b")
    plane.kube.put(shared_claim("team-b"), "team-b")
    refused = yard("yard cluster init lab -n team-b")
    assert refused.code == 1
    assert "-CLAIMS=none\n+CLAIMS=trainyard" in refused.out
    assert yard("yard cluster init lab -n team-b --yes").code == 0
    assert yard("yard preflight cpu/llama-tiny --cluster lab").code == 0
    big = yard("yard preflight p5/llama-3-1-8b --cluster lab")
    assert big.code == 1
    assert "clusters/lab/cluster.env: " in big.out


def test_commands_answer_for_a_context(plane: ControlPlane, yard: Yard) -> None:
    """What only AWS or a cluster.env would say is CANNOT TELL."""
    network = yard("yard cluster network --json")
    levels = {one["name"]: one["level"] for one in json.loads(network.out)["findings"]}
    assert network.code == 3
    assert levels == dict.fromkeys(("itself", "ssh", "cni"), "CANNOT TELL") | {"zone": "PASS", "pods": "PASS"}
    cost = yard("yard cluster cost --json")
    answer = json.loads(cost.out)
    assert (cost.code, answer["unknown"]) == (3, 1), "a machine of no cloud has no price"
    assert answer["usd_per_hour"] == pytest.approx(2 * 0.384 + 55.04, abs=15)
    assert "gateways" in answer["unseen"]
    found = yard("yard cluster validate -n default --json")
    levels = {one["name"]: one["level"] for one in json.loads(found.out)["findings"]}
    assert (levels["namespace"], levels["rights"], levels["bucket"]) == ("PASS", "PASS", "CANNOT TELL")
    assert levels["devices"] == "FAIL", "bare-0 advertises no GPU"
    assert yard("yard cluster validate --context none").code == 2


def test_with_rights_in_a_namespace_only(
    plane: ControlPlane, yard: Yard, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every printed command of the page, as a ServiceAccount with the page's Role and nothing else."""
    plane.kube.make_namespace(TEAM, enforce="restricted")
    plane.kube.put(shared_claim(TEAM), TEAM)
    fences = printed.fences(Path(__file__).parents[2] / PAGE)
    rules = next(text for kind, text in fences if kind == "yaml")
    plane.kube.put(yaml.safe_load_all(rules))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainee"}}
    plane.kube.put([account], TEAM)
    token = plane.kube.run("create", "token", "trainee", f"--namespace={TEAM}").strip()
    config = yaml.safe_load(plane.kube.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "trainee"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    mine = printed.run_by("tests/cluster/test_context.py")
    lines = [one.line for one in printed.printed() if one.page == PAGE and one.line in mine]
    assert lines
    said = {}
    for line in lines:
        said[line] = ran = yard(line)
        assert ran.code in CODES.get(line, {0}), f"{line}: {ran.code}\n{ran.out}\n{ran.err}"
        assert "Traceback" not in ran.err
        if line.startswith("yard job submit") and "--dry-run" not in line:
            job = "cpu-llama-tiny-train"
            plane.kube.wait("the job's pods", lambda: len(plane.kube.list("pods", TEAM)) == 2, 60)
            assert plane.kube.get("pytorchjob", job, TEAM) is not None
    checked = said["yard cluster validate -n training"].out
    for name, state in (
        ("claim", "PASS"),
        ("rights", "PASS"),
        ("admission", "PASS"),
        ("nodes", "CANNOT TELL"),
    ):
        assert re.search(rf"^{state} +{name} ", checked, re.MULTILINE), checked
    text = (tree / "clusters/mine/cluster.env").read_text(encoding="utf-8")
    assert "CLAIMS=trainyard\nJOB_KINDS=Job,PyTorchJob\n" in text
    for fact in ("STORAGE_CLASSES", "OPERATORS", "NODES_..."):
        assert re.search(rf"^# {re.escape(fact)} is unknown: .*forbidden", text, re.MULTILINE), text
    assert yard("yard cluster nodes").code == yard("yard cluster cost").code == 3
    assert "CANNOT TELL" in yard("yard cluster network").out
    with (tree / "clusters/mine/cluster.env").open("a", encoding="utf-8") as file:
        file.write(next(text for kind, text in printed.fences(Path(__file__).parents[2] / PAGE) if "MACHINES" in text))
    assert yard("yard preflight overlays/cpu/llama-tiny --cluster mine").code == 0
