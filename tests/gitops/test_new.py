"""`yard cluster run new`: the file that it writes, and the input that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gitops.conftest import CELL, CLUSTER, DIGEST, IMAGE, Team
from tools.cells import trainer_config
from tools.cells.knobs import Knobs
from tools.cli import invoke as yard
from tools.cli.job import show
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.gitops import check, flux_objects, new_run
from tools.gitops.new_run import Wanted
from tools.gitops.render import render
from tools.gitops.run_file import RunFile, dumped, read
from tools.job.snapshot.live_job import LiveJob
from tools.job.submitted import Submitted
from tools.preflight.evaluate import evaluate
from tools.workload import kinds
from tools.workload.pytorchjob import PyTorchJob

Edit = Callable[[Path, str, str], None]
RATE = "2.5e-3"  # of overlays/model/llama-tiny


def test_the_file_has_what_was_given(team: Team) -> None:
    made = team.make(image=f"registry.example:5000/trainer-cpu@{DIGEST}")
    new_run.write(made)
    run = read(made.path.read_text(encoding="utf-8"), "r.yaml")
    assert made.path == team.cluster / "runs/cpu-llama-tiny-r1.yaml"
    assert made.evaluation.state is not State.FAIL
    assert (run.cell, run.commit, run.job) == (CELL, team.git("rev-parse", "HEAD"), made.run.job)
    job = render(team.root, run, team.renderer).job()
    assert job["metadata"]["name"] == "cpu-llama-tiny-train-r1"
    assert job["metadata"]["namespace"] == "training"
    assert job["metadata"]["annotations"] == {"kustomize.toolkit.fluxcd.io/ssa": "IfNotPresent"}
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example:5000/trainer-cpu@{DIGEST}"
    assert team.failed() == []


def test_the_run_uses_the_commit_and_not_the_checkout(team: Team, edit: Edit) -> None:
    edit(
        team.root / "overlays/cpu/llama-tiny/kustomization.yaml",
        "Worker/replicas, value: 2",
        "Worker/replicas, value: 7",
    )
    made = team.make()
    new_run.write(made)
    run = read(made.path.read_text(encoding="utf-8"), "r.yaml")
    job = render(team.root, run, team.renderer).job()
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def words(*more: str) -> list[str]:
    return ["cluster", "run", "new", CELL, "--cluster", CLUSTER, "--image", IMAGE, *more]


def change_rate(team: Team) -> None:
    """Change the learning rate in the working tree."""
    model = team.root / "overlays/model/llama-tiny/model.yaml"
    text = model.read_text(encoding="utf-8")
    assert text.count(f"learning_rate: {RATE}") == 1
    model.write_text(text.replace(f"learning_rate: {RATE}", "learning_rate: 1.0e-4"), encoding="utf-8")


def change_feature(team: Team) -> None:
    """Change a Component that only the run adds to the cell."""
    queue = team.root / "overlays/feature/kueue/kustomization.yaml"
    text = queue.read_text(encoding="utf-8")
    queue.write_text(text.replace("queue-name: trainyard", "queue-name: another"), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "more", "line"),
    [
        (change_rate, [], "+      learning_rate: 1.0e-4"),
        (change_rate, ["--commit", "main"], "+      learning_rate: 1.0e-4"),
        (change_feature, ["--feature", "kueue"], "+    kueue.x-k8s.io/queue-name: another"),
    ],
)
def test_a_working_tree_that_differs_from_the_commit_is_refused(
    team: Team,
    change: Callable[[Team], None],
    more: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run would be named after a change that it does not have."""
    monkeypatch.setattr(repo, "root", lambda: team.root)
    change(team)
    named = words("--name", "lr-1e-4", *more)
    assert yard(named) == 1
    said = capsys.readouterr()
    assert f"\n{line}" in said.out
    assert "was not written: overlays/cpu/llama-tiny differs from commit" in said.err
    assert not (team.cluster / "runs").exists()
    assert yard([*named, "--allow-dirty"]) == 0
    said = capsys.readouterr()
    assert f"\n{line}" in said.out, "what the run does not have is shown"
    path = team.cluster / "runs/cpu-llama-tiny-lr-1e-4.yaml"
    run = read(path.read_text(encoding="utf-8"), "r.yaml")
    assert config(team, run).train.learning_rate == float(RATE)
    path.unlink()
    team.commit("the change")
    assert yard(named) == 0  # the control


def config(team: Team, run: RunFile) -> Any:
    """Return the trainer's configuration of a run as Flux would create it."""
    return trainer_config.load_config(render(team.root, run, team.renderer), team.root)


def test_three_learning_rates_are_three_files_and_one_commit(
    team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repo, "root", lambda: team.root)
    for rate in ("1e-4", "3e-4", "1e-3"):
        knobs = ["--set", f"train.learning_rate={rate}", "--nodes", "4", "--nproc", "1"]
        assert yard(words("--name", f"lr-{rate}", *knobs)) == 0
    team.commit("three runs")
    assert team.failed() == []
    runs = check.run_files(team.root, team.cluster)
    assert [run.name for run in runs] == [f"cpu-llama-tiny-lr-{rate}" for rate in ("1e-3", "1e-4", "3e-4")]
    assert len({run.commit for run in runs}) == 1
    assert [config(team, run).train.learning_rate for run in runs] == [1e-3, 1e-4, 3e-4]
    manifests = [render(team.root, run, team.renderer) for run in runs]
    names = [{item["metadata"]["name"] for item in one.of_kind("ConfigMap")} for one in manifests]
    assert len(set.union(*names)) == sum(map(len, names)), "each run has ConfigMaps of its own"
    for one in manifests:
        assert one.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4
        assert one.job()["spec"]["elasticPolicy"]["maxReplicas"] == 4
        assert evaluate(one).state is not State.FAIL
    text = (team.cluster / "runs/cpu-llama-tiny-lr-1e-4.yaml").read_text(encoding="utf-8")
    assert "# Changes: --nodes 4 --nproc 1 --set train.learning_rate=1e-4\n" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "train.learning_rat=1e-4"], "did you mean train.learning_rate"),
        (["--set", "train.learning_rate=fast"], "train.learning_rate"),
        (["--instance", "p5.48xlarge"], "p5.48xlarge"),
        (["--name", "x" * 60], "characters"),
    ],
)
def test_a_change_without_meaning_writes_nothing(
    team: Team,
    more: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(repo, "root", lambda: team.root)
    assert yard(words(*more)) in (1, 2)
    said = capsys.readouterr()
    assert message in said.err + said.out
    assert not (team.cluster / "runs").exists()


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
    edit(team.root / "base/pytorchjob/pytorchjob.yaml", "restartPolicy: OnFailure", "restartPolicy: Sometimes")
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
    assert team.make(image=f"registry.localhost.example:5000/trainer-cpu@{DIGEST}").run.job


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


@pytest.mark.parametrize("cell", [CELL, "overlays/p5/llama-3-1-8b"])
def test_a_run_of_a_trainjob_is_created_once_and_trains_as_the_cell_does(
    team: Team, cell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flux would change neither the TrainJob nor its runtime, and waits for Jobs whose pods are ready."""
    monkeypatch.setattr(repo, "root", lambda: team.root)
    given = words("--feature", "trainjob", "--nodes", "4", "--set", "train.learning_rate=1e-4")
    given[given.index(CELL)] = cell
    assert yard(given) == 0, capsys.readouterr().err
    team.commit("a run")
    assert team.failed() == []
    (run,) = check.run_files(team.root, team.cluster)
    made = render(team.root, run, team.renderer)
    job = kinds.job_of(made)
    assert (run.kind, job.kind, job.name, job.replicas) == ("TrainJob", "TrainJob", run.job, 4)
    assert not made.jobs()
    assert [one["image"] for one in job.training_containers()] == [IMAGE]
    assert config(team, run).train.learning_rate == 1e-4
    (runtime,) = made.of_kind("TrainingRuntime")
    for item in (job.item, runtime):
        assert item["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/ssa"] == "IfNotPresent"
    (check_of,) = run.spec["healthCheckExprs"]
    assert check_of["kind"] == "TrainJob"
    job.item["metadata"]["labels"][show.FLUX] = run.name
    assert show.from_git(LiveJob(job)) is not None


@pytest.mark.parametrize(
    ("key", "kept", "message"),
    [
        ("patches", slice(0, 1), "the TrainingRuntime has no annotation"),
        ("healthChecks", slice(0, 0), "healthChecks must be only the job"),
    ],
)
def test_a_run_of_a_trainjob_that_could_change_is_refused(team: Team, key: str, kept: slice, message: str) -> None:
    made = team.make(features=("trainjob",))
    assert len(made.run.spec["patches"]) == 2, "of the TrainJob and of its runtime"
    made.run.spec[key] = made.run.spec[key][kept]
    made.path.parent.mkdir(exist_ok=True)
    made.path.write_text(dumped(made.run.source, made.run.kustomization), encoding="utf-8")
    assert any(message in one for one in team.failed()), team.failed()


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


def test_an_image_of_the_agent_that_no_node_can_pull_fails(
    team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer's image is pulled; that of an init container, which a feature adds, is not."""
    monkeypatch.setattr(repo, "root", lambda: team.root)
    assert yard(words("--feature", "agent")) == 1
    assert "FAIL: localhost is another machine on each node" in capsys.readouterr().out
    assert not (team.cluster / "runs").exists()


def test_what_flux_created_is_shown_from_git(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the run's label on the job. A job of another name or namespace is not taken for it."""
    monkeypatch.setattr(repo, "root", lambda: team.root)
    settings = ("train.learning_rate=1e-4",)
    made = new_run.make(team.root, Wanted(CELL, CLUSTER, knobs=Knobs(image=IMAGE, settings=settings)), team.renderer)
    new_run.write(made)
    rendered = render(team.root, made.run, team.renderer)
    item = rendered.job()
    item["metadata"]["labels"][show.FLUX] = made.run.name

    def found() -> Submitted | None:
        return show.from_git(LiveJob(PyTorchJob(item)))

    shown = found()
    assert shown is not None
    assert shown.manifests.objects == render(team.root, made.run, team.renderer).objects
    assert f"runs/cpu-llama-tiny-r1.yaml at commit {made.run.commit[:12]}" in shown.where
    changes: list[dict[str, Any]] = [{"name": "another"}, {"namespace": "another"}, {"labels": {}}]
    for change in changes:
        before = dict(item["metadata"])
        item["metadata"] |= change
        assert found() is None
        item["metadata"] = before
