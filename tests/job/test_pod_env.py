"""`yard job env`: the real program in each pod, secrets masked, and only differences with --diff."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tools.job import pod_env
from training.run import heartbeat
from training.run.directory import read_json, write_json

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
    for name, value in {"DB_PWD": "opensesame", "A_KEY": "opensesame", "MINE": TOKEN, "OWN": "ghp_opensesame"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    return home


def test_one_pod_is_shown_without_secrets(home: Path, yard: Yard) -> None:
    found = yard.json("env", JOB)["pods"]
    (env,) = found.values()
    assert set(env) == {"environment", "packages", "build", "devices", "mounts", "limits", "kernel"}
    assert env["packages"]["pytest"]
    assert env["devices"]["nvidia-smi"] == "0, H100, 570.2"
    assert env["build"]["torch version"].startswith(env["packages"]["torch"])
    assert env["kernel"]["release"] == os.uname().release
    assert env["environment"]["TOKENIZERS_PARALLELISM"] == "true"
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


def test_differences_ignore_what_differs_on_every_node() -> None:
    uuid = "0e6d9a6c-1111-4222-8333-{:012d}"
    found = {
        f"job-{at}": {
            "environment": {"NVIDIA_VISIBLE_DEVICES": f"GPU-{uuid.format(at)}", "RUN_ID": uuid.format(at)},
            "mounts": {
                "/": f"overlay overlay rw,lowerdir=/snapshots/{at}/fs,upperdir=/snapshots/{at + 9}/fs",
                "/data": f"/kubelet/pods/{uuid.format(at)}/x nfs4 rw,vers=4.{at},clientaddr=10.0.0.{at}",
            },
        }
        for at in range(2)
    }
    assert [name for _, name, _ in pod_env.differences(found)] == ["RUN_ID", "/data"], "an id, and the NFS version"


def test_variables_of_a_pods_own_fields_are_no_difference(home: Path, yard: Yard) -> None:
    """The cells' own POD_UID and TRAINYARD_NODE, by the manifest and not by their names."""
    objects = json.loads((home / "objects.json").read_text())
    for pod in objects["pods"]:
        field = {"fieldRef": {"fieldPath": "metadata.uid"}}
        pod["spec"]["containers"][0]["env"] = [{"name": "MINE", "valueFrom": field}]
    (home / "objects.json").write_text(json.dumps(objects))
    python = (home / "bin" / "python3").read_text()
    (home / "bin" / "python3").write_text(python.replace("export HOSTNAME", "export MINE=$$ OTHER=$$ HOSTNAME"))
    names = {row["name"] for row in yard.json("env", JOB, "--diff", code=1)["different"]}
    assert "OTHER" in names
    assert "MINE" not in names


def test_a_pod_that_answers_something_else_is_unknown(home: Path, yard: Yard) -> None:
    (home / "bin" / "python3").write_text("#!/bin/sh\necho '{\"a\": 1}'\n")
    assert "its answer is not that of the program" in yard("env", JOB, code=3).err
    said = yard("env", JOB, "--diff", code=3)
    assert "its answer is not that of the program" in said.err
    assert "difference" not in said.out, "nothing was compared"


def test_a_run_directory_that_does_not_exist_is_not_taken_for_a_cell(yard: Yard) -> None:
    assert "local/runs/none: no such directory" in yard.err("env", "local/runs/none", code=2)


RANK = """
import os, sys, time
from pathlib import Path
from training.run import heartbeat
heartbeat.begin(Path(os.environ["TRAINYARD_RUN"], "heartbeat"), int(os.environ["RANK"]))
heartbeat.enter("training", 0)
time.sleep(600)
"""


@pytest.fixture
def local_run(tmp_path: Path) -> Iterator[Path]:
    """A run on this machine whose two ranks differ in one variable."""
    run, ranks = tmp_path / "a-run", []
    for rank in (0, 1):
        own = {"RANK": str(rank), "TRAINYARD_RUN": str(run), "HF_TOKEN": TOKEN, "NCCL_DEBUG": ("WARN", "INFO")[rank]}
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, **own}))
    deadline = time.monotonic() + 60
    while len(list((run / "heartbeat").glob("rank-0000?.json"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield run
    for process in ranks:
        process.kill()
        process.wait()


def test_the_ranks_of_a_run_on_this_machine(local_run: Path, yard: Yard) -> None:
    found = yard.json("env", str(local_run), "--rank", "1")["pods"]
    assert found["a-run rank 1"]["environment"]["NCCL_DEBUG"] == "INFO"
    assert TOKEN not in json.dumps(found)
    for words in (["--diff"], ["--diff", "1"], ["--rank", "1", "--diff", "0"]):
        (row,) = yard.json("env", str(local_run), *words, code=1)["different"]
        assert (row["section"], row["name"]) == ("environment", "NCCL_DEBUG")
    for same in ("0", str(local_run)):
        assert "both are a-run rank 0" in yard.err("env", str(local_run), "--diff", same, code=2)
    assert "has no rank 7" in yard.err("env", str(local_run), "--rank", "7", code=2)


def test_a_heartbeat_does_not_choose_whose_variables_are_shown(local_run: Path, yard: Yard) -> None:
    """Whoever can write to the run can name any process in it."""
    path = local_run / "heartbeat" / "rank-00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": os.getpid()}))
    said = yard("env", str(local_run), code=3)
    assert f"process {os.getpid()} is not this rank" in said.err
    assert "PATH" not in said.out
    path.write_text("{")
    for words in (["--diff"], ["--rank", "0"]):
        assert "a-run rank 0: its heartbeat cannot be read" in yard("env", str(local_run), *words, code=3).err


def test_a_forked_rank_is_known_by_its_pods_start(tmp_path: Path, yard: Yard) -> None:
    run = tmp_path / "forked"
    own = {key: value for key, value in os.environ.items() if key != "RANK"}
    own |= {"TRAINYARD_RUN": str(run), heartbeat.ATTEMPT: "a-start"}
    rank = subprocess.Popen([sys.executable, "-c", f"import os; os.environ['RANK'] = '0'\n{RANK}"], env=own)
    try:
        path, deadline = heartbeat.path_of(run / "heartbeat", 0), time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert yard.json("env", str(run))["pods"]["forked rank 0"]["environment"][heartbeat.ATTEMPT] == "a-start"
        write_json(path, {**read_json(path), "attempt": "another"})
        assert "is not this rank" in yard.err("env", str(run), code=3)
    finally:
        rank.kill()
        rank.wait()


def test_two_jobs_are_compared(local_run: Path, home: Path, yard: Yard) -> None:
    rows = yard.json("env", JOB, "--diff", str(local_run), code=1)["different"]
    assert {"nvidia-smi", "NCCL_DEBUG"} & {row["name"] for row in rows}
    assert f"both are {JOB}-worker-0" in yard.err("env", JOB, "--diff", JOB, code=2)
