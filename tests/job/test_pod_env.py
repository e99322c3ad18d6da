"""`yard job env`: the real program in each pod, secrets masked, and only differences with --diff."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tools.job import pod_env

JOB = "cpu-llama-tiny-train"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture
def home(world: NewWorld, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster whose pods are this machine, with a driver that is older in the second pod."""
    home = cluster(world())
    python, driver = home / "bin" / "python3", home / "bin" / "nvidia-smi"
    python.write_text(f'#!/bin/sh\nexport HOSTNAME="$POD"\nexec {sys.executable} "$@"\n')
    driver.write_text('#!/bin/sh\ncase "$POD" in *-1) echo "0, H100, 550.1";; *) echo "0, H100, 570.2";; esac\n')
    for path in (python, driver):
        path.chmod(0o755)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("PROXY", "http://user:opensesame@proxy:3128")
    return home


def test_one_pod_is_shown_without_secrets(home: Path, yard: Yard) -> None:
    found = yard.json("env", JOB)["pods"]
    (env,) = found.values()
    assert set(env) == {"environment", "packages", "build", "devices", "mounts", "limits", "kernel"}
    assert env["packages"]["pytest"]
    assert env["devices"]["nvidia-smi"] == "0, H100, 570.2"
    assert env["build"]["torch version"].startswith(env["packages"]["torch"])
    assert env["kernel"]["release"] == os.uname().release
    text = json.dumps(found)
    assert TOKEN not in text
    assert "opensesame" not in text
    assert "ulimit nofile" in yard.out("env", JOB)


def test_diff_shows_the_wrong_driver_and_nothing_else(home: Path, yard: Yard) -> None:
    out = yard.out("env", JOB, "--diff", code=1)
    lines = [line for line in out.splitlines() if "POD" not in line]
    assert "devices: nvidia-smi" in lines
    rare = lines[lines.index("devices: nvidia-smi") + 1 :][:2]
    assert rare[0].startswith("  worker-")
    assert {line.rpartition(", ")[2] for line in rare} == {"550.1", "570.2"}
    assert TOKEN not in out
    names = {row["name"] for row in yard.json("env", JOB, "--diff", code=1)["different"]}
    assert {"HF_TOKEN", "HOSTNAME"} & names == set(), "the same secret, and what is a pod's own"
    assert "nvidia-smi" in names
    assert "--diff compares all pods" in yard.err("env", JOB, "--diff", "--rank", "0", code=2)


def test_differences_ignore_a_pods_own_name() -> None:
    found = {
        "job-0": {"environment": {"RANK": "0", "SELF": "job-0.svc", "A": "1"}, "kernel": {"release": "6.1"}},
        "job-1": {"environment": {"RANK": "1", "SELF": "job-1.svc"}, "kernel": {"release": "6.1"}},
    }
    assert list(pod_env.differences(found)) == [("environment", "A", {"1": ["job-0"], "(missing)": ["job-1"]})]


def test_a_pod_that_answers_something_else_is_unknown(home: Path, yard: Yard) -> None:
    (home / "bin" / "python3").write_text("#!/bin/sh\necho '{\"a\": 1}'\n")
    assert "its answer is not that of the program" in yard("env", JOB, code=3).err
