"""`yard cluster run new`: the file that it writes, and the input that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gitops.conftest import CELL, CLUSTER, DIGEST, IMAGE, Team
from tools.cli import invoke as yard
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.gitops import flux_objects, new_run
from tools.gitops.render import render
from tools.gitops.run_file import read

Edit = Callable[[Path, str, str], None]


def test_the_file_has_what_was_given(team: Team) -> None:
    made = team.make(image=f"registry.example:5000/trainer-cpu@{DIGEST}")
    new_run.write(made)
    run = read(made.path.read_text(encoding="utf-8"), "r.yaml")
    assert made.path == team.cluster / "runs/cpu-llama-tiny-r1.yaml"
    assert made.evaluation.state is not State.FAIL
    assert (run.cell, run.commit, run.job) == (CELL, team.git("rev-parse", "HEAD"), made.job)
    job = render(team.root, run, team.renderer).job()
    assert job["metadata"]["name"] == "cpu-llama-tiny-train-r1"
    assert job["metadata"]["namespace"] == "training"
    assert job["metadata"]["annotations"] == {"kustomize.toolkit.fluxcd.io/ssa": "IfNotPresent"}
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example:5000/trainer-cpu@{DIGEST}"
    assert team.failed() == []


def test_the_run_uses_the_commit_and_not_the_checkout(team: Team, edit: Edit) -> None:
    edit(team.root / "overlays/cpu/llama-tiny/kustomization.yaml", "count: 2", "count: 7")
    made = team.make()
    new_run.write(made)
    run = read(made.path.read_text(encoding="utf-8"), "r.yaml")
    job = render(team.root, run, team.renderer).job()
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def test_a_cell_with_uncommitted_changes_is_refused_with_the_difference(
    team: Team, edit: Edit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repo, "root", lambda: team.root)
    words = ["cluster", "run", "new", CELL, "--cluster", CLUSTER, "--image", IMAGE]
    model = team.root / "overlays/model/llama-tiny/model.yaml"
    model.write_text(f"{model.read_text(encoding='utf-8')}# another recipe\n", encoding="utf-8")
    assert yard(words) == 1
    said = capsys.readouterr()
    assert "\n+    # another recipe\n" in said.out
    assert "was not written: overlays/cpu/llama-tiny has changes that are not committed" in said.err
    assert not (team.cluster / "runs").exists()
    team.commit("another recipe")
    assert yard(words) == 0  # the control


def test_a_name_is_used_once_even_when_its_file_is_gone(team: Team) -> None:
    first = team.started()
    first.unlink()
    team.commit("removed")
    assert team.make().path.stem == "cpu-llama-tiny-r2"
    with pytest.raises(
        UserError, match=r"cpu-llama-tiny-r1\.yaml already exists or existed .* continue from its checkpoints"
    ):
        team.make(suffix="r1")


def test_nothing_is_written_when_preflight_fails(
    team: Team, edit: Edit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        team.root / "base/pytorchjob/pytorchjob.yaml", "restartPolicy: OnFailure", "restartPolicy: Sometimes"
    )
    team.commit("broken")
    monkeypatch.setattr(repo, "root", lambda: team.root)
    code = yard(["cluster", "run", "new", CELL, "--cluster", CLUSTER, "--image", IMAGE])
    said = capsys.readouterr()
    assert code == 1
    assert "restartPolicy" in said.out
    assert "was not written" in said.err
    assert not (team.cluster / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"cell": "cpu/llama-tinny"}, "no cell overlays/cpu/llama-tinny"),
        ({"image": None}, "no digest for the image localhost/trainyard/trainer-cpu"),
        ({"image": "registry.example/trainer-cpu:v1"}, "not a digest"),
        ({"suffix": "Big_One"}, "lower-case letters"),
        ({"commit": "0123456789"}, "no such commit in this clone"),
    ],
)
def test_bad_input_is_one_sentence(team: Team, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        team.make(**words)


@pytest.mark.parametrize(
    "registry", ["", "localhost:5000/", "127.0.0.1:5000/team/", "kind.local/", "ko.local/", "[::1]:5000/"]
)
def test_an_image_that_no_node_can_pull_is_refused(team: Team, registry: str) -> None:
    """The cell's own name begins with localhost/. The control is a registry of the same port."""
    image = f"{registry}trainer-cpu@{DIGEST}" if registry else DIGEST
    with pytest.raises(UserError, match="no node can pull") as caught:
        team.make(image=image)
    assert caught.value.code == 1
    assert team.make(image=f"registry.localhost.example:5000/trainer-cpu@{DIGEST}").job


def test_the_nearest_cluster_is_named(team: Team) -> None:
    with pytest.raises(UserError) as caught:
        flux_objects.find(team.root, "cpu-demos")
    assert caught.value.hint == "did you mean cpu-demo?"
    with pytest.raises(UserError) as caught:
        team.make(cell="cpu/llama-tinny")
    assert caught.value.hint == "did you mean overlays/cpu/llama-tiny?"


def test_a_feature_is_added_to_the_cell(team: Team) -> None:
    run = read(team.make(features=("kueue",)).text, "r.yaml")
    job = render(team.root, run, team.renderer).job()
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "trainyard"


def test_the_access_to_a_private_repository_is_copied(team: Team, edit: Edit) -> None:
    edit(
        team.root / "base/flux/sync/sync.yaml",
        "  interval: 1m\n",
        "  interval: 1m\n  secretRef: {name: git}\n",
    )
    assert read(team.make().text, "r.yaml").source["spec"]["secretRef"] == {"name": "git"}


def test_a_cell_for_other_instance_types_is_reported(team: Team, edit: Edit) -> None:
    made = team.make(cell="p4d/llama-2-7b")
    assert made.strange == ["p4d.24xlarge", "ml.p4d.24xlarge"]
    facts = team.cluster / "cluster.env"
    facts.write_text(facts.read_text(encoding="utf-8") + "NODES_GPU=p4d.24xlarge 0-4\n", encoding="utf-8")
    assert team.make(cell="p4d/llama-2-7b").strange == []
    assert team.make().strange == [], "a cell for any node"
