"""A pod's first process: signals, orphans, one record and one code for each end, ranks that hang."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.accounts import accounted, doing
from training.checkpoint.layout import committed_steps
from training.distributed.process import ENTRYPOINT, state_of
from training.pod import end_record as end
from training.pod.end_record import Start
from training.pod.exit_analysis import Output
from training.pod.rendezvous import hosted
from training.run import failure, heartbeat, ledger
from training.run.directory import RunDir
from training.run.failure import CODES, PERMANENT, Failure

LAUNCHED = Path(__file__).with_name("launched.py")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adopting orphans needs Linux")


class Pod:
    """One start of the entrypoint around `launched.py`."""

    def __init__(self, run: Path, *what: str, behind: str = "exec", **variables: str) -> None:
        self.run = run
        run.mkdir(exist_ok=True)
        entrypoint = [sys.executable, "-m", "training.entrypoint"]
        command = ["sh", "-c", f'{behind} "$@"', "sh", *entrypoint, sys.executable, str(LAUNCHED), *what]
        environment = {**os.environ, "TRAINYARD_RUN": str(run), "PYTHONPATH": ".", **variables}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait(self) -> int:
        self.out, self.err = self.process.communicate(timeout=300)
        return self.process.returncode

    def end(self) -> dict:
        return json.loads((self.run / "end.json").read_text())

    def until_exists(self, pattern: str) -> None:
        deadline = time.monotonic() + 120
        while not any(self.run.glob(pattern)):
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.02)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """Start a pod in the test's own run directory: `pod("hang", TRAINYARD_HANG_SECONDS="1")`."""
    pods: list[Pod] = []

    def starter(*what: str, behind: str = "exec", **variables: str) -> Pod:
        pods.append(Pod(tmp_path / "run", *what, behind=behind, **variables))
        return pods[-1]

    yield starter
    for one in pods:
        one.process.kill()
        one.process.communicate()


def test_output_is_passed_on_and_success_is_zero(pod: Callable[..., Pod]) -> None:
    one = pod("print lines")
    assert one.wait() == 0
    assert one.out == "to stdout\n"
    assert one.err == "to stderr\n"
    assert (one.end()["class"], one.end()["code"]) == ("done", 0)


def test_sigterm_is_passed_on_once_and_ends_in_143(pod: Callable[..., Pod]) -> None:
    """With 0 the operator would count the pod as done; a second signal cuts torchrun's shutdown short."""
    one = pod("wait for sigterm")
    one.until_exists("ready")
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        one.process.send_signal(number)
        time.sleep(0.05)
    assert one.wait() == 143
    assert (one.run / "heard").read_text() == str(int(signal.SIGTERM))
    record = one.end()
    assert (record["class"], record["rank"], record["step"]) == ("drained", 0, 3)


@linux
def test_orphans_are_adopted_reaped_and_ended(pod: Callable[..., Pod]) -> None:
    one = pod("leave orphans")
    assert one.wait() == 0
    children = (one.run / "children").read_text().split()
    assert len(children) == 2  # the launcher and the live orphan; the dead one was reaped
    for pid in map(int, children):
        assert not Path(f"/proc/{pid}").exists()


def test_a_permanent_failure_ends_the_pod_early_and_its_restarts_at_once(
    pod: Callable[..., Pod], tmp_path: Path
) -> None:
    """A restarted container knows its pod by POD_UID; a new pod of the same run tries again."""
    own = {"POD_UID": "1234", "TMPDIR": str(tmp_path)}
    first = pod("refuse", **own)
    assert first.wait() == CODES["config"]
    record = first.end()
    assert (record["class"], record["permanent"], record["rank"]) == ("config", True, 0)
    assert record["message"] == "model.yaml:3: unknown key"
    again = pod("print lines", **own)
    assert again.wait() == CODES["config"]
    assert again.out == ""
    assert "rank 0 on " in again.err
    assert "model.yaml:3: unknown key (exit code 78)" in again.err, "the cause is printed again"
    fresh = pod("print lines", POD_UID="5678", TMPDIR=str(tmp_path))
    assert fresh.wait() == 0


def test_a_hung_rank_is_named_and_killed_and_nothing_else_is(tmp_path: Path) -> None:
    """Control: without the guard the same rank keeps hanging. Ranks that step or save are not killed."""
    guarded = Pod(tmp_path / "guarded", "step", "hang", TRAINYARD_HANG_SECONDS="3")
    control = Pod(tmp_path / "control", "hang", TRAINYARD_HANG_SECONDS="0")
    saving = Pod(tmp_path / "saving", "save for long", TRAINYARD_HANG_SECONDS="3")
    try:
        guarded.until_exists("failures/*.json")
        (path,) = (guarded.run / "failures").glob("*.json")
        record = json.loads(path.read_text())
        assert (record["class"], record["rank"], record["phase"]) == ("hang", 1, "training")
        assert 10 < record["step"] < 40  # of the last heartbeat, which is a second old at most
        assert "in wait" in record["message"]
        assert "in hang" in record["traceback"]
        deadline = time.monotonic() + 60  # the kill follows the record
        while state_of(record["pid"]) not in (None, "Z"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert saving.wait() == 0
        assert control.process.poll() is None
        assert guarded.process.poll() is None
        assert len(list((guarded.run / "failures").iterdir())) == 1
        assert not (control.run / "failures").exists()
        assert not (saving.run / "failures").exists()
    finally:
        for one in (guarded, control, saving):
            one.process.kill()
            one.process.communicate()


def test_a_kill_for_memory_is_distinguished_from_another(pod: Callable[..., Pod], tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"trainyard-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no cgroup for memory can be made: run as root on cgroup v1")
    try:
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
        one = pod("eat memory", behind=f"echo 0 > {group}/cgroup.procs; exec")
        assert one.wait() == CODES["out of memory"]
        assert "at its limit" in one.end()["message"]
    finally:
        group.rmdir()
    other = pod("wait for sigterm")
    other.until_exists("ready")
    os.kill(int((other.run / "ready").read_text()), signal.SIGKILL)
    assert other.wait() == CODES["killed"]


def test_a_command_that_does_not_start(tmp_path: Path) -> None:
    def codes(*words: str, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "training.entrypoint", *words],
            env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    assert codes()[0] == 2
    assert codes("no-such-program")[0] == 127
    code, text = codes("true", TRAINYARD_HANG_SECONDS="soon")
    assert code == CODES["config"]
    assert "TRAINYARD_HANG_SECONDS is 'soon'" in text
    code, text = codes("true", TRAINYARD_RESTARTS="-1")
    assert (code, "TRAINYARD_RESTARTS='-1' is not a whole number" in text) == (CODES["config"], True)


@pytest.mark.parametrize(("code", "starts", "ended"), [(1, 2, "error"), (CODES["config"], 2, "error"), (0, 1, None)])
def test_a_failure_that_may_be_cured_starts_again_in_the_pod(
    code: int, starts: int, ended: str | None, tmp_path: Path
) -> None:
    """Where the kubelet may not restart the container. The first new start does not wait."""
    script = f"echo start >> {tmp_path}/starts; exit {code}"
    done = subprocess.run(
        [sys.executable, "-m", "training.entrypoint", "sh", "-c", script],
        env={**os.environ, "TRAINYARD_RUN": str(tmp_path), "TRAINYARD_RESTARTS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == (CODES[ended] if ended else 0), done.stderr
    assert (tmp_path / "starts").read_text().split() == ["start"] * starts
    assert ("starting again in this pod" in done.stderr) is (starts > 1)


def test_a_permanent_failure_does_not_start_again_in_the_pod(pod: Callable[..., Pod], tmp_path: Path) -> None:
    one = pod("refuse", TRAINYARD_RESTARTS="3")
    assert one.wait() == CODES["config"]
    assert "starting again" not in one.err


@pytest.mark.parametrize(
    ("endpoint", "given", "wanted"),
    [
        ("job-node-0-0.job:29500", "", {"PET_RDZV_CONF": "is_host=1"}),
        ("job-node-0-0.job:29500", "read_timeout=9", {"PET_RDZV_CONF": "read_timeout=9,is_host=1"}),
        ("job-node-0-0:29500", "", {}),
        ("job-node-0-1.job:29500", "", {}),
        ("127.0.0.1:29500", "", {}),
        ("", "", {}),
    ],
)
def test_the_pod_that_the_endpoint_names_is_its_host(endpoint: str, given: str, wanted: dict[str, str]) -> None:
    """torchrun would ask DNS, which may not know a new pod yet."""
    assert hosted({"PET_RDZV_ENDPOINT": endpoint, "PET_RDZV_CONF": given}, "job-node-0-0") == wanted


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_stopped_rank_is_restarted_and_a_killed_one_is_the_cause_of_the_end(start: Callable) -> None:
    """Under torchrun, with one restart. All ranks fall silent, because they wait for the stopped one. Only
    that one is killed, and training continues. A kill after that is the cause of the end, not the hang.
    """
    long, limit = ("train.steps=4000",), {"TRAINYARD_HANG_SECONDS": "2"}
    job = start("struck", nproc=2, overrides=long, restarts=1, entrypoint=True, **limit)
    job.until(lambda: len(job.records()) >= 12, timeout=180)
    stopped = job.workers()[1]
    os.kill(stopped, signal.SIGSTOP)
    job.until(lambda: any(one["class"] == "hang" for one in job.failures()))
    hung_at = job.failures()[0]["time"]
    # Steps this long after the hang show that it is over, however late they are logged.
    job.until(lambda: job.records()[-1]["time"] > hung_at + 6, timeout=180)
    killed = job.workers()[1]
    os.kill(killed, signal.SIGKILL)
    assert job.wait() == CODES["killed"], job.text()
    hangs, kills = ([one for one in job.failures() if one["class"] == kind] for kind in ("hang", "killed"))
    assert [one["pid"] for one in hangs] == [stopped]
    assert "its process is stopped" in hangs[0]["message"]
    assert [one["pid"] for one in kills] == [killed]
    record = job.end()
    assert (record["class"], record["permanent"], record["rank"]) == ("killed", False, kills[0]["rank"])
    last = heartbeat.read(heartbeat.path_of(job.run / "heartbeat", kills[0]["rank"]))
    assert last is not None
    assert (record["message"], record["phase"], last.pid) == ("was killed by SIGKILL", last.phase, killed)
    assert record["host"] == socket.gethostname()
    assert any("continuing from step" in line for line in (job.run / "logs/rank-00000.log").read_text().splitlines())
    book = ledger.of(ledger.read(RunDir(job.run), committed_steps(job.run / "checkpoints")[-1]))
    (row,) = map(json.loads, (job.run / "attempts.jsonl").read_text().splitlines())
    assert accounted(book) == 2 * (round(row["ended"] * 1000) - round(row["started"] * 1000))
    assert [doing(book, hung_at + later) for later in (-1.0, 0.2)] == [{"hung"}, {"restart and rendezvous"}]
    assert book.totals["hung"] >= 2 * 2000 - 2 * 1000, "two seconds of silence, heartbeats are a second old at most"
    assert min(book.totals["lost to redo"], book.totals["training"]) > 0
    assert (book.restarts, book.running) == (1, False)


def test_a_permanent_failure_uses_no_restart_of_torchrun(tmp_path: Path) -> None:
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python", sys.executable]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options, str(LAUNCHED), "refuse"]
    done = subprocess.run(
        [sys.executable, "-m", "training.entrypoint", *torchrun],
        env={**os.environ, "TRAINYARD_RUN": str(tmp_path), "PYTHONPATH": ".", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == CODES["config"], done.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "failures").iterdir()]
    assert sorted(one["rank"] for one in records) == [0, 1]  # one per rank, of one attempt


def record(kind: str, rank: int, at: float) -> Failure:
    return Failure(kind, rank, f"host-{rank}", 10 + rank, 7, f"{kind} of {rank}", "", at)


@pytest.mark.parametrize("seed", range(20))
def test_a_victim_never_outranks_the_first_failure(seed: int, tmp_path: Path) -> None:
    """In any order of the records of several pods, and whichever pod concludes last."""
    draw = random.Random(seed)
    kind = draw.choice(["killed", "out of memory", "hang", "config", "data", "nan", "storage", "error"])
    now = time.time()
    culprit = record(kind, draw.randrange(4), now + draw.random())
    victims = [
        record(draw.choice(["lost peer", "communication"]), rank, now + draw.random())
        for rank in range(4) if rank != culprit.rank
    ]  # fmt: skip
    run = RunDir(tmp_path)
    for one in draw.sample([culprit, *victims], 4):
        failure.write(one, run)
    found = failure.incident(run, now - 1)
    finished = end.conclude(Start("pod", "x", now), 1, found, Output(), stopping=False, out_of_memory=False)
    end.write(finished, run, 0)
    late = end.conclude(Start("late", "y", now), 1, victims, Output(), stopping=False, out_of_memory=False)
    end.write(late, run, 0)
    saved = json.loads(run.end.read_text())
    assert (saved["class"], saved["rank"], saved["host"]) == (kind, culprit.rank, culprit.host)
    assert finished.code == CODES[kind]
    assert (finished.code < 128) == (kind in PERMANENT)
    assert [json.loads(line)["pod"] for line in (tmp_path / "attempts.jsonl").read_text().splitlines()] == [
        "pod",
        "late",
    ]


def test_failures_fixed_by_a_restart_are_not_the_cause(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), time.time()
    failure.write(record("killed", 1, now - 100), run)
    failure.write(record("nan", 2, now), run)
    run.metrics.write_text(json.dumps({"step": 9, "time": now - 1}) + "\n" + '{"step": 10, "ti')
    assert [one.kind for one in failure.incident(run, now - 200)] == ["nan"]


@pytest.mark.parametrize(
    ("code", "lines", "kind"),
    [
        (
            1,
            ["torch.distributed.DistNetworkError: failed to connect to train-worker-0:23456"],
            "communication",
        ),
        (1, ["[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"], "out of memory"),
        (1, ["ModuleNotFoundError: No module named 'training.nothing'"], "error"),
        (
            1,
            [
                "[rank3]: torch.OutOfMemoryError: CUDA out of memory.",
                "[rank0]: torch.distributed.DistBackendError: NCCL",
            ],
            "out of memory",
        ),
        (1, ["[default0]:[rank0]: torch.OutOfMemoryError: CUDA out of memory."], "out of memory"),
        (1, ["torch.distributed.DistNetworkError: failed to recv", "[rank0]: AssertionError"], "error"),
        (2, ["usage: torchrun [-h]", "torchrun: error: unrecognized arguments: --oops"], "config"),
        (-9, [], "killed"),
        (-11, [], "error"),
    ],
)
def test_an_end_without_a_record(code: int, lines: list[str], kind: str) -> None:
    output = Output()
    for line in lines:
        output.take(line)
    found = end.conclude(Start("pod", "x", 0.0), code, [], output, stopping=False, out_of_memory=False)
    assert found.kind == kind
    assert found.message
    if code == -9:
        found = end.conclude(Start("pod", "x", 0.0), code, [], output, stopping=False, out_of_memory=True)
        assert found.kind == "out of memory"


def test_the_document_lists_every_class_and_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text(encoding="utf-8")
    table = text.partition("\n## Process 1\n")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| ([a-z ]+) \| (\d+) \| (no|yes|) ?\|", table)
    told = {kind: (int(code), answer) for kind, code, answer in rows}
    answers = {kind: "no" if kind in PERMANENT else "yes" for kind in CODES} | {"done": ""}
    assert told == {kind: (code, answers[kind]) for kind, code in CODES.items()}


def test_codes_are_distinct_and_only_done_is_zero() -> None:
    assert len(set(CODES.values())) == len(CODES)
    assert [kind for kind, code in CODES.items() if code == 0] == ["done"]
    assert all(0 <= code < 256 for code in CODES.values())


ORPHAN = """
import os, sys, time
from pathlib import Path
from training.distributed.process import die_with_parent
if os.fork():
    os._exit(0)
deadline = time.monotonic() + 20
while os.getppid() != 1 and time.monotonic() < deadline:
    time.sleep(0.01)
Path(sys.argv[1]).write_text(str(os.getppid()))
die_with_parent()
Path(sys.argv[2]).touch()
"""


@linux
@pytest.mark.parametrize(("entrypoint", "lives"), [("4242", False), ("1", True), (None, True)])
def test_a_rank_whose_agent_died_while_it_was_starting_ends(
    tmp_path: Path, entrypoint: str | None, lives: bool
) -> None:
    """If the entrypoint is process 1, or there is none, process 1 as parent means nothing: the control."""
    environment = {k: v for k, v in os.environ.items() if k != ENTRYPOINT}
    environment |= {"PYTHONPATH": "."} | ({ENTRYPOINT: entrypoint} if entrypoint else {})
    ready, alive = tmp_path / "ready", tmp_path / "alive"
    out = subprocess.run(
        [sys.executable, "-c", ORPHAN, str(ready), str(alive)],
        env=environment, stdout=subprocess.PIPE, timeout=180, check=True,
    ).stdout  # fmt: skip
    assert out == b"", "the last process that holds the pipe has ended"
    if ready.read_text() != "1":
        pytest.skip("orphans have another parent than process 1 here")
    assert alive.exists() == lives
