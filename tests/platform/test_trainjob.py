"""A cell as a TrainJob: the same pods as the PyTorchJob's, by the same numbers, and nothing dropped in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.parts import venv
from tests.platform.conftest import of_kind
from tests.platform.test_features import CELLS, SMALLEST, environment
from tools.cells import kustomize, locate, matrix, matrix_file
from tools.cells.knobs import Knobs, applied
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job import submit
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, parse
from tools.local import job as local_job
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import kinds
from tools.workload.workload import Workload
from training.run.failure import CODES, PERMANENT

Object = dict[str, Any]
FEATURE = "overlays/feature/trainjob"


def job_of(made: list[Object]) -> Workload:
    return kinds.job_of(Manifests("made", made))


def batch(made: list[Object]) -> Object:
    (replicated,) = of_kind(made, "TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]
    found: Object = replicated["template"]["spec"]
    return found


@pytest.mark.parametrize("cell", CELLS)
def test_a_trainjob_has_the_pods_of_the_pytorchjob(
    cell: str,
    above: Callable[..., list[Object]],
    loose: Callable[[Object], list[str]],
    faults: Callable[[Object], list[str]],
) -> None:
    before, made = job_of(above(cell, prefix="we-")), above(cell, FEATURE, prefix="we-")
    job = job_of(made)
    assert (before.kind, job.kind, job.name) == ("PyTorchJob", "TrainJob", before.name)
    assert [one["kind"] for one in made].count("PyTorchJob") == 0
    assert [fault for one in made for fault in faults(one)] == []
    assert wiring.analyse(job).verdict.state is State.PASS
    assert evaluate(Manifests(cell, made)).of(State.FAIL) == []
    assert loose(batch(made)["template"]["spec"]) == []
    assert job.backoff["backoffLimit"] == before.backoff["backoffLimit"]
    assert len(job.pods()) == len(before.pods())
    for pod, own in zip(job.pods(), before.pods(), strict=True):
        same = set(own.spec) - {"containers", "restartPolicy", "hostname"}
        assert {key: pod.spec.get(key) for key in same} == {key: own.spec[key] for key in same}
        changed = {"name", "ports", "env"}
        assert {key: value for key, value in pod.container.items() if key not in changed} == {
            key: value for key, value in own.container.items() if key not in changed
        }
        new, old = environment(pod.spec), environment(own.spec)
        assert {key: new.get(key) for key in old if not key.startswith("PET_")} == {
            key: value for key, value in old.items() if not key.startswith("PET_")
        }
        for name in ("PET_RDZV_BACKEND", "PET_MAX_RESTARTS", "PET_NPROC_PER_NODE", "PET_SHUTDOWN_TIMEOUT"):
            assert new[name] == old[name], name
    policy = of_kind(made, "NetworkPolicy")["spec"]
    for selector in (policy["podSelector"], policy["ingress"][0]["from"][0]["podSelector"]):
        assert selector["matchLabels"].items() <= job.pods()[0].labels.items()


@pytest.mark.long
def test_kubeflows_own_models_read_and_write_them_unchanged(above: Callable[..., list[Object]]) -> None:
    """The models of kubeflow-trainer-api 2.3.0, which clients in Python use."""
    folder = repo.root() / "tests/cluster/kubeflow"
    if (python := venv.python(folder / "requirements.lock")) is None:
        pytest.skip("needs Kubeflow's SDK: python -m tests.parts.venv tests/cluster/kubeflow/requirements.lock")
    made = [one for cell in CELLS for one in above(cell, FEATURE) if one["kind"] in ("TrainJob", "TrainingRuntime")]
    command = [str(python), str(folder / "client.py"), "models"]
    done = subprocess.run(command, input=json.dumps(made), capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == made
    assert len(made) == 2 * len(CELLS)


def test_exit_codes_end_the_job_as_the_failure_classes_say(above: Callable[..., list[Object]]) -> None:
    made = above(SMALLEST, FEATURE)
    ignored, permanent = batch(made)["podFailurePolicy"]["rules"]
    assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    values = permanent["onExitCodes"]["values"]
    assert permanent["action"] == "FailJob"
    assert values == list(range(1, 128))
    assert {kind for kind, code in CODES.items() if code in values} == set(PERMANENT)
    assert batch(made)["template"]["spec"]["restartPolicy"] == "Never"
    rules = of_kind(made, "TrainingRuntime")["spec"]["template"]["spec"]["failurePolicy"]["rules"]
    assert [(one["action"], one["onJobFailureReasons"]) for one in rules] == [("FailJobSet", ["PodFailurePolicy"])]


def test_a_cell_that_lists_the_feature_keeps_its_numbers(checkout: Path, renderer: kustomize.Renderer) -> None:
    """The cell's own patches come after its Components."""
    cell = next(one for one in matrix_file.load(checkout) if f"{one.hardware}/{one.model}" == SMALLEST)
    own = replace(cell, nodes=5, sections={**cell.sections, "retry": {"most": 4}})
    leaf = checkout / f"overlays/{SMALLEST}/kustomization.yaml"
    text = matrix.leaf(own)["kustomization.yaml"]
    leaf.write_text(text.replace("../../images]", "../../images, ../../feature/trainjob]"), encoding="utf-8")
    manifests = kustomize.in_order(parse(renderer.build(leaf.parent), "cell"))
    job = kinds.job_of(manifests)
    assert (job.kind, job.nodes, job.backoff["backoffLimit"]) == ("TrainJob", 5, 20)
    for pod in job.pods():
        assert [environment(pod.spec)[name] for name in ("PET_MAX_RESTARTS", "TRAINYARD_RESTARTS")] == ["4"] * 2
    assert wiring.analyse(job).verdict.state is State.PASS
    turned = applied(manifests, Knobs(nodes=3, nproc=2, name="b", image="mine:1", settings=("train.steps=70",)))
    job = kinds.job_of(turned)
    assert (job.nodes, job.backoff["backoffLimit"], job.name) == (3, 12, "cpu-llama-tiny-train-b")
    assert {pod.container["image"] for pod in job.pods()} == {"mine:1"}
    assert wiring.analyse(job).verdict.state is State.PASS


def test_knobs_reach_the_machine_of_a_trainjob() -> None:
    job = kinds.job_of(applied(locate.rendered("g5/llama-3-2-1b"), Knobs(features=("trainjob",))))
    turned = applied(job.manifests, Knobs(instance="g5.48xlarge", nodes=8))
    (pod, *_), text = kinds.job_of(turned).pods(), json.dumps(turned.objects)
    assert pod.container["resources"]["limits"]["nvidia.com/gpu"] == environment(pod.spec)["PET_NPROC_PER_NODE"] == "8"
    assert "g5.8xlarge" not in text


@pytest.mark.parametrize("others", [("kueue",), ("spot", "kueue", "profile", "s3-data", "local-nvme"), ("agent",)])
def test_features_before_it_are_kept(others: tuple[str, ...], above: Callable[..., list[Object]]) -> None:
    made = above(SMALLEST, *(f"overlays/feature/{one}" for one in others), FEATURE)
    before = job_of(above(SMALLEST, *(f"overlays/feature/{one}" for one in others)))
    job = job_of(made)
    assert (job.queue, job.backoff) == (
        before.queue,
        {**job.backoff, "backoffLimit": before.backoff["backoffLimit"]},
    )
    assert job.pods()[0].spec["volumes"] == before.pods()[0].spec["volumes"]
    assert job.pods()[0].spec.get("initContainers") == before.pods()[0].spec.get("initContainers")


def test_kueue_places_by_topology(above: Callable[..., list[Object]]) -> None:
    """The annotation stands on the pod template, of which Kueue makes its PodSet."""
    features = ("overlays/feature/kueue", "overlays/feature/kueue/topology")
    for job in (job_of(above("p5/llama-3-1-8b", *features, *more)) for more in ((), (FEATURE,))):
        (pod, *_) = job.pods()
        assert pod.annotations["kueue.x-k8s.io/podset-required-topology"] == "topology.kubernetes.io/zone"
        (found,) = [one for one in evaluate(job.manifests).verdicts if one.details["rule"] == "efa-one-zone"]
        assert found.state is State.PASS


def test_kueue_may_stand_behind_it(above: Callable[..., list[Object]]) -> None:
    assert job_of(above(SMALLEST, FEATURE, "overlays/feature/kueue")).queue == "trainyard"


@pytest.mark.parametrize("features", [("monitoring", "trainjob"), ("trainjob", "monitoring")])
def test_features_may_be_named_in_any_order(features: tuple[str, ...]) -> None:
    job = kinds.job_of(applied(locate.rendered(SMALLEST), Knobs(features=features)))
    container = job.pods()[0].container
    assert [one["containerPort"] for one in container["ports"]] == [29500, 9464]
    assert "TRAINYARD_METRICS" in environment(job.pods()[0].spec)


def test_the_job_that_compiles_can_be_a_trainjob(above: Callable[..., list[Object]]) -> None:
    job = job_of(above("trn1/bert-large", "overlays/feature/precompile", FEATURE))
    assert (job.kind, job.name) == ("TrainJob", "trn1-bert-large-train-graphs")
    assert "training.precompile" in job.pods()[0].container["command"]
    as_option = applied(locate.rendered("trn1/bert-large"), Knobs(features=("precompile", "trainjob")))
    assert kinds.job_of(as_option).name == job.name
    assert evaluate(as_option).of(State.FAIL) == []


@pytest.mark.parametrize("other", ["volcano", "hyperpod", "hyperpod-job"])
def test_what_a_trainjob_cannot_hold_is_an_error(
    other: str, directory: Callable[..., Path], renderer: kustomize.Renderer
) -> None:
    with pytest.raises(UserError, match="does not render"):
        renderer.build(directory(SMALLEST, f"overlays/feature/{other}", FEATURE))


def test_the_runtime_comes_first() -> None:
    """Trainer refuses a TrainJob whose runtime does not exist yet."""
    made = applied(locate.rendered(SMALLEST), Knobs(features=("trainjob",))).objects
    names = [one["kind"] for one in made]
    assert names.index("TrainingRuntime") < names.index("TrainJob")


def test_it_runs_here_at_the_port_that_is_asked_for() -> None:
    knobs = Knobs(features=("trainjob",))
    ready = local_job.ready(applied(locate.rendered(SMALLEST), knobs), (SMALLEST,), knobs, 31234, plan_only=True)
    assert (ready.kind, ready.backoff_limit) == ("TrainJob", 6)
    assert {pod.environment["PET_RDZV_ENDPOINT"] for pod in ready.local} == {"127.0.0.1:31234"}
    assert {pod.restart_policy for pod in ready.local} == {"OnFailure"}


@pytest.mark.parametrize(
    ("served", "features", "said"),
    [
        (["pytorchjobs.kubeflow.org"], (), ""),
        (["trainjobs.trainer.kubeflow.org"], ("trainjob",), "does not serve PyTorchJob"),
        (["pytorchjobs.kubeflow.org", "trainjobs.trainer.kubeflow.org"], (), "serves TrainJob too"),
        ([], (), ""),
    ],
)
def test_submit_takes_the_kind_that_is_served(
    served: list[str], features: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _serving(served, tmp_path, monkeypatch)
    cell = locate.rendered(SMALLEST)
    notes: list[str] = []
    knobs = submit.with_served_kind(Kubectl(None, "team"), cell, Knobs(nodes=3), notes.append)
    assert knobs == Knobs(nodes=3, features=features)
    assert said in " ".join(notes)
    assert bool(notes) is bool(said)


def _serving(served: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in for kubectl on PATH, whose cluster serves these kinds."""
    program = folder / "kubectl"
    text = (repo.root() / "tests/job/kubectl.py").read_text(encoding="utf-8").partition("\n")[2]
    # Not by `env`: a wrapper of Python, such as pyenv's, does not end with this PATH.
    program.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{text}", encoding="utf-8")
    program.chmod(0o755)
    (folder / "objects.json").write_text(json.dumps({key: [] for key in served}), encoding="utf-8")
    monkeypatch.setenv("STAND_IN", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_submit_names_the_way_for_a_pytorchjob_that_is_not_a_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _serving(["trainjobs.trainer.kubeflow.org"], tmp_path, monkeypatch)
    pod = {"spec": {"containers": [{"name": "pytorch", "image": "a:1", "command": ["python", "t.py"]}]}}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": pod}}}
    item = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(UserError, match="serves TrainJob and not PyTorchJob") as caught:
        submit.with_served_kind(Kubectl(None, "team"), Manifests("job.yaml", [item]), Knobs(), print)
    assert (caught.value.code, caught.value.hint) == (1, "yard migrate -f job.yaml > trainjob.yaml")


@pytest.mark.parametrize("refusals", [0, 1, 99])
@pytest.mark.parametrize(
    ("webhook", "said"),
    [
        (
            "validator.trainjob.trainer.kubeflow.org",
            'TrainingRuntime "a" not found: specified trainingRuntime must be created before the TrainJob is created',
        ),
        ("vtrainjob.kb.io", "runtime 'a' not found"),
    ],
)
def test_submit_waits_until_the_webhooks_see_the_runtime(
    webhook: str, said: str, refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals of Trainer 2.3.0 and Kueue 0.19.2 for a TrainJob right behind its runtime, on a busy machine."""
    denied = f'Error from server (Forbidden): admission webhook "{webhook}" denied'
    answers = [subprocess.CompletedProcess((), 1, "", f"{denied} the request: {said}")] * refusals
    answers.append(
        subprocess.CompletedProcess((), 0, '{"kind": "TrainJob", "metadata": {"name": "a", "uid": "1"}}', "")
    )
    monkeypatch.setattr(Kubectl, "run", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(submit, "RUNTIME_SECONDS", 60.0 if refusals < 2 else 1.5)
    if refusals < 2:
        assert submit.apply(Kubectl(None, "team"), Manifests("a", []))[0] == [submit.Applied("TrainJob", "a", "1")]
        return
    with pytest.raises(UserError, match=said):
        submit.apply(Kubectl(None, "team"), Manifests("a", []))
