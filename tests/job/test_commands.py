"""The commands, on a cluster that a stand-in for kubectl plays: what they ask, print and exit with."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld
from tests.job.corpus import STEP
from tools.cli import invoke
from tools.core import repo
from tools.job import copy, remote_sender, stop, submit
from tools.job.snapshot import lookup
from tools.job.snapshot.snapshot import PREVIOUS
from tools.kube.kubectl import Kubectl, failure
from tools.kube.manifests import Manifests

JOB = "cpu-llama-tiny-train"


def test_the_only_job_needs_no_name(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.log(0, *(STEP.format(n=n) for n in range(3)), seconds=4)
    home = cluster(made)
    assert invoke(["job", "rank0", "-n", "team-a", "--context", "staging", "--name"]) == 0
    assert capsys.readouterr().out == f"{JOB}-worker-0\n"
    asked = (home / "asked.txt").read_text().splitlines()
    assert all("--context=staging" in line and "--namespace=team-a" in line for line in asked)


def test_a_cell_means_its_job_and_a_wrong_name_the_nearest(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(world())
    assert invoke(["job", "status", "overlays/cpu/llama-tiny"]) == 0
    assert "team-a/cpu-llama-tiny-train (uid-job)" in capsys.readouterr().out
    assert invoke(["job", "status", "cpu-llama-tiny-tran"]) == 2
    assert f"did you mean {JOB}?" in capsys.readouterr().err


def test_what_may_not_be_seen_is_said_and_is_no_failure(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.unseen["Node"] = "forbidden"
    made.pending(0, 1)
    cluster(made)
    assert invoke(["job", "why"]) == 3
    shown = capsys.readouterr().out
    assert "CANNOT TELL" in shown
    assert "not seen: Node: kubectl get:" in shown


def test_the_run_directory_is_looked_into_through_a_pod(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    home = cluster(world())
    records = [{"step": n, "loss": 3.0 - n / 10, "tokens_per_s": 5.0, "time": float(n)} for n in range(1, 9)]
    (home / "volume/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    assert invoke(["job", "status", "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert (training["source"], training["step"], training["loss"]) == ("the run's own files", 8, 2.2)
    assert invoke(["job", "metrics"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_logs_are_merged_filtered_and_prefixed(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.log(0, "one", "three", seconds=4)
    made.log(1, "two", seconds=3.5)
    cluster(made)
    assert invoke(["job", "logs"]) == 0
    assert capsys.readouterr().out == "worker-0 | one\nworker-1 | two\nworker-0 | three\n"
    assert invoke(["job", "logs", "--grep", "t.?o"]) == 0
    assert capsys.readouterr().out == "worker-1 | two\n"
    assert invoke(["job", "logs", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["pod"], line["text"]) for line in told][1] == (f"{JOB}-worker-1", "two")
    assert told[0]["time"] == "2026-11-21T11:59:56+00:00"
    assert invoke(["job", "logs", "--follow"]) == 0
    assert sorted(capsys.readouterr().out.split()[2::3]) == ["one", "three", "two"]
    for words, said in ((["--since", "1 day"], "--since 1 day"), (["--grep", "("], "--grep (")):
        assert invoke(["job", "logs", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_log_that_is_not_there_is_named(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.log(0, "one", seconds=4)
    cluster(made)
    assert invoke(["job", "logs"]) == 3
    said = capsys.readouterr()
    assert said.out == "worker-0 | one\n"
    assert f"{JOB}-worker-1: not seen:" in said.err


def test_first_failure_of_all_logs(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.ended(0, 1, "RuntimeError: gloo: Connection closed by peer [10.0.0.7]:1")
    made.ended(1, 1, "step 1", "torch.OutOfMemoryError: CUDA out of memory")
    cluster(made)
    assert invoke(["job", "logs", "--first-failure"]) == 0
    shown = capsys.readouterr().out
    assert f"oom-device: first seen in {JOB}-worker-1" in shown
    assert "worker-0" not in shown
    assert invoke(["job", "logs", "--first-failure", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["pod"]) == ("oom-device", f"{JOB}-worker-1")
    assert told["around"][-1]["text"] == told["line"] == "torch.OutOfMemoryError: CUDA out of memory"


def test_a_rank_without_heartbeat_cannot_be_found(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(world())
    assert invoke(["job", "logs", "--rank", "1"]) == 3
    assert "the pod of rank 1 is unknown: no rank has a heartbeat" in capsys.readouterr().err


def heartbeat(home: Path, rank: int, host: str) -> None:
    """A rank's heartbeat on the volume."""
    path = home / f"volume/heartbeat/rank-{rank:05d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"rank": rank, "phase": "training", "step": 1, "time": 1.0, "host": host}))


def test_exec_goes_to_the_pod_that_holds_the_rank(world: NewWorld, cluster: Cluster) -> None:
    home = cluster(world())
    heartbeat(home, 0, f"{JOB}-worker-1")
    heartbeat(home, 1, f"{JOB}-worker-0")
    yard = [sys.executable, "-m", "tools.cli", "job", "exec", JOB]

    def said(*words: str) -> tuple[str, int]:
        done = subprocess.run(
            [*yard, *words],
            cwd=repo.root(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.stdout.strip(), done.returncode

    assert said("--rank", "1", "--", "sh", "-c", "echo $POD; exit 7") == (f"{JOB}-worker-0", 7)
    assert said("--", "printenv", "POD") == (f"{JOB}-worker-1", 0)
    assert said("--pod", "0", "--", "printenv", "POD") == (f"{JOB}-worker-0", 0)
    assert said("--pod", "5", "--", "true")[1] == 2
    text, code = said("--json", "--rank", "1", "--", "sh", "-c", "echo $POD; echo no >&2; exit 7")
    told = json.loads(text)
    assert (told["pod"], told["code"], code) == (f"{JOB}-worker-0", 7, 7)
    assert told["stdout"] == f"{JOB}-worker-0\n"
    assert told["stderr"].startswith("no\n"), "kubectl adds a line of its own"


def test_a_ranks_own_log_is_read_from_the_volume(
    world: NewWorld, cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    home = cluster(world())
    heartbeat(home, 1, f"{JOB}-worker-0")
    (home / "volume/logs").mkdir()
    (home / "volume/logs/rank-00001.log").write_text("a\nb\nc\n")
    assert invoke(["job", "logs", "--rank", "1", "--volume", "--tail", "2"]) == 0
    assert capfd.readouterr().out == "b\nc\n"
    assert invoke(["job", "logs", "--rank", "1", "--volume", "--grep", "[ab]", "--json"]) == 0
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["rank"], line["text"]) for line in told] == [(1, "a"), (1, "b")]
    assert invoke(["job", "logs", "--rank", "1", "--volume", "--follow"]) == 2
    assert "use it with --rank, --tail and --grep only" in capfd.readouterr().err


def test_cp_brings_whole_files_and_survives_a_broken_stream(
    world: NewWorld, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = cluster(world())
    step = home / "volume/checkpoints/step-00000010"
    step.mkdir(parents=True)
    (step / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (step / "MANIFEST.json").write_text("{}")
    for unfinished in ("step-00000020.ab.tmp", "step-00000005.cd.deleting"):
        (home / "volume/checkpoints" / unfinished).mkdir()
        (home / "volume/checkpoints" / unfinished / "half").write_text("x")
    (home / "break").write_text("9000")
    out = tmp_path / "out"
    assert invoke(["job", "cp", JOB, "checkpoints", str(out)]) == 0
    said = capsys.readouterr()
    assert "the stream was cut short: attempt 1 of 3" in said.err, "control: the stream was cut"
    assert "2 files, 10,242 bytes" in said.out
    assert (out / "checkpoints/step-00000010/weights.bin").read_bytes() == (step / "weights.bin").read_bytes()
    names = [line.split("  ")[1] for line in (out / "SHA256SUMS").read_text().splitlines()]
    assert names == ["checkpoints/step-00000010/MANIFEST.json", "checkpoints/step-00000010/weights.bin"]
    digest = hashlib.sha256((step / "weights.bin").read_bytes()).hexdigest()
    assert digest in (out / "SHA256SUMS").read_text()
    assert invoke(["job", "cp", JOB, "checkpoints", str(out)]) == 0
    assert "0 copied" in capsys.readouterr().out
    (out / "checkpoints/step-00000010/MANIFEST.json").write_text("[]")
    assert invoke(["job", "cp", JOB, "checkpoints", str(out)]) == 0
    assert "1 copied" in capsys.readouterr().out, "of the same size, and not the same"
    shutil.rmtree(step)
    assert invoke(["job", "cp", JOB, "checkpoints/step-00000010", str(out)]) == 2
    for path in ("/etc/passwd", "../other"):
        assert invoke(["job", "cp", JOB, path, str(out)]) == 2
        assert "not a path inside the run directory" in capsys.readouterr().err


def test_cp_leaves_nothing_of_a_file_that_does_not_arrive(
    world: NewWorld,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = cluster(world())
    (home / "volume/report.json").write_bytes(bytes(5000))
    (home / "break").write_text("1000")
    monkeypatch.setattr(copy, "TRIES", 1)
    out = tmp_path / "out"
    assert invoke(["job", "cp", JOB, "report.json", str(out)]) == 1
    assert "the stream was cut short, 1 times; 0 files are complete" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_cp_does_not_follow_links_out_of_the_run_directory(
    world: NewWorld, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = cluster(world())
    for name in ("outside", "volume/sub"):
        (home / name).mkdir()
        (home / name / "file").write_text(name)
    (home / "volume/out").symlink_to(home / "outside")
    (home / "volume/in").symlink_to(home / "volume/sub")
    (home / "volume/sub/out").symlink_to(home / "outside")
    out = tmp_path / "here"
    for path in ("out", "out/file"):
        assert invoke(["job", "cp", JOB, path, str(out)]) == 1
        assert f"{path}: a symbolic link that leads out of the run directory" in capsys.readouterr().err
    assert not out.exists()
    assert invoke(["job", "cp", JOB, "in/file", str(out)]) == 0, "control: one that stays inside"
    assert invoke(["job", "cp", JOB, "sub", str(out)]) == 0
    lines = (out / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["in/file", "sub/file"], "also those of the first copy"
    (out / "sub/file").unlink()
    (out / "sub/file").mkdir()
    capsys.readouterr()
    assert invoke(["job", "cp", JOB, "sub", str(out)]) == 2
    assert f"error: {out / 'sub/file'}: " in capsys.readouterr().err
    assert sorted(path.name for path in (out / "sub").iterdir()) == ["file"]


def test_a_full_disk_leaves_no_half_file(
    world: NewWorld,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = cluster(world())
    (home / "volume/weights").write_bytes(bytes(5000))

    def full(*_words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copy, "_write", full)
    assert invoke(["job", "cp", JOB, "weights", str(tmp_path / "here")]) == 1
    assert f"error: {tmp_path / 'here'}: No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["metrics", "no/such.log"], 2, "no/such.log: no such file"),
        (["plot", "nope.jsonl"], 2, "nope.jsonl: no such file"),
        (["metrics", "tests/job"], 2, "tests/job: no metrics.jsonl in this directory"),
        (["plot", "nope"], 2, "no run, job, cell or log of that name: nope\n  hint: runs here: "),
        (["plot", "local/runs/nope"], 2, "no run, job, cell or log of that name: local/runs/nope\n  hint: runs here: "),
        (["logs", "--since", ""], 2, "--since : not a duration"),
        (["logs", "--rank", "0", "--volume"], 3, "the run directory has no log of rank 0"),
        (["status", ""], 2, "no such job"),
        (["status", "cpu/llama-tin"], 2, "did you mean overlays/cpu/llama-tiny?"),
    ],
)
def test_what_is_not_there_is_one_error(
    words: list[str],
    code: int,
    said: str,
    world: NewWorld,
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster(world())
    assert invoke(["job", *words]) == code
    shown = capsys.readouterr()
    assert (shown.out, said in shown.err) == ("", True), shown.err


def test_metrics_of_a_log_go_back_behind_the_last_restart(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.running(0, restarts=1)
    made.log(0, *(STEP.format(n=n) for n in (1, 2, 3)), seconds=90, which=PREVIOUS)
    made.log(0, *(STEP.format(n=n) for n in (3, 4)), seconds=9)
    cluster(made)
    assert invoke(["job", "metrics"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 3, 4]
    assert invoke(["job", "plot", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"][0]["restarts"]) == 1


def test_previous_is_of_those_that_were_restarted(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    cluster(made)
    assert invoke(["job", "logs", "--previous"]) == 3
    assert "no container of cpu-llama-tiny-train was restarted" in capsys.readouterr().err
    assert invoke(["job", "logs", "--previous", "--follow"]) == 2
    made.running(1, restarts=2)
    made.log(1, "before", seconds=9)
    cluster(made)
    capsys.readouterr()
    assert invoke(["job", "logs", "--previous"]) == 0, "worker-0 has no such log, and none is missed"
    assert capsys.readouterr() == ("worker-1 | before\n", "")
    made.waiting(0, "ContainerCreating")
    cluster(made)
    assert invoke(["job", "logs", "--follow"]) == 0
    assert "worker-0: not seen: ContainerCreating" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("error: You must be logged in to the server (Unauthorized)", 3),
        (
            "error: You must be logged in to the server (the server has asked for the client to provide credentials)",
            3,
        ),
        (
            "Unable to connect to the server: getting credentials: exec: executable aws failed with exit code 255",
            3,
        ),
        ("Unable to connect to the server: net/http: TLS handshake timeout", 3),
        ("Error from server (ServiceUnavailable): the server is currently unable to handle the request", 3),
        ('error: context "staging" does not exist', 2),
        ('error: the server doesn\'t have a resource type "pytorchjobs"', 2),
    ],
)
def test_a_cluster_that_is_not_reached_tells_nothing(said: str, code: int) -> None:
    """The words are kubectl's own."""
    found = failure("get", f"E1122 memcache.go:265] couldn't get current server API group list\n{said}\n")
    assert found.code == code
    assert found.hint or "TLS" in said or "currently" in said
    assert said.removeprefix("error: ") in found.message


def test_a_test_that_somebody_else_runs_stays(
    monkeypatch: pytest.MonkeyPatch, rendered: dict[str, Manifests]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(submit, "check", lambda *_: None)
    monkeypatch.setattr(lookup, "existing", lambda *_: {"metadata": {"uid": "other"}})
    monkeypatch.setattr(Kubectl, "text", lambda self, *words, **_: asked.append(words[0]))
    assert invoke(["job", "nccl-test", "cpu/llama-tiny", "-n", "team-a"]) == 1
    assert "delete" not in asked


def test_what_is_pruned_and_replaced_while_it_is_copied_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is that which had the name when all were opened; what is gone by then is not asked for."""
    for name in ("LATEST", "metrics.jsonl", "old"):
        (tmp_path / name).write_text(name)
    listed = remote_sender._paths
    lists = iter([[tmp_path / "LATEST", tmp_path / "pruned"]])
    monkeypatch.setattr(remote_sender, "_paths", lambda *words: next(lists, None) or listed(*words))
    files = remote_sender.opened(tmp_path, ".")
    assert [name for name, _ in files] == ["LATEST", "metrics.jsonl", "old"], "looked up a second time"
    (tmp_path / "old").unlink()
    (tmp_path / "part").write_text("STEP-2")
    (tmp_path / "part").rename(tmp_path / "LATEST")
    monkeypatch.setattr(remote_sender, "opened", lambda *_: files)
    out = io.BytesIO()
    remote_sender.send(tmp_path, ".", {}, out)
    for name in ("LATEST", "metrics.jsonl", "old"):
        assert (
            f"{len(name)}\n{name}0 {hashlib.sha256(name.encode()).hexdigest()}\n".encode() in out.getvalue()
        )
    assert out.getvalue().endswith(b"\nend\n")


def test_list_shows_state_and_uid(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = world()
    made.end("Failed")
    cluster(made)
    assert invoke(["job", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["uid"], row["pods"]) == ("Failed", "uid-job", "0/2")
    assert invoke(["job", "status"]) == 1, "a failed job's status is a bad verdict"


def test_no_kubectl_is_one_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert invoke(["job", "list"]) == 2
    assert capsys.readouterr().err.startswith("error: no kubectl on PATH\n  hint: install kubectl 1.31")


def test_a_pod_that_has_ended_and_is_being_taken_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever submits again would meet it; what a finished job keeps is not waited for."""
    kept = {"metadata": {"name": "a"}, "status": {"phase": "Failed"}}
    leaving = kept | {"metadata": {"name": "a", "deletionTimestamp": "2026-11-21T12:00:00Z"}}
    answers = [[kept], [leaving, kept], [leaving]]
    monkeypatch.setattr(Kubectl, "items", lambda self, *words: answers.pop())
    spec: dict[str, Any] = {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {}}}}}
    stop.wait_gone(Kubectl(), {"metadata": {"name": "job"}, "spec": spec}, lambda text: None)
    assert answers == []
