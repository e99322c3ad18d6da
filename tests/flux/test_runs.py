"""Runs under Flux: added by a commit, created once, removed by a commit."""

from __future__ import annotations

import re

import pytest

from tests.cluster import controllers
from tests.cluster.api import Object
from tests.cluster.kube import condition
from tests.flux.fleet import condition as said
from tests.flux.world import DIGEST, World
from tools.cells import kustomize
from tools.cells.knobs import Knobs
from tools.cells.kustomize import Renderer
from tools.cli import invoke as yard
from tools.core import repo
from tools.core.verdict import State
from tools.gitops import check
from tools.gitops.render import render

FIRST = "cpu-llama-tiny-sample"
TRAINJOB = ("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org")


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return kustomize.ensure(repo.root(), print)


@pytest.fixture
def commands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`yard` in the clone, with the cluster's kubectl on PATH."""
    monkeypatch.setattr(repo, "root", lambda: world.root)
    for name in ("PATH", "KUBECONFIG"):
        monkeypatch.setenv(name, world.fleet.kube.environment[name])


def test_flux_creates_what_we_rendered(world: World, renderer: Renderer) -> None:
    name = world.add_run(renderer, "added", Knobs(settings=("train.learning_rate=1.5e-4",)))
    job = world.running(name)
    run = next(one for one in check.run_files(world.root, world.cluster) if one.name == name)
    ours = render(world.root, run, renderer)
    assert _spec(job) == _spec(ours.job())
    assert job["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/ssa"] == "IfNotPresent"
    for item in ours.objects:
        assert world.fleet.kube.get(item["kind"], item["metadata"]["name"], run.namespace), item["metadata"]
    texts = [
        text
        for one in _config_maps(job)
        for text in (world.fleet.kube.get("configmap", one, run.namespace) or {})["data"].values()
    ]
    assert sum("learning_rate: 1.5e-4" in text for text in texts) == 1, "the patch of the run's file"
    image = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"]
    assert image.endswith(f"@{DIGEST}")
    world.fleet.wait_ready(name)
    assert world.job(FIRST)["metadata"]["name"] != job["metadata"]["name"]


def _spec(job: Object) -> Object:
    """Return the fields of a job's spec that the operator does not set."""
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    kept = {key: pod[key] for key in ("containers", "volumes", "securityContext", "serviceAccountName")}
    return kept | {"replicas": worker["replicas"], "labels": worker["template"]["metadata"]["labels"]}


def test_a_run_is_created_once(world: World, renderer: Renderer) -> None:
    """Not again after an unrelated commit, a changed cell, a lost pod, a restart of Flux, or its end."""
    name = world.add_run(renderer, "once")
    job = world.running(name)

    def same() -> None:
        world.fleet.reconciled(name)
        now = world.job(name)
        assert now["metadata"]["uid"] == job["metadata"]["uid"]
        assert now["spec"] == job["spec"]

    (world.root / "base/README.md").write_text("unrelated\n", encoding="utf-8")
    world.push("unrelated")
    same()
    leaf = world.root / "overlays/cpu/llama-tiny/kustomization.yaml"
    leaf.write_text(leaf.read_text(encoding="utf-8").replace("value: 2}", "value: 1}"), encoding="utf-8")
    world.push("a changed cell")
    same()
    pod = world.pods(job)[0]
    world.fleet.kube.run("delete", "pod", pod["metadata"]["name"], "-n", pod["metadata"]["namespace"], "--now")
    world.fleet.wait("another pod", lambda: _is_replaced(world, job, pod))
    same()
    world.fleet.restart()
    same()
    ended = {"name": "pytorch", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    ended["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    world.write_pod(world.pods(job)[0], phase="Succeeded", containerStatuses=[ended])
    world.fleet.wait("the job's end", lambda: condition(world.job(name), "Succeeded") is not None)
    world.push("after its end")
    same()
    assert world.fleet.ready(name)


def _is_replaced(world: World, job: Object, pod: Object) -> bool:
    uids = [one["metadata"]["uid"] for one in world.pods(job)]
    return len(uids) == len(set(uids)) == 2 and pod["metadata"]["uid"] not in uids


def test_an_edited_run_keeps_its_job_and_fails_the_check(world: World, renderer: Renderer) -> None:
    """Without the check, the job stays, but the ConfigMaps that it mounts are deleted."""
    name = world.add_run(renderer, "edited")
    job = world.running(name)
    mounted = _config_maps(job)
    path = world.cluster / "runs" / f"{name}.yaml"
    model = world.root / "overlays/model/llama-tiny/model.yaml"
    model.write_text(model.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    later = world.push("a changed model")
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'commit: "[0-9a-f]{40}"', f'commit: "{later}"', text), encoding="utf-8")
    refused = [one for one in check.check(world.root, world.cluster, renderer, None) if one.state is State.FAIL]
    assert [one.details["rule"] for one in refused] == ["run-edited"]
    world.push("edited nevertheless")
    world.fleet.wait_ready(name, later)
    now = world.job(name)
    assert now["metadata"]["uid"] == job["metadata"]["uid"]
    assert now["spec"] == job["spec"]
    namespace = job["metadata"]["namespace"]
    there = [one for one in mounted if world.fleet.kube.get("configmap", one, namespace)]
    assert len(there) < len(mounted), "as the check says"
    path.write_text(text, encoding="utf-8")
    world.push("put back")
    world.fleet.wait_ready(name, re.findall(r'commit: "([0-9a-f]{40})"', text)[0])
    assert all(world.fleet.kube.get("configmap", one, namespace) for one in mounted)


def _config_maps(job: Object) -> list[str]:
    volumes = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
    (config,) = (one["projected"]["sources"] for one in volumes if one["name"] == "config")
    return [source["configMap"]["name"] for source in config]


def test_a_job_deleted_by_hand_comes_back_and_a_removed_run_is_deleted(world: World, renderer: Renderer) -> None:
    """A finished job that is deleted would run again, so a run is removed with its file."""
    name = world.add_run(renderer, "gone")
    job = world.running(name)
    where = ("pytorchjob", job["metadata"]["name"], "-n", job["metadata"]["namespace"])
    world.fleet.kube.run("delete", *where)
    world.fleet.reconciled(name)
    again = world.running(name)
    assert again["metadata"]["uid"] != job["metadata"]["uid"]
    others = {one: world.job(one)["metadata"]["uid"] for one in (FIRST,)}
    (world.cluster / "runs" / f"{name}.yaml").unlink()
    world.push("removed")
    world.fleet.wait("the run's end", lambda: not world.fleet.get(name) and not world.job(name))
    assert world.fleet.kube.list("configmaps", None, f"kustomize.toolkit.fluxcd.io/name={name}") == []
    assert {one: world.job(one)["metadata"]["uid"] for one in others} == others


@pytest.mark.usefixtures("commands")
def test_a_failed_job_makes_its_run_not_ready_with_the_reason(
    world: World, renderer: Renderer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other runs stay Ready, and `list` has the message of the operator, which Flux does not have."""
    name = world.add_run(renderer, "failing")
    job = world.running(name)
    limit = job["spec"]["runPolicy"]["backoffLimit"]
    status = {"name": "pytorch", "image": "x", "imageID": "", "ready": False, "restartCount": limit}
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    world.write_pod(world.pods(job)[0], containerStatuses=[status])
    world.fleet.wait("the job's failure", lambda: condition(world.job(name), "Failed") is not None)
    world.fleet.reconciled(name)
    message = world.fleet.wait_failed(name)
    assert f"PyTorchJob/training/{job['metadata']['name']} status: 'Failed'" in message
    assert world.fleet.ready(FIRST)
    own = said(world.job(name), "Failed")["message"]
    capsys.readouterr()
    assert yard(["cluster", "run", "list", "--cluster", "cpu-demo"]) == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith(name))
    assert row.split()[-3:] == ["not", "Ready", "Failed"]
    assert own in shown
    assert re.search(rf"(?m)^{FIRST} +yes +[0-9a-f]{{12}} +Ready +Running$", shown)


@pytest.mark.usefixtures("commands")
def test_a_run_is_not_ready_until_its_job_runs(world: World, renderer: Renderer) -> None:
    """Control of the health expressions: a queued job is not Ready."""
    made = world.add_run(renderer, "queued")
    job = world.running(made)
    where = ("pytorchjob", job["metadata"]["name"], "-n", job["metadata"]["namespace"])
    suspend = '{"spec":{"runPolicy":{"suspend":true}}}'
    world.fleet.kube.run("patch", *where, "--type=merge", f"--patch={suspend}", "--field-manager=kueue")
    world.fleet.wait("its suspension", lambda: condition(world.job(made), "Suspended") is not None)
    world.fleet.source.publish()
    world.fleet.poke(made)
    world.fleet.wait("not to be Ready", lambda: said(world.fleet.get(made)).get("status") == "Unknown")
    assert world.job(made)["spec"]["runPolicy"]["suspend"] is True
    assert yard(["cluster", "run", "check", "--cluster", "cpu-demo", "--live"]) == 0


@pytest.mark.usefixtures("commands")
def test_a_trainjob_is_created_after_its_runtime(
    world: World, renderer: Renderer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trainer refuses it without the runtime. Without a stage for runtimes, Flux applies nothing of the run."""
    fleet = world.fleet
    controllers.start(fleet.plane, controllers.JOBSET, controllers.TRAINER)
    fleet.restart(without="--custom-apply-stage-kinds")
    name = world.add_run(renderer, "trainjob", Knobs(features=("trainjob",)))
    assert "must be created before the TrainJob is created" in fleet.wait_failed(name)
    assert [world.job(name, kind) for kind in TRAINJOB] == [{}, {}]

    fleet.restart()
    fleet.wait("the TrainJob", lambda: all(world.job(name, kind) for kind in TRAINJOB))
    before = [world.job(name, kind) for kind in TRAINJOB]
    fleet.wait("its end", lambda: condition(world.job(name, TRAINJOB[0]), "Complete") is not None)
    fleet.reconciled(name)
    fleet.wait_ready(name)
    after = [world.job(name, kind) for kind in TRAINJOB]
    assert [(one["metadata"]["uid"], one["spec"]) for one in after] == [
        (one["metadata"]["uid"], one["spec"]) for one in before
    ]
    assert after[0]["spec"]["runtimeRef"]["name"] == after[1]["metadata"]["name"]
    capsys.readouterr()
    assert yard(["cluster", "run", "list", "--cluster", "cpu-demo"]) == 0
    assert re.search(rf"(?m)^{name} +yes +[0-9a-f]{{12}} +Ready +Succeeded$", capsys.readouterr().out)

    (world.cluster / "runs" / f"{name}.yaml").unlink()
    world.push("no TrainJob")
    fleet.wait("the run's end", lambda: not any(world.job(name, kind) for kind in TRAINJOB) and not fleet.get(name))


def test_the_last_run_can_be_removed(world: World) -> None:
    """Its README keeps the directory in git; without the path, Flux would remove nothing."""
    assert world.job(FIRST)
    for path in sorted((world.cluster / "runs").glob("*.yaml")):
        path.unlink()
    made = world.push("no run")
    world.fleet.wait_ready("runs", made)
    world.fleet.wait("no job", lambda: not world.fleet.kube.list("pytorchjobs.kubeflow.org"))
    assert not world.fleet.get(FIRST)
