"""A proof in the pods of a cluster: the job that is made of a user's job, and its pods as processes of this machine."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.prove.parts import ROOT
from tests.prove.test_guide import JOB
from tools.cells import knobs
from tools.cells.knobs import Knobs
from tools.core.errors import UserError
from tools.job import proof_job
from tools.kube import manifests
from tools.prove import pods, trials
from tools.prove.pods import Trial
from tools.prove.trials import Options
from tools.workload import kinds
from training.agent import build
from training.prove import plan, records
from training.prove.view import pods as place
from training.prove.view.copied import descendants
from training.remote import proof_reader

FAKE = str(ROOT / "tests/prove/fake_rank.py")
# Starts the agent's file, the first argument, in a pod with the name of the second one.
POD = "import runpy, socket, sys; _, path, name, *sys.argv[1:] = sys.argv; socket.gethostname = lambda: name; "
POD += "runpy.run_path(path, run_name='__main__')"


def trial(text: str = JOB, **options: Any) -> Trial:
    only = options.get("only", ())
    return pods.trial(manifests.parse(text, "job.yaml"), Options(**options, claims=trials.wanted(only)))


def container(made: Trial) -> Any:
    (found,) = kinds.job_of(made.manifests).training_containers()
    return found


def test_the_job_of_a_proof_is_the_users_with_the_agent(tmp_path: Path) -> None:
    made = trial(env=("NCCL_DEBUG=INFO",), resume="torchrun train.py --resume")
    job = kinds.job_of(made.manifests)
    spec, main = job.training_specs()[0], container(made)
    words = ["torchrun", "--nproc-per-node=1", "train.py", "--out", "OUT"]
    again = ["torchrun", "train.py", "--resume"]
    assert main["command"] == ["python3", pods.AGENT, "--prove", "/trainyard-prove/mine", "5,3,3", "--"]
    assert main["args"] == [*words, *again, *again]
    assert main["image"] == "registry.example.com/team/mine:1"
    assert [one["name"] for one in spec["initContainers"]] == ["trainyard-agent"]
    own = {"name": "shared", "mountPath": "/shared", "subPath": ".trainyard-prove/mine/kept/0"}
    assert own in main["volumeMounts"], "the job's own files are out of reach"
    carried = plan.from_text(base64.b64decode(main["env"][-1]["value"]).decode())
    assert carried == made.plan
    assert (carried.nodes, carried.keep, carried.grace, carried.pods) == (2, ["/shared"], 60.0, True)
    assert carried.variables == {"PET_MAX_RESTARTS": "0", "NCCL_DEBUG": "INFO"}
    assert {one.name: one.command for one in carried.starts if one.name in ("whole", "resumed")} == {
        "whole": ["0"], "resumed": ["1"],
    }  # fmt: skip
    assert spec["activeDeadlineSeconds"] > len(carried.starts) * carried.timeout


def test_a_train_job_is_proven_by_a_runtime_of_its_own() -> None:
    """The runtime has the pods, and gets the name of the proof: that of the user's job is not changed."""
    made = pods.trial(
        knobs.rendered("cpu/llama-tiny", None, Knobs(nodes=2, name="proof", features=("trainjob",))),
        Options(claims=trials.wanted(("world",))),
    )
    job = kinds.job_of(made.manifests)
    runtime = next(one for one in made.manifests.objects if one["kind"] == "TrainingRuntime")
    assert job.kind == "TrainJob"
    assert runtime["metadata"]["name"] == job.spec["runtimeRef"]["name"] == "cpu-llama-tiny-train-proof"
    assert container(made)["command"][:3] == ["python3", pods.AGENT, "--prove"]
    assert job.training_specs()[0]["initContainers"][0]["name"] == "trainyard-agent"
    assert made.plan.nodes == 2


def test_with_keep_the_rest_of_the_claim_is_only_read() -> None:
    mounts = container(trial(keep=("/shared/runs",)))["volumeMounts"]
    assert {"name": "shared", "mountPath": "/shared", "readOnly": True} in mounts
    assert {"name": "shared", "mountPath": "/shared/runs", "subPath": ".trainyard-prove/mine/kept/0"} in mounts


NO_CLAIM = JOB.replace("persistentVolumeClaim: {claimName: shared}", "emptyDir: {}")
NO_COMMAND = re.sub(r"command: .*\n", "args: [train.py]\n", JOB)
VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: mine}
spec:
  volumes: [{mountPath: /shared, volumeClaimName: shared}]
  tasks:
  - {name: node, replicas: 2, template: {spec: {containers: [{name: main, image: a, command: [torchrun, a.py]}]}}}
"""
TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: mine}
spec: {runtimeRef: {name: torch-distributed}, trainer: {numNodes: 2}}
"""
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: mine, command: [torchrun, a.py]}]}}}
"""


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (NO_CLAIM, {}, "PyTorchJob/mine has no volume that survives a pod"),
        (NO_COMMAND, {}, "the container pytorch of PyTorchJob/mine has no command"),
        (JOB, {"keep": ("/data",)}, "--keep /data: lies on no claim that the pods may write"),
        (JOB, {"keep": ("/shared/../etc",)}, "--keep /shared/../etc: lies on no claim that the pods may write"),
        (JOB, {"env": ("NCCL_DEBUG",)}, "--env NCCL_DEBUG: write it as NAME=VALUE"),
        (VOLCANO, {}, "Job/mine has spec.volumes, which its pods would write to"),
        (TRAINJOB, {}, "the pods come from ClusterTrainingRuntime/torch-distributed, which is not in the file"),
        (f"{TRAINJOB}---\n{RUNTIME}", {}, "the runtime of TrainJob/mine belongs to the whole cluster"),
    ],
)
def test_a_job_that_cannot_be_proven(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        trial(text, **options)


class Pods:
    """The pods of a trial as processes. What they share lies in a directory of this machine."""

    def __init__(self, place: Path, archive: Path, *options: str) -> None:
        self.kept = place / "kept"
        self.kept.mkdir()
        self.work = [place / f"work-{node}" for node in (0, 1)]
        for work in self.work:
            work.mkdir()
            (work / "kept").symlink_to(self.kept)
        command = json.dumps([sys.executable, FAKE, *options])
        text = re.sub(r"command: .*", f"command: {command}", JOB).replace("mountPath: /shared", "mountPath: KEPT")
        made = trial(text.replace("KEPT", str(self.kept)), only=("resume",))
        main = container(made)
        self.trial = replace(made, directory=str(place / "shared"))
        plan_ = replace(made.plan, scratch=[], timeout=60.0)
        given = base64.b64encode(plan.text_of(plan_).encode()).decode()
        words = [*main["command"][2:], *main["args"]]
        words[1] = self.trial.directory
        self._command = [sys.executable, "-c", POD, str(archive)]
        self._words, self._given = words, given
        self.processes = [self.start(0), self.start(1)]

    def start(self, node: int) -> subprocess.Popen[bytes]:
        place = self.work[node]
        own = {"HOME": str(place), "TMPDIR": str(place), "NODE_RANK": str(node), "MASTER_PORT": "1"}
        paths = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**own, **paths, plan.VARIABLE: self._given}
        command = [*self._command, f"mine-worker-{node}", *self._words]
        return subprocess.Popen(command, cwd=place, env=environment)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        return proof_reader.answer(question)

    def alive(self) -> None:
        assert all(one.poll() is None for one in self.processes)

    def kill(self, node: int) -> None:
        """End a pod with all of its processes."""
        for pid in [*descendants(self.processes[node].pid), self.processes[node].pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[node].wait()

    def end(self) -> list[int]:
        return [one.wait(120) for one in self.processes]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    build.build(path)
    return path


@pytest.fixture
def started(tmp_path: Path, archive: Path) -> Iterator[Pods]:
    made = Pods(tmp_path, archive, "meet")
    yield made
    for node in range(len(made.processes)):
        made.kill(node)


def test_two_pods_carry_out_a_plan(started: Pods, tmp_path: Path) -> None:
    """They kill, restart with what was kept and nothing else, hand over the records, and leave nothing."""
    out = tmp_path / "out"
    out.mkdir()
    proof_job.collect(started.ask, started.trial, out, started.alive)
    assert started.end() == [0, 0]
    seen = {name: records.read_outcome(out / name) for name in ("whole", "killed", "resumed")}
    assert {name: one.ended_by for name, one in seen.items()} == {
        "whole": "itself", "killed": "fault", "resumed": "itself",
    }  # fmt: skip
    assert seen["whole"].exit_codes == [0, 0]
    assert {rank for rank, _ in records.ranks(out / "whole")} == {0, 1}
    said = {name: (out / name / "log").read_text() for name in ("whole", "resumed")}
    assert sorted(re.findall(r"first (\d) scratch False node (\d)", said["whole"])) == [("0", "0"), ("0", "1")]
    assert sorted(re.findall(r"first (\d) scratch False node (\d)", said["resumed"])) == [("3", "0"), ("3", "1")]
    assert sorted((Path(one.path).name, one.kept) for one in seen["whole"].files) == [
        ("scratch", False), ("scratch", False), ("step", True), ("step1", True),
    ]  # fmt: skip
    assert [path.name for one in (*started.work, started.kept) for path in one.iterdir()] == ["kept", "kept"]
    assert not Path(started.trial.directory).exists()


def test_a_pod_that_starts_again_ends_the_proof(started: Pods, tmp_path: Path) -> None:
    answers = Path(started.trial.directory) / "pods/mine-worker-1.jsonl"
    while not answers.exists():
        time.sleep(0.02)
    started.kill(1)
    assert started.start(1).wait(120) == 1
    with pytest.raises(UserError, match="the proof failed in its pods: mine-worker-1: its container was started again"):
        proof_job.collect(started.ask, started.trial, tmp_path, lambda: None)


def test_a_kept_mount_keeps_its_own_attributes(tmp_path: Path) -> None:
    """It belongs to the kubelet, and a pod without its rights may not change it."""
    kept, saved = tmp_path / "kept", tmp_path / "saved/killed/0"
    kept.mkdir()
    saved.mkdir(parents=True)
    (saved / "step").write_text("3")
    kept.chmod(0o777)
    saved.chmod(0o750)
    start = plan.Start("resumed", [5], ["0"], "killed")
    place_of_pods = place.Place(tmp_path, [])
    place_of_pods.begin(plan.Plan([start], "/", {}, 30, keep=[str(kept)]), start, tmp_path, [], 1)
    assert (kept / "step").read_text() == "3"
    assert kept.stat().st_mode & 0o777 == 0o777
