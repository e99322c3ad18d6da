"""The HyperPodPyTorchJob, checked with HyperPod's packages, and its log rule on the output of a real run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.parts.alone import alone
from tests.platform.conftest import of_kind
from tools.cells.kustomize import Renderer
from tools.core import State, Verdict, repo
from tools.job import log_rules
from tools.job.snapshot.log_lines import Line

Object = dict[str, Any]
Parse = Callable[[str], list[Object]]

# Installed without their dependencies, of which NEEDED are enough here.
PACKAGES = [
    "sagemaker-hyperpod==3.12.0",
    "hyperpod-pytorch-job-template==1.5.0",
    "hyperpod-elastic-agent==1.1.3",
]
NEEDED = ["pydantic==2.14.3", "click==8.5.1", "pyyaml==6.0.3", "kubernetes==37.0.1", "boto3==1.44.5"]
CELLS = ("cpu/llama-tiny", "p5/llama-3-1-8b")
# A model small enough for a test: changes of the smallest cell's configuration.
SMALL = {
    "vocab_size: 4096": "vocab_size: 300",
    "hidden_size: 256": "hidden_size: 32",
    "intermediate_size: 768": "intermediate_size: 64",
    "num_hidden_layers: 4": "num_hidden_layers: 1",
    "sequence_length: 256": "sequence_length: 64",
    "global_batch_size: 16": "global_batch_size: 4",
    "micro_batch_size: 4": "micro_batch_size: 2",
    "warmup_steps: 20": "warmup_steps: 2",
    "max_new_tokens: 48": "max_new_tokens: 4",
    "eval_sequences: 64": "eval_sequences: 4",
    "compile: auto": 'compile: "off"',
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def theirs() -> Callable[..., list[Object]]:
    """A function that asks hyperpod_models.py in an environment of those packages."""
    python = _environment()

    def ask(*questions: Object) -> list[Object]:
        script = Path(__file__).with_name("hyperpod_models.py")
        command = [str(python), "-W", "ignore", str(script)]
        done = subprocess.run(
            command, input=json.dumps(questions), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        answers: list[Object] = json.loads(done.stdout)
        return answers

    return ask


def _environment() -> Path:
    """Create the environment in the checkout's cache, once. Skip the tests where that fails."""
    home = repo.root() / ".cache" / "hyperpod"
    with alone(home):
        return _made(home)


def _made(home: Path) -> Path:
    stamp, python = home / "installed", home / "bin" / "python"
    wanted = "\n".join([*PACKAGES, *NEEDED])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("uv is not in this environment: run `make setup-dev`")
    shutil.rmtree(home, ignore_errors=True)
    environment = {**os.environ, "UV_CACHE_DIR": str(repo.root() / ".cache" / "uv")}
    install = [str(uv), "pip", "install", "--quiet", "--python", str(python)]
    for command in (
        [str(uv), "venv", "--quiet", "--python", sys.executable, str(home)],
        [*install, "--no-deps", *PACKAGES],
        [*install, *NEEDED],
    ):
        try:
            subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=True)
        except subprocess.TimeoutExpired:
            pytest.skip("HyperPod's packages took more than 90 s: run this near a package index")
        except subprocess.CalledProcessError as problem:
            reason = (problem.stderr.strip().splitlines() or ["no message"])[-1][:200]
            pytest.skip(f"HyperPod's packages cannot be installed ({reason}): run this near a package index")
    stamp.write_text(wanted, encoding="utf-8")
    return python


@pytest.fixture(scope="module")
def job(above: Callable[..., list[Object]]) -> Callable[[str], Object]:
    """A function from a cell to its HyperPodPyTorchJob."""
    return lambda cell: of_kind(above(cell, "overlays/feature/hyperpod-job"), "HyperPodPyTorchJob")


def container_of(job: Object) -> Object:
    (replica,) = job["spec"]["replicaSpecs"]
    (container,) = replica["template"]["spec"]["containers"]
    found: Object = container
    return found


def flat_form(job: Object) -> Object:
    """Return the job as options of `hyp create hyp-pytorch-job`."""
    container, pod = container_of(job), job["spec"]["replicaSpecs"][0]["template"]["spec"]
    return {
        "job_name": job["metadata"]["name"],
        "image": container["image"],
        "pull_policy": container["imagePullPolicy"],
        "command": container["command"],
        "args": container["args"],
        "environment": {one["name"]: one["value"] for one in container["env"] if "value" in one},
        "replica_count": job["spec"]["replicaSpecs"][0]["replicas"],
        "tasks_per_node": job["spec"]["nprocPerNode"],
        "label_selector": pod["nodeSelector"],
        "service_account_name": pod["serviceAccountName"],
        "max_retry": job["spec"]["runPolicy"]["jobMaxRetryCount"],
        "volume": [
            {"name": one["name"], "type": "pvc", "mount_path": "/shared", "claim_name": "trainyard"}
            | {"read_only": False}
            for one in pod["volumes"]
            if "persistentVolumeClaim" in one
        ],
    }


def question(job: Object) -> Object:
    """Return a question to hyperpod_models.py about a job in both forms."""
    return {"job": job, "flat": flat_form(job), "lines": [], "rules": {}}


# The models lack these fields of a pod's security context.
NOT_IN_MODELS = [
    f"replicaSpecs.0.template.spec.securityContext.{field}: Extra inputs are not permitted"
    for field in ("fsGroup", "fsGroupChangePolicy")
]
# They describe an affinity between pods with the fields of one to nodes.
POD_AFFINITY = "replicaSpecs.0.template.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.0."


def test_models_take_every_field_and_refuse_what_is_not_theirs(
    job: Callable[[str], Object], theirs: Callable[..., list[Object]]
) -> None:
    """The nested models refuse unknown fields, and the flat form gives the same container."""
    jobs = [job(cell) for cell in CELLS]
    named = question(jobs[0])
    named["flat"]["job_name"] = "Train_1"
    answers = theirs(*map(question, jobs), *map(question, broken(jobs[0])), named)
    for made, answer in zip(jobs, answers, strict=False):
        pod = made["spec"]["replicaSpecs"][0]["template"]["spec"]
        between_pods = [error for error in answer["spec"] if error.startswith(POD_AFFINITY)]
        assert bool(between_pods) == ("podAffinity" in (pod.get("affinity") or {}))
        assert [error for error in answer["spec"] if error not in between_pods] == NOT_IN_MODELS
        check_domain(made, answer["flat"])
    for said, answer in zip(WRONG, answers[len(jobs) :], strict=False):
        assert any(said in error for error in answer["spec"]), said
    assert any(error.startswith("job_name") for error in answers[-1]["flat"])


def check_domain(made: Object, domain: Any) -> None:
    """Compare the job of the flat form with ours."""
    assert isinstance(domain, dict), domain
    (replica,) = domain["replicaSpecs"]
    (container,) = replica["template"]["spec"]["containers"]
    own = container_of(made)
    assert replica["replicas"] == made["spec"]["replicaSpecs"][0]["replicas"]
    assert domain["nprocPerNode"] == made["spec"]["nprocPerNode"]
    assert domain["runPolicy"]["jobMaxRetryCount"] == made["spec"]["runPolicy"]["jobMaxRetryCount"]
    assert {key: container[key] for key in ("image", "command", "args")} == {
        key: own[key] for key in ("image", "command", "args")
    }


# Controls: an unknown field, a field of the other operator, a field of the agent that the models lack.
WRONG: dict[str, Callable[[Object], object]] = {
    "elasticPolicies": lambda spec: spec.update(elasticPolicies={}),
    "runPolicy.backoffLimit": lambda spec: spec["runPolicy"].update(backoffLimit=3),
    "faultOnMatch": lambda spec: spec["runPolicy"]["logMonitoringConfiguration"][0].update(faultOnMatch=True),
}


def broken(made: Object) -> list[Object]:
    """Return a copy of the job for each fault in WRONG."""
    copies = [json.loads(json.dumps(made)) for _ in WRONG]
    for copy, change in zip(copies, WRONG.values(), strict=True):
        change(copy["spec"])
    return copies


@pytest.fixture(scope="module")
def output(
    theirs: Callable[..., list[Object]],  # first, because the run is useless without it
    tmp_path_factory: pytest.TempPathFactory,
    renderer: Renderer,
    objects: Parse,
) -> dict[int, list[str]]:
    """The output of a real run by rank, from the files that the agent's log rules read."""
    work = tmp_path_factory.mktemp("run")
    config, text = work / "config", work / "text"
    for directory in (config, text):
        directory.mkdir()
    for number in range(60):
        (text / f"{number}.txt").write_text(f"text {number} of some, {number**3}\n" * 40, encoding="utf-8")
    swaps = {**SMALL, "source: python-stdlib": f"source: {text}"}
    found = set()
    for one in objects(renderer.build(repo.root() / "overlays/cpu/llama-tiny")):
        for file, content in (one.get("data") or {}).items():
            for old, new in swaps.items():
                found |= {old} if old in content else set()
                content = content.replace(old, new)
            content = "\n".join("  steps: 3" if line.startswith("  steps:") else line for line in content.splitlines())
            (config / file).write_text(content, encoding="utf-8")
    assert found == set(swaps)
    environment = {
        **os.environ,
        "TRAINYARD_RUN": str(work / "runs/one"),
        "TRAINYARD_DATA": str(work / "data"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    torchrun = str(Path(sys.executable).parent / "torchrun")
    command = [torchrun, "--standalone", "--nproc-per-node=2", "--tee=3", f"--log-dir={work / 'logs'}"]
    done = subprocess.run(
        [*command, "-m", "training.pretrain", "--config", str(config)],
        env=environment, cwd=repo.root(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    files = {rank: list((work / "logs").glob(f"*/attempt_0/{rank}/stdout.log")) for rank in (0, 1)}
    assert all(len(found_) == 1 for found_ in files.values())
    return {rank: found_[0].read_text(encoding="utf-8").splitlines() for rank, found_ in files.items()}


def tried(rules: list[Object], timed: list[tuple[float, str]]) -> list[Verdict]:
    """`yard cluster log-rules check` on lines with their seconds."""
    start = datetime(2026, 11, 21, tzinfo=UTC)
    lines = [Line(text, start + timedelta(seconds=at), number=number) for number, (at, text) in enumerate(timed, 1)]
    return log_rules.check(rules, lines)


def test_the_rule_fires_when_steps_stop_and_not_before(
    output: dict[int, list[str]], job: Callable[[str], Object], theirs: Callable[..., list[Object]]
) -> None:
    """The agent's evaluator, with a simulated clock, on the real output of the trainer.

    After the last step, samples and the report follow without further steps.
    """
    made = job(CELLS[0])
    (rule,) = made["spec"]["runPolicy"]["logMonitoringConfiguration"]
    limit = rule["expectedRecurringFrequencyInSeconds"]
    said = output[0]
    steps = [line for line in said if line.startswith("step ")]
    assert len(steps) >= 2
    assert said[-1].startswith("finished at step ")
    assert output[1] == []  # only rank 0 prints, so a rule about the first line would report other pods as hanging
    hung = [(1000.0 * index, line) for index, line in enumerate(said[:-1])]
    finished = [(float(index), line) for index, line in enumerate(said)]
    early = {**rule, "expectedStartCutOffInSeconds": 600}
    speed = {
        "name": "Speed",
        "logPattern": r"^step .* ([\d,]+) tokens/s",
        "operator": "lt",
        "metricThreshold": 1,
    }
    nothing = {"job": None, "flat": None}
    stopped, done = theirs(
        {**nothing, "lines": hung, "rules": {"rule": rule, "early": early, "speed": speed}},
        {**nothing, "lines": finished, "rules": {"rule": rule}},
    )
    states = stopped["states"]["rule"]
    last_step = max(second for second, line in hung if line.startswith("step "))
    assert [state for _, state in states["after"]] == ["WAITING", "HEALTHY", "HANGING"]
    assert limit < states["after"][-1][0] - last_step <= limit + 20
    assert states["silent"] == "WAITING"
    assert [state for _, state in done["states"]["rule"]["after"]] == ["WAITING", "HEALTHY"]
    ours = tried([rule, early, speed], hung)
    assert [event["state"] for event in ours[0].details["events"]][:2] == ["HEALTHY", "HANGING"]
    assert 0 <= states["after"][-1][0] - ours[0].details["events"][1]["seconds"] <= 20
    assert "could not convert string to float" in ours[2].summary
    assert [one.state for one in tried([rule], finished)] == [State.PASS]
    # Controls: the comments in job.yaml about rules that are left out.
    assert stopped["states"]["early"]["silent"] == "HANGING"
    assert any("," in line.split("tokens/s")[0].split()[-1] for line in steps)
    assert "could not convert string to float" in stopped["states"]["speed"]["error"]
