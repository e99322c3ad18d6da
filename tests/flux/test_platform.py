"""The platform under Flux: drift, pruning, broken commits, strict facts, and Secrets with SOPS."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Object
from tests.cluster.kube import condition
from tests.flux.fleet import condition as said
from tests.flux.fleet import git
from tests.flux.world import World
from tools.cells import kustomize
from tools.core import repo
from tools.core.verdict import State
from tools.gitops import check, git_secrets

FIRST = "cpu-llama-tiny-sample"
OPERATOR = ("deployment", "training-operator", "kubeflow")
SECRET = """\
apiVersion: v1
kind: Secret
metadata:
  name: {name}
  namespace: training
stringData:
  token: hf_example
"""
# As in docs/flux.md.
DECRYPTION = """\
patches:
  - target: {kind: Kustomization, name: storage}
    patch: |
      - {op: add, path: /spec/decryption, value: {provider: sops, secretRef: {name: sops-age}}}
"""


@pytest.fixture(autouse=True)
def restored(world: World) -> Iterator[None]:
    """Restore the platform after each test, and check that the first run was not touched."""
    before = git(world.root, "rev-parse", "HEAD")
    job = world.job(FIRST)
    yield
    git(world.root, "read-tree", "-u", "--reset", before)
    made = world.push("as before")
    for name in ("plugins", "storage", "runs"):
        world.fleet.poke(name)  # the next retry would be minutes away
        world.fleet.wait_ready(name, made)
    assert world.job(FIRST)["metadata"]["uid"] == job["metadata"]["uid"]
    assert world.job(FIRST)["spec"] == job["spec"]


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that occurs once in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (old, text)
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_drift_is_reverted_and_fields_of_others_stay(world: World) -> None:
    kube = world.fleet.kube
    where = (*OPERATOR[:2], "-n", OPERATOR[2], "--type=merge")
    for manager, patch in (
        ("someone", '{"metadata":{"labels":{"theirs":"1"}}}'),
        ("kubectl-patch", '{"metadata":{"labels":{"mine":"1"}},"spec":{"replicas":0}}'),
    ):
        kube.run("patch", *where, f"--patch={patch}", f"--field-manager={manager}")
    assert _get(world, *OPERATOR)["spec"]["replicas"] == 0
    kube.run("delete", "clusterrole", "training-operator")
    world.fleet.reconciled("training-operator")
    repaired = _get(world, *OPERATOR)
    assert repaired["spec"]["replicas"] == 1
    assert repaired["metadata"]["labels"]["theirs"] == "1"
    assert "mine" not in repaired["metadata"]["labels"], "a change with kubectl is drift too"
    assert kube.get("clusterrole", "training-operator") is not None
    world.fleet.wait_ready("training-operator")


def test_prune_removes_only_what_left_git(world: World) -> None:
    assert _get(world, "deployment", "fsx-csi-controller", "kube-system")
    edit(world.cluster / "plugins/kustomization.yaml", "  - ../../../base/plugins/fsx-csi/flux\n", "")
    edit(world.cluster / "plugins/kustomization.yaml", "  - ../../../base/plugins/namespace\n", "")
    by_hand = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "by-hand"}}
    world.fleet.kube.put([by_hand], "kube-system")
    made = world.push("without the CSI driver, and without the namespace")
    world.fleet.wait_ready("plugins", made)
    driver = ("deployment", "fsx-csi-controller", "kube-system")
    world.fleet.wait("the driver to be removed", lambda: world.fleet.kube.get(*driver) is None)
    assert _get(world, *OPERATOR)
    assert _get(world, "configmap", "by-hand", "kube-system")
    namespace = _get(world, "namespace", "training")
    assert namespace["status"]["phase"] == "Active", "everything of the team would be deleted with it"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "plugins/kustomization.yaml",
            "resources: [../../../base/plugins/nothing]\n",
            "base/plugins/nothing",
        ),
        ("plugins/kustomization.yaml", "resources: [\n", "did not find expected node content"),
        ("plugins/bad.yaml", "apiVersion: v1\nkind: ConfigMapp\nmetadata: {name: bad}\n", "ConfigMapp"),
    ],
)
def test_a_broken_commit_stops_nothing_and_is_reported(world: World, file: str, text: str, message: str) -> None:
    operator = _get(world, *OPERATOR)["metadata"]
    (world.cluster / file).write_text(text, encoding="utf-8")
    if file == "plugins/bad.yaml":
        kustomization = world.cluster / "plugins/kustomization.yaml"
        kustomization.write_text(kustomization.read_text(encoding="utf-8") + "  - bad.yaml\n", encoding="utf-8")
    world.push("broken")
    assert message in world.fleet.wait_failed("plugins")
    now = _get(world, *OPERATOR)["metadata"]
    assert (now["uid"], now["generation"]) == (operator["uid"], operator["generation"])
    assert condition(world.job(FIRST), "Running") is not None
    world.fleet.wait("the runs to wait", lambda: said(world.fleet.get("runs"))["reason"] == "DependencyNotReady")


def test_a_missing_fact_stops_the_platform(world: World) -> None:
    """Flux is strict, and so is our check before the push."""
    facts = world.cluster / "cluster.env"
    text = facts.read_text(encoding="utf-8")
    without = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("FSX_SUBNET_ID="))
    facts.write_text(without, encoding="utf-8")
    world.push("no subnet")
    assert "FSX_SUBNET_ID" in world.fleet.wait_failed("storage")
    found = check.check(world.root, world.cluster, kustomize.ensure(repo.root(), print), None)
    bad = [one for one in found if one.state is State.FAIL and one.details["rule"] == "facts"]
    assert "${FSX_SUBNET_ID} is not set" in bad[0].summary


def test_a_changed_fact_reaches_the_cluster(world: World) -> None:
    other = "training-2"
    edit(world.cluster / "cluster.env", "TEAM_NAMESPACE=training\n", f"TEAM_NAMESPACE={other}\n")
    world.push("another team")
    world.fleet.wait("its namespace", lambda: world.fleet.kube.get("namespace", other) is not None)
    labels = _get(world, "namespace", other)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_secret_is_only_decrypted_with_spec_decryption(world: World) -> None:
    """The check refuses the second: Flux reports Ready, but the pod gets `ENC[...`."""
    key = world.fleet.plane.sandbox.root / "age.key"
    program = world.fleet.parts.program("age-keygen")
    made = subprocess.run([program, "-o", key], capture_output=True, text=True, check=True)
    recipient = made.stderr.split()[-1]
    literal = f"--from-file=age.agekey={key}"
    world.fleet.kube.run("create", "secret", "generic", "sops-age", "-n", "flux-system", literal)
    for part in ("storage", "plugins"):
        path = world.cluster / part / "token.yaml"
        path.write_text(SECRET.format(name=f"token-{part}"), encoding="utf-8")
        _encrypt(world, path, recipient)
        kustomization = world.cluster / part / "kustomization.yaml"
        kustomization.write_text(kustomization.read_text(encoding="utf-8") + "  - token.yaml\n", encoding="utf-8")
    with (world.cluster / "kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write(DECRYPTION)
    renderer = kustomize.ensure(repo.root(), print)
    (refused,) = (one for one in git_secrets.check(world.root, renderer) if one.state is State.FAIL)
    assert "token-plugins" in refused.summary
    assert "would apply the ciphertext" in refused.summary
    revision = world.push("two Secrets")
    for part in ("plugins", "storage"):
        world.fleet.wait_ready(part, revision)
    assert _value(world, "token-storage") == "hf_example"
    assert _value(world, "token-plugins").startswith("ENC[AES256_GCM")
    world.fleet.kube.run("delete", "secret", "sops-age", "-n", "flux-system")


def _encrypt(world: World, path: Path, recipient: str) -> None:
    """Encrypt a file as in docs/flux.md."""
    program = world.fleet.parts.program("sops")
    words = [
        "encrypt",
        "--in-place",
        "--age",
        recipient,
        "--encrypted-regex",
        "^(data|stringData)$",
        str(path),
    ]
    subprocess.run([program, *words], env={**os.environ}, capture_output=True, check=True)
    assert "hf_example" not in path.read_text(encoding="utf-8")


def _value(world: World, name: str) -> str:
    return base64.b64decode(_get(world, "secret", name, "training")["data"]["token"]).decode()


def _get(world: World, kind: str, name: str, namespace: str = "default") -> Object:
    found = world.fleet.kube.get(kind, name, namespace)
    assert found is not None, f"no {kind} {name}"
    return found
