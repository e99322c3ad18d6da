"""The commands against a stand-in for kubectl: what they ask, print and exit with."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.job.corpus import STEP
from tools.core import repo
from tools.core.errors import UserError
from tools.job import copy, stop, submit
from tools.job.snapshot import lookup
from tools.job.snapshot.snapshot import PREVIOUS
from tools.kube.kubectl import Kubectl, failure
from tools.kube.manifests import Manifests
from training.remote import file_sender

JOB = "cpu-llama-tiny-train"


def test_looking_at_jobs_does_not_import_the_trainers_configuration() -> None:
    """It takes longer to import than these commands take to ask a small cluster."""
    names = "list, logs, rank0, status, stop, top, why"
    code = f"import sys; from tools.cli.job import {names}; print({{'pydantic', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=repo.root(), capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_only_job_needs_no_name(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.log(0, *(STEP.format(n=n) for n in range(3)), seconds=4)
    home = cluster(made)
    assert yard.out("rank0", "-n", "team-a", "--context", "staging", "--name") == f"{JOB}-worker-0\n"
    asked = (home / "asked.txt").read_text().splitlines()
    assert all("--context=staging" in line and "--namespace=team-a" in line for line in asked)


def test_a_cell_means_its_job(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    cluster(world())
    assert "team-a/cpu-llama-tiny-train, 2 " in yard.out("status", "overlays/cpu/llama-tiny")


def test_missing_data_is_reported_and_is_not_a_failure(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.unseen["Node"] = "forbidden"
    made.pending(0, 1)
    cluster(made)
    printed = yard.out("why", code=3)
    assert "CANNOT TELL" in printed
    assert "not seen: Node: kubectl get:" in printed


def test_the_run_directory_is_read_through_a_pod(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    home = cluster(world())
    records = [{"step": n, "loss": 3.0 - n / 10, "tokens_per_s": 5.0, "time": float(n)} for n in range(1, 9)]
    (home / "volume/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    training = yard.json("status")["training"]
    assert (training["source"], training["step"], training["loss"]) == ("the run's own files", 8, 2.2)
    assert len(yard.lines("metrics")) == 8


def test_logs_are_merged_filtered_and_prefixed(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.log(0, "one", "three", seconds=4)
    made.log(1, "two", seconds=3.5)
    cluster(made)
    assert yard.out("logs") == "worker-0 | one\nworker-1 | two\nworker-0 | three\n"
    assert yard.out("logs", "--grep", "t.?o") == "worker-1 | two\n"
    printed = yard.lines("logs", "--json")
    assert (printed[1]["pod"], printed[1]["text"]) == (f"{JOB}-worker-1", "two")
    assert printed[0]["time"] == "2026-11-21T11:59:56+00:00"
    assert sorted(yard.out("logs", "--follow").split()[2::3]) == ["one", "three", "two"]


def test_a_log_that_cannot_be_read_is_named(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.log(0, "one", seconds=4)
    cluster(made)
    printed = yard("logs", code=3)
    assert printed.out == "worker-0 | one\n"
    assert f"{JOB}-worker-1: not seen:" in printed.err


def test_first_failure_of_all_logs(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.ended(0, 1, "RuntimeError: gloo: Connection closed by peer [10.0.0.7]:1")
    made.ended(1, 1, "step 1", "torch.OutOfMemoryError: CUDA out of memory")
    cluster(made)
    printed = yard.out("logs", "--first-failure")
    assert f"oom-device: first seen in {JOB}-worker-1" in printed
    assert "worker-0" not in printed
    answer = yard.json("logs", "--first-failure")
    assert (answer["kind"], answer["pod"]) == ("oom-device", f"{JOB}-worker-1")
    assert answer["around"][-1]["text"] == answer["line"] == "torch.OutOfMemoryError: CUDA out of memory"


def heartbeat(home: Path, rank: int, host: str) -> None:
    """Write a rank's heartbeat to the volume."""
    path = home / f"volume/heartbeat/rank-{rank:05d}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"rank": rank, "phase": "training", "step": 1, "time": 1.0, "host": host}))


def test_exec_runs_in_the_pod_of_the_rank(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    home = cluster(world())
    heartbeat(home, 0, f"{JOB}-worker-1")
    heartbeat(home, 1, f"{JOB}-worker-0")

    def printed(*words: str) -> tuple[str, int]:
        """Run `yard` in its own process, which exec replaces."""
        command = [sys.executable, "-m", "tools.cli", "job", "exec", JOB, *words]
        done = subprocess.run(
            command, cwd=repo.root(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return done.stdout.strip(), done.returncode

    assert printed("--rank", "1", "--", "sh", "-c", "echo $POD; exit 7") == (f"{JOB}-worker-0", 7)
    assert printed("--", "printenv", "POD") == (f"{JOB}-worker-1", 0)
    assert printed("--pod", "0", "--", "printenv", "POD") == (f"{JOB}-worker-0", 0)
    assert "has no pod 5" in yard.err("exec", JOB, "--pod", "5", "--", "true", code=2)
    words = ("exec", JOB, "--json", "--rank", "1", "--", "sh", "-c", "echo $POD; echo no >&2; exit 7")
    answer = json.loads(yard.out(*words, code=7))
    assert (answer["pod"], answer["code"], answer["stdout"]) == (f"{JOB}-worker-0", 7, f"{JOB}-worker-0\n")
    assert answer["stderr"].startswith("no\n"), "kubectl adds its own line"


def test_a_ranks_log_is_read_from_the_volume(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    home = cluster(world())
    (home / "volume/logs").mkdir()
    (home / "volume/logs/rank-00001.log").write_text("a\nb\nc\n")
    assert yard.out("logs", "--rank", "1", "--volume", "--tail", "2") == "b\nc\n"
    printed = yard.lines("logs", "--rank", "1", "--volume", "--grep", "[ab]", "--json")
    assert [(line["rank"], line["text"]) for line in printed] == [(1, "a"), (1, "b")]


def test_cp_copies_complete_files_and_survives_a_broken_stream(
    world: NewWorld, cluster: Cluster, tmp_path: Path, yard: Yard
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
    printed = yard("cp", JOB, "checkpoints", str(out))
    assert "the stream was cut short: attempt 1 of 3" in printed.err, "control: the stream was cut"
    assert "2 files, 10,242 bytes" in printed.out
    assert (out / "checkpoints/step-00000010/weights.bin").read_bytes() == (step / "weights.bin").read_bytes()
    lines = (line.split("  ") for line in (out / "SHA256SUMS").read_text().splitlines())
    digests = {name: digest for digest, name in lines}
    names = [f"checkpoints/step-00000010/{name}" for name in ("MANIFEST.json", "weights.bin")]
    assert list(digests) == names
    assert digests[names[1]] == hashlib.sha256((step / "weights.bin").read_bytes()).hexdigest()
    assert "0 copied" in yard.out("cp", JOB, "checkpoints", str(out))
    (out / "checkpoints/step-00000010/MANIFEST.json").write_text("[]")
    assert "1 copied" in yard.out("cp", JOB, "checkpoints", str(out)), "same size, other content"
    shutil.rmtree(step)
    yard("cp", JOB, "checkpoints/step-00000010", str(out), code=2)
    for path in ("/etc/passwd", "../other"):
        assert "not a path inside the run directory" in yard.err("cp", JOB, path, str(out), code=2)


def test_cp_leaves_no_part_of_a_file_that_does_not_arrive(
    world: NewWorld, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yard: Yard
) -> None:
    home = cluster(world())
    (home / "volume/report.json").write_bytes(bytes(5000))
    (home / "break").write_text("1000")
    monkeypatch.setattr(copy, "TRIES", 1)
    out = tmp_path / "out"
    error = yard.err("cp", JOB, "report.json", str(out), code=1)
    assert "the stream was cut short, 1 times; 0 files are complete" in error
    assert list(out.iterdir()) == []

    def full(*_words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copy, "_write", full)
    error = yard.err("cp", JOB, "report.json", str(out), code=1)
    assert f"error: {out}: No space left on device" in error
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "../victim",
        "/tmp/victim",
        "checkpoints/../../victim",
        "checkpoints/a\n0000  b",
        "report.json",
        "checkpoints/link/file",
    ],
)
def test_cp_takes_no_file_that_was_not_asked_for(
    name: str,
    world: NewWorld,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    yard: Yard,
) -> None:
    """A hostile pod answers the protocol itself."""
    cluster(world())
    out, victim = tmp_path / "here/out", tmp_path / "here/victim"
    (out / "checkpoints").mkdir(parents=True)
    victim.mkdir()
    (out / "checkpoints/link").symlink_to(victim)
    sender = tmp_path / "sender.py"
    answer = f"{json.dumps({'name': name, 'size': 4})}\n4\nevil"
    digest = hashlib.sha256(b"evil").hexdigest()
    sender.write_text(f"import sys\ndef main(*words):\n    print({answer!r} + '0 {digest}\\nend')\n")
    monkeypatch.setattr(file_sender, "__file__", str(sender))
    error = yard.err("cp", JOB, "checkpoints", str(out), code=1)
    assert "was not asked for" in error or "is a file or a symbolic link" in error
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []
    assert not Path("/tmp/victim").exists()


def test_cp_takes_the_same_file_under_its_own_name(
    world: NewWorld, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yard: Yard
) -> None:
    """Control of the hostile names."""
    cluster(world())
    sender = tmp_path / "sender.py"
    answer = f"{json.dumps({'name': 'checkpoints/file', 'size': 4})}\n4\ngood"
    digest = hashlib.sha256(b"good").hexdigest()
    sender.write_text(f"import sys\ndef main(*words):\n    print({answer!r} + '0 {digest}\\nend')\n")
    monkeypatch.setattr(file_sender, "__file__", str(sender))
    yard("cp", JOB, "checkpoints", str(tmp_path / "out"))
    assert (tmp_path / "out/checkpoints/file").read_text() == "good"


def test_a_name_in_a_job_never_becomes_an_option_of_kubectl(
    world: NewWorld, cluster: Cluster, yard: Yard, tmp_path: Path
) -> None:
    """With --server, kubectl would send the user's token to the host that the job names."""
    planted = world()
    planted.pods.clear()
    template = planted.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    names = ("--server=https://127.0.0.1:1", "--insecure-skip-tls-verify=true", "-v=9")
    template["containers"][0]["envFrom"] = [{"configMapRef": {"name": name}} for name in names]
    cluster(planted)
    said = "a name that Kubernetes does not allow: '--insecure-skip-tls-verify=true'"
    assert said in yard.out("why", JOB, code=3)
    for name in names[:2]:
        with pytest.raises(UserError, match="does not allow"):
            Kubectl().words("get", "configmap", names=[name])
    assert Kubectl().words("get", "configmap", names=["model"])[-2:] == ["--", "model"]  # the control
    assert Kubectl().words("exec", names=["pod"], command=["ls", "--server=x"])  # the user's own words


def test_cp_does_not_follow_links_out_of_the_run_directory(
    world: NewWorld, cluster: Cluster, tmp_path: Path, yard: Yard
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
        error = yard.err("cp", JOB, path, str(out), code=1)
        assert f"{path}: a symbolic link that leads out of the run directory" in error
    assert not out.exists()
    yard("cp", JOB, "in/file", str(out))  # control: a link that stays inside
    yard("cp", JOB, "sub", str(out))
    lines = (out / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["in/file", "sub/file"], "also those of the first copy"
    (out / "sub/file").unlink()
    (out / "sub/file").mkdir()
    assert f"error: {out / 'sub/file'}: " in yard.err("cp", JOB, "sub", str(out), code=2)
    assert sorted(path.name for path in (out / "sub").iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["metrics", "no/such.log"], 2, "no/such.log: no such file"),
        (["plot", "nope.jsonl"], 2, "nope.jsonl: no such file"),
        (["metrics", "tests/job"], 2, "tests/job: no metrics.jsonl in this directory"),
        (["plot", "nope"], 2, "no run, job, cell or log of that name: nope\n  hint: runs here: "),
        (
            ["plot", "local/runs/nope"],
            2,
            "no run, job, cell or log of that name: local/runs/nope\n  hint: runs",
        ),
        (["logs", "--since", ""], 2, "--since : not a duration"),
        (["logs", "--since", "1 day"], 2, "--since 1 day"),
        (["logs", "--grep", "("], 2, "--grep ("),
        (["logs", "--previous", "--follow"], 2, "--previous reads ended containers"),
        (["logs", "--rank", "1"], 3, "the pod of rank 1 is unknown: no rank has a heartbeat"),
        (["logs", "--rank", "0", "--volume"], 3, "the run directory has no log of rank 0"),
        (["logs", "--rank", "1", "--volume", "--follow"], 2, "use it with --rank, --tail and --grep only"),
        (["status", ""], 2, "no such job"),
        (["status", "cpu-llama-tiny-tran"], 2, f"did you mean {JOB}?"),
        (["status", "cpu/llama-tin"], 2, "did you mean overlays/cpu/llama-tiny?"),
    ],
)
def test_wrong_input_is_one_error(
    words: list[str], code: int, message: str, world: NewWorld, cluster: Cluster, yard: Yard
) -> None:
    cluster(world())
    assert message in yard.err(*words, code=code)


def test_metrics_of_a_log_include_those_before_the_last_restart(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.running(0, restarts=1)
    made.log(0, *(STEP.format(n=n) for n in (1, 2, 3)), seconds=90, which=PREVIOUS)
    made.log(0, *(STEP.format(n=n) for n in (3, 4)), seconds=9)
    cluster(made)
    assert [row["step"] for row in yard.lines("metrics")] == [1, 2, 3, 3, 4]
    assert len(yard.json("plot")["runs"][0]["restarts"]) == 1


def test_previous_reads_the_restarted_containers(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    cluster(made)
    assert f"no container of {JOB} was restarted" in yard.err("logs", "--previous", code=3)
    made.running(1, restarts=2)
    made.log(1, "before", seconds=9)
    cluster(made)
    assert yard("logs", "--previous") == ("worker-1 | before\n", ""), "worker-0 has no such log"
    made.waiting(0, "ContainerCreating")
    cluster(made)
    assert "worker-0: not seen: ContainerCreating" in yard("logs", "--follow").err


LOGGED_OUT = "error: You must be logged in to the server"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"{LOGGED_OUT} (Unauthorized)", 3),
        (f"{LOGGED_OUT} (the server has asked for the client to provide credentials)", 3),
        (
            "Unable to connect to the server: getting credentials: exec: executable aws failed with code 255",
            3,
        ),
        ("Unable to connect to the server: net/http: TLS handshake timeout", 3),
        ("Error from server (ServiceUnavailable): the server is currently unable to handle the request", 3),
        ('error: context "staging" does not exist', 2),
        ('error: the server doesn\'t have a resource type "pytorchjobs"', 2),
    ],
)
def test_a_cluster_that_is_not_reached_gives_no_verdict(line: str, code: int) -> None:
    """The lines are kubectl's own."""
    found = failure("get", f"E1122 memcache.go:265] couldn't get current server API group list\n{line}\n")
    assert found.code == code
    assert found.hint or "TLS" in line or "currently" in line
    assert line.removeprefix("error: ") in found.message


def test_no_kubeconfig_is_one_error_that_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, yard: Yard
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for words in (["submit", "cpu/llama-tiny"], ["tensorboard"], ["stop"]):
        error = yard.err(*words, code=3)
        assert error.startswith("error: no kubeconfig with a current context\n  hint: `yard cluster kubeconfig ")


def test_another_users_test_stays(monkeypatch: pytest.MonkeyPatch, rendered: dict[str, Manifests], yard: Yard) -> None:
    asked: list[str] = []
    monkeypatch.setattr(submit, "check", lambda *_: None)
    monkeypatch.setattr(lookup, "existing", lambda *_: {"metadata": {"uid": "other"}})
    monkeypatch.setattr(Kubectl, "text", lambda self, *words, **_: asked.append(words[0]))
    assert "exists already" in yard.err("nccl-test", "cpu/llama-tiny", "-n", "team-a", code=1)
    assert "delete" not in asked


def test_files_that_are_deleted_and_replaced_during_a_copy_arrive_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is the one that had the name when all were opened. A file deleted before that is left out."""
    for name in ("LATEST", "metrics.jsonl", "old"):
        (tmp_path / name).write_text(name)
    listed = file_sender._paths
    lists = iter([[tmp_path / "LATEST", tmp_path / "pruned"]])
    monkeypatch.setattr(file_sender, "_paths", lambda *words: next(lists, None) or listed(*words))
    files = file_sender.opened(tmp_path, ".")
    assert [name for name, _ in files] == ["LATEST", "metrics.jsonl", "old"], "listed a second time"
    (tmp_path / "old").unlink()
    (tmp_path / "part").write_text("STEP-2")
    (tmp_path / "part").rename(tmp_path / "LATEST")
    monkeypatch.setattr(file_sender, "opened", lambda *_: files)
    out = io.BytesIO()
    file_sender.send(tmp_path, ".", set(), out)
    for name in ("LATEST", "metrics.jsonl", "old"):
        digest = hashlib.sha256(name.encode()).hexdigest()
        assert f"{len(name)}\n{name}0 {digest}\n".encode() in out.getvalue()
    assert out.getvalue().endswith(b"\nend\n")


def test_no_kubectl_is_one_error(monkeypatch: pytest.MonkeyPatch, yard: Yard) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    error = yard.err("list", code=2)
    assert error.startswith("error: no kubectl on PATH\n  hint: install kubectl 1.31")


def test_an_ended_pod_that_is_being_deleted_is_waited_for(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job would meet it. The pods that a finished job keeps are not waited for."""
    kept = {"metadata": {"name": "a"}, "status": {"phase": "Failed"}}
    leaving = kept | {"metadata": {"name": "a", "deletionTimestamp": "2026-11-21T12:00:00Z"}}
    answers = [[kept], [leaving, kept], [leaving], [leaving]]
    monkeypatch.setattr(Kubectl, "items", lambda self, *words: answers.pop())
    stop.wait_gone(Kubectl(), world().snapshot().live, lambda text: None)
    assert answers == []
