"""The commands of docs/proving.md, as they are printed, on a healthy script and in a job of two pods."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import printed
from tests.prove.parts import ROOT

DDP = ROOT / "tests/prove/scripts/ddp.py"
JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mine, namespace: default}
spec:
  elasticPolicy: {rdzvBackend: c10d}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: 60
          containers:
            - name: pytorch
              image: registry.example.com/team/mine:1
              command: [torchrun, --nproc-per-node=1, train.py, --out, OUT]
              volumeMounts: [{name: shared, mountPath: /shared}]
          volumes:
            - name: shared
              persistentVolumeClaim: {claimName: shared}
"""


def run(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a printed command in a directory, with the programs of this environment."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        shlex.split(line), cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copy(DDP, tmp_path / "train.py")
    return tmp_path


def command(part: str) -> str:
    (line,) = [one for one in printed.run_by("tests/prove/test_guide.py") if part in one]
    return line


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_healthy_script_keeps_all_claims(directory: Path) -> None:
    """It finds nothing, leaves nothing in the user's directory, and keeps a proof."""
    done = run(command("prove -- torchrun"), directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^([A-Z ]+): \d+\. ", done.stdout, re.MULTILINE) == ["PASS"] * 10, done.stdout
    assert sorted(path.name for path in directory.iterdir()) == ["train.py"]
    kept = done.stderr.split("kept: ")[1].split()[0]
    assert len(json.loads((ROOT / kept).read_text(encoding="utf-8"))["claims"]) == 10
    (ROOT / kept).unlink()


@pytest.mark.long
def test_one_claim(directory: Path) -> None:
    done = run(command("--keep checkpoints"), directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: 5. Comes back after SIGKILL" in done.stdout
    assert "kept:" not in done.stderr


@pytest.mark.long
def test_the_job_of_a_file_keeps_its_volume_only(directory: Path) -> None:
    """Two pods of the job run as two nodes. A checkpoint beside the script does not survive its pod."""
    job = directory / "job.yaml"
    job.write_text(JOB.replace("OUT", "/shared/out"), encoding="utf-8")
    done = run(command("-f job.yaml"), directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: 5." in done.stdout
    assert "Comes back after SIGKILL" in (directory / "proof.html").read_text(encoding="utf-8")
    job.write_text(JOB.replace("OUT", "checkpoints"), encoding="utf-8")
    done = run(command("-f job.yaml"), directory)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL: 5." in done.stdout
    assert "does not lie in what survives a restart" in done.stdout
