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
from tools.kube.manifests import parse
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import kinds


@pytest.mark.neuron
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precompile", [False, True])
def test_the_real_torchx_makes_a_job_that_passes(tmp_path: Path, precompile: bool) -> None:
    """`torchx run --dryrun`, as a person types it."""
    python = venv.python(environment.TORCHX)
    assert python is not None, "python -m tests.neuron.environment"
    command = [
        str(python.parent / "torchx"), "run", "--dryrun", "-s", "kubernetes", "-cfg", "queue=trainyard",
        "--workspace", "", "overlays/hardware/trn1/torchx.py:trn1_bert", "--name", "bert", "--nnodes", "4",
        "--cacheset", "mine", "--max_retries", "5", "--precompile", str(precompile),
    ]  # fmt: skip
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(root())}
    done = subprocess.run(command, cwd=root(), env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    made = parse(done.stdout.partition("=== SCHEDULER REQUEST ===")[2], "torchx")
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
