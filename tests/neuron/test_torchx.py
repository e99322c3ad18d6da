"""The TorchX component under the real torchx."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.neuron import environment
from tests.parts import venv
from tools.core.repo import root
from tools.core.verdict import State
from tools.facts.instances import INSTANCE_LABEL
from tools.kube.manifests import Manifests, parse
from tools.kube.selectors import allowed_values
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import kinds

pytestmark = [pytest.mark.neuron, pytest.mark.timeout(600)]


def dryrun(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `torchx run --dryrun`, as a person types it."""
    python = venv.python(environment.TORCHX)
    assert python is not None, "python -m tests.neuron.environment"
    command = [
        str(python.parent / "torchx"), "run", "--dryrun", "-s", "kubernetes", "-cfg", "queue=trainyard",
        "--workspace", "", "overlays/hardware/trn1/torchx.py:trn1_bert", "--name", "bert", *words,
    ]  # fmt: skip
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(root())}
    return subprocess.run(command, cwd=root(), env=environ, capture_output=True, text=True, timeout=500)


def made_by(done: subprocess.CompletedProcess[str]) -> Manifests:
    assert done.returncode == 0, done.stderr
    return parse(done.stdout.partition("=== SCHEDULER REQUEST ===")[2], "torchx")


@pytest.mark.parametrize("precompile", [False, True])
def test_the_real_torchx_makes_a_job_that_passes(tmp_path: Path, precompile: bool) -> None:
    given = ("--nnodes", "4", "--cacheset", "mine", "--max_retries", "5", "--precompile", str(precompile))
    made = made_by(dryrun(tmp_path, *given))
    (workload,) = kinds.find(made).workloads
    job = workload.item
    assert (job["spec"]["queue"], job["spec"]["maxRetry"], len(job["spec"]["tasks"])) == ("trainyard", 5, 4)
    container = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    limits, variables = container["resources"]["limits"], {one["name"]: one for one in container["env"]}
    assert (limits["aws.amazon.com/neuron"], limits["vpc.amazonaws.com/efa"]) == ("16", "8")
    assert variables["NEURON_COMPILE_CACHE_URL"]["value"] == "/shared/run/cache/neuron"
    mounts = {one["mountPath"]: one.get("subPathExpr") for one in container["volumeMounts"]}
    assert mounts[variables["TRAINYARD_RUN"]["value"]] == "runs/$(JOB_NAME)"
    assert variables["JOB_NAME"]["value"] == "bert"
    assert ("training.precompile" in container["command"]) is precompile
    texts = job["spec"]["tasks"][0]["template"]["metadata"]["annotations"]
    assert "cacheset: mine" in texts["trainyard/hardware.yaml"]
    assert evaluate(made).of(State.FAIL) == []
    analysis = wiring.analyse(workload)
    assert analysis.verdict.state is State.PASS, analysis.verdict
    assert wiring.world_size(analysis.nodes) == 4 * 32


def test_a_script_on_machines_of_another_type(tmp_path: Path) -> None:
    """As in AWS's tutorial: a script, its arguments in one text, and trn1n machines with more EFA interfaces."""
    own = ("--script", "dp_bert.py", "--script_args", "--batch_size 16 --output_dir '/shared/run/my output'")
    made = made_by(dryrun(tmp_path, *own, "--instance_type", "trn1n.32xlarge", "--precompile", "True"))
    (workload,) = kinds.find(made).workloads
    (spec, *_) = workload.training_specs()
    container = spec["containers"][0]
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "16"
    assert allowed_values(spec, INSTANCE_LABEL)[0] == "trn1n.32xlarge"
    assert container["command"] == [
        *("python", "-m", "training.entrypoint", "python", "-m", "training.precompile", "torchrun", "dp_bert.py"),
        *("--batch_size", "16", "--output_dir", "/shared/run/my output"),
    ]
    assert evaluate(made).of(State.FAIL) == []
    refused = dryrun(tmp_path, "--script_args", "--batch_size 16")
    assert refused.returncode != 0
    assert "--script is the path of a program" in refused.stderr
