"""The agent around a user's command: signals, causes, exit codes, metrics and hangs, on each Python."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.conftest import VERSIONS, Started, interpreters
from tools.job.metrics import series
from training.agent import build, main
from training.run.failure import CODES

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are read from /proc")
Start = Callable[..., Started]


def script(path: Path, text: str) -> str:
    path.write_text(textwrap.dedent(text))
    return str(path)


# --- the file ---


def test_equal_sources_give_equal_bytes(agent: Path, tmp_path: Path) -> None:
    build.build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == agent.read_bytes()
    names = zipfile.ZipFile(agent).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "__main__.py",
        "trainyard",
        "trainyard_guard.py",
        "trainyard_guard-1.dist-info",
    }
    assert {name for name in names if "pod/launcher" in name or "trainer/" in name} == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_has_the_syntax_of_the_oldest_python_and_runs_on_each(
    version: str, agent: Path, start: Start, tmp_path: Path
) -> None:
    """A Python that this machine lacks is a counted skip, after the check of the syntax."""
    for name, text in build.contents().items():
        if name.endswith(".py"):
            ast.parse(text, name, feature_version=(3, int(version.partition(".")[2])))
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no python{version} here: only the syntax was checked")
    text = """\
        import sys, trainyard
        if sys.version_info[1] % 2:
            trainyard.report(9, loss=0.5)
        else:
            print("step 9 loss=0.5")
        print(sys.version_info[:2])
        sys.exit("Error: over")
    """
    one = start(python, script(tmp_path / "reports.py", text), python=python)
    assert one.wait() == CODES["error"], one.err
    assert f"(3, {version.partition('.')[2]})" in one.out
    assert (one.end()["class"], one.end()["last_lines"][-1]) == ("error", "Error: over")
    assert [(row["step"], row["loss"]) for row in one.metrics()] == [(9, 0.5)]


def test_control_a_newer_syntax_is_found() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case _: pass", feature_version=build.OLDEST)


def test_the_file_finds_a_python_by_itself(agent: Path, tmp_path: Path) -> None:
    """Without one, or with an old one, it says so in one sentence."""
    (tmp_path / "python3").symlink_to(sys.executable)
    found = {"PATH": str(tmp_path), "TRAINYARD_RUN": str(tmp_path / "run")}
    done = subprocess.run([agent, "--", "/bin/echo", "hello"], env=found, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    (tmp_path / "old").mkdir()
    script(tmp_path / "old/python3", "#!/bin/sh\nexit 1\n")
    (tmp_path / "old/python3").chmod(0o755)
    for path in ("/nonexistent", str(tmp_path / "old")):
        done = subprocess.run([agent, "--", "/bin/echo"], env={"PATH": path}, capture_output=True, text=True)
        assert done.returncode == CODES["config"]
        assert done.stderr == "agent: the image has no Python 3.8 or newer, which the agent needs\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "no command"),
        (["--"], 2, "no command"),
        (["--", "-x"], 2, "no command"),
        (["--", "no-such-program"], 127, "cannot start no-such-program"),
        (["--", "/etc/passwd"], 126, "cannot start /etc/passwd: Permission denied"),
    ],
)
def test_a_command_that_does_not_start(words: list[str], code: int, said: str, agent: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINYARD_RUN": str(tmp_path)}
    done = subprocess.run([agent, *words], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr


# --- the run directory ---


@pytest.mark.parametrize(
    ("row", "ends"),
    [
        ("9 8 0:2 /var/lib/kubelet/pods/a/volumes/kubernetes.io~empty-dir/b /r rw - ext4 /dev/sda rw", True),
        ("9 8 0:2 / /r rw - overlay overlay rw", True),
        ("9 8 0:2 / /r rw shared:1 - nfs4 files:/ rw", False),
        ("9 8 0:2 / /other rw - nfs4 files:/ rw", True),
    ],
)
def test_a_run_directory_that_ends_with_the_pod(row: str, ends: bool, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"1 0 0:1 / / rw - overlay overlay rw\n{row}\n")
    assert main.ends_with_the_pod(Path("/r/runs/x"), tmp_path / "mounts") is ends


def test_a_run_directory_that_cannot_be_written_does_not_stop_the_script(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = start("echo", "step 1 loss 2.5", TRAINYARD_RUN=str(tmp_path / "file/run"))
    assert one.wait() == 0
    assert "cannot be written (Not a directory): no records" in one.err


# --- ends ---


@linux
@pytest.mark.parametrize("command", [["{python}", "{script}"], ["sh", "-c", "{python} {script}; true"]])
def test_sigterm_reaches_the_script_also_through_a_shell(command: list[str], start: Start, tmp_path: Path) -> None:
    """dash does not pass signals on, and it ends before a script that saves first. The script has not finished."""
    text = """\
        import os, signal, sys, time
        def asked(*_):
            time.sleep(1)
            print("the file is there:", os.path.exists(os.environ["TRAINYARD_DRAIN_FILE"]), flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, asked)
        print("step: 7, loss: 1.5", flush=True)
        time.sleep(60)
    """
    path = script(tmp_path / "wait.py", text)
    one = start(*(word.format(python=sys.executable, script=path) for word in command))
    one.until(lambda: list(one.run.glob("drain-*")) == [] and "7" in read_some(one))
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == CODES["drained"], one.err
    assert "the file is there: True" in one.out
    end = one.end()
    assert (end["class"], end["step"], end["message"]) == ("drained", 7, "stopped on request after step 7")
    assert list(one.run.glob("drain-*")) == []


def read_some(one: Started) -> str:
    assert one.process.stdout is not None
    return one.process.stdout.readline()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise RuntimeError('CUDA error: out of memory')", "out of memory"),
        ("raise ConnectionResetError('Connection reset by peer')", "lost peer"),
        ("raise RuntimeError('NCCL communicator was aborted')", "communication"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--wrong'])", "config"),
        ("raise KeyError('weights')", "error"),
        ("pass", "done"),
    ],
)
def test_exit_codes_by_class(code: str, kind: str, start: Start, tmp_path: Path) -> None:
    one = start(sys.executable, script(tmp_path / "end.py", code))
    assert one.wait() == CODES[kind], one.err
    assert one.end()["class"] == kind


def test_values_of_secret_variables_are_not_kept(start: Start, tmp_path: Path) -> None:
    """The pod's log is the script's own matter; the records are ours."""
    token = "a-token-that-nobody-knows"
    path = script(
        tmp_path / "tell.py",
        """\
        import os, trainyard
        trainyard.report(3)
        raise ValueError("not accepted: " + os.environ["MY_API_TOKEN"])
        """,
    )
    one = start(sys.executable, path, MY_API_TOKEN=token)
    assert one.wait() == CODES["error"]
    end = one.end()
    assert (end["rank"], end["step"], end["message"]) == (0, 3, "not accepted: ***")
    assert "line 3" in end["traceback"]
    kept = [path for path in one.run.rglob("*") if path.is_file() and token in path.read_text()]
    assert kept == []
    assert token in one.err, "the control"


@linux
def test_nothing_that_the_command_leaves_behind_stays(start: Start) -> None:
    one = start("sh", "-c", "sleep 300 & echo $!")
    assert one.wait() == 0
    assert not Path(f"/proc/{int(one.out)}").exists()


@pytest.mark.long
def test_the_rendezvous_of_the_script_is_read_without_pickle(start: Start) -> None:
    """torch loads the guard from the archive, which is on the path of every process of the script."""
    code = "import torch, torch.distributed.elastic.rendezvous.dynamic_rendezvous as d; print(type(d.pickle))"
    one = start(sys.executable, "-c", code)
    assert one.wait() == 0, one.err
    assert one.out == "<class 'trainyard_guard._PlainPickle'>\n"


# --- metrics in the output ---


def records(one: Started) -> list[series.Record]:
    """Read the file as `yard job metrics` does."""
    path = one.run / "metrics.jsonl"
    return series.from_jsonl(path.read_text().splitlines()) if path.exists() else []


OUTPUTS = {
    "transformers": (
        r"\r  5%|5         | 1/20 [00:00<00:02]\r{'loss': '2.5', 'grad_norm': '1.0', 'epoch': '0.1'}\n"
        r"\r 10%|#         | 2/20 [00:00<00:02]"
        r"{'loss': 2.25, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.2}\n",
        [(1, 2.5, 20), (2, 2.25, 20)],
    ),
    "torchtitan": (
        r"[rank0]:[titan] 2025-01-01 00:00:00,1 - root - INFO - step:  1  loss:  8.1  memory: 1.00GiB(2%)"
        r"  tps: 1,000  tflops: 1  mfu: 30.00%\nstep:  2  loss:  7.5  memory: 1.00GiB(2%)  tps: 1,000\n",
        [(1, 8.1, None), (2, 7.5, None)],
    ),
    "lightning": (
        r"\rEpoch 0:  50%|#####     | 1/2 [00:01<00:01, v_num=0, train_loss=2.300]"
        r"\rEpoch 0: 100%|##########| 2/2 [00:02<00:00, v_num=0, train_loss=2.100]\n",
        [(1, 2.3, None), (2, 2.1, None)],
    ),
    "loss=": (
        r"[0] step=1 loss=3.5\n[1] step=1 loss=3.5\nstep=2 loss=nan\n",
        [(1, 3.5, None), (2, "nan", None)],
    ),
    "neither": (r"hello\nepoch 3\nvalidation loss 2.5 at step 3\n", []),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_steps_in_the_output_become_metrics(kind: str, start: Start) -> None:
    text, wanted = OUTPUTS[kind]
    one = start("printf", "%b", text)
    assert one.wait() == 0, one.err
    assert [(row.step, series.plain(row.loss), row.steps) for row in records(one)] == wanted


def test_a_script_that_reports_writes_its_own_metrics(start: Start, tmp_path: Path) -> None:
    path = script(
        tmp_path / "reports.py",
        """\
        import time, trainyard
        for step in (1, 2):
            trainyard.report(step, steps=2, loss=float("inf") if step == 2 else 0.5, lr=1e-3)
            print("step", step, "loss", 9.0, flush=True)
        time.sleep(1.5)
        """,
    )
    one = start(sys.executable, path)
    assert one.wait() == 0, one.err
    assert [(row.step, row.steps, row.loss, row.lr) for row in records(one)] == [
        (1, 2, 0.5, 1e-3),
        (2, 2, float("inf"), 1e-3),
    ]


def test_a_half_line_of_a_killed_writer_costs_only_itself(start: Start) -> None:
    one = start("printf", r"step 5 loss 1.5\n")
    (one.run / "metrics.jsonl").write_text('{"step": 4, "lo')
    assert one.wait() == 0
    assert [row.step for row in records(one)] == [5]


def test_an_old_python_reads_the_same_in_every_trainers_log(agent: Path) -> None:
    """The logs of tests/job, whose records are tested there. Python 3.8 reads fewer forms of a time."""
    python = next((interpreters()[one] for one in ("3.8", "3.9", "3.10") if one in interpreters()), None)
    if python is None:
        pytest.skip("no Python before 3.11 here")
    logs = sorted(map(str, (ROOT / "tests/job/trainers").glob("*.log")))
    found = []
    for one in (python, sys.executable):
        done = subprocess.run(
            [one, "-c", textwrap.dedent(STEPS), *logs], env={"PYTHONPATH": str(agent)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(done.stdout)
    assert found[0] == found[1]
    assert found[0].count("'loss'") > 30


STEPS = """\
    import sys
    from trainyard.training.run.trainer_logs import Steps
    for name in sys.argv[1:]:
        steps, ended = Steps(), []
        for line in open(name, encoding="utf-8"):
            ended.append(steps.take(line.rstrip("\\n")))
        for record in ended + [steps.last]:
            if record:
                print(name, sorted((key, value) for key, value in record.items() if key != "time"))
"""


@pytest.mark.parametrize("version", ["3.8", "3.11"])
def test_a_hostile_line_costs_little(version: str, start: Start, tmp_path: Path) -> None:
    """Before Python 3.11 no pattern is possessive; lines are short and blanks are counted instead."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no python{version} here")
    path = script(
        tmp_path / "hostile.py",
        """\
        import random
        parts = ["loss", " ", ":", "[", "(", "{", "'", "1", ",", "step", "=", "1,111", "nan", "%|", "|", "/"]
        for part in parts:
            print("loss step " + part * 20000)
        for seed in range(5):
            print("step 1 loss: {" + "".join(random.Random(seed).choices(parts, k=20000)))
        """,
    )
    before = os.times()
    one = start(python, path, python=python)
    assert one.wait(120) == 0, one.err
    after = os.times()
    used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    assert used < 20, f"{used} s of CPU"


# --- hangs ---


@linux
def test_a_silent_script_is_ended_with_the_step_in_its_output(start: Start, tmp_path: Path) -> None:
    text = """\
        import time
        for step in range(1, 6):
            print("step", step, "loss", 2.0 / step, flush=True)
        time.sleep(300)
    """
    one = start(sys.executable, script(tmp_path / "hang.py", text), TRAINYARD_HANG_SECONDS="1")
    assert one.wait() == CODES["hang"], one.err
    end = one.end()
    assert (end["class"], end["step"], end["rank"]) == ("hang", 5, 0)
    assert "no progress for" in end["message"]
    assert end["message"].endswith("the output shows no new step")
    assert [row.step for row in records(one)] == [1, 2, 3, 4, 5]


@linux
def test_other_output_keeps_a_script_alive_and_one_without_steps_is_never_ended(start: Start, tmp_path: Path) -> None:
    """The control of the test above: the same limit, and a script that is not hung."""
    text = """\
        import sys, time
        for step in range(1, 5 if sys.argv[1:] else 1):
            print("step", step, "loss", 2.0, flush=True)
        for second in range(30):
            time.sleep(0.2)
            if sys.argv[1:]:
                print("evaluating part", second, flush=True)
    """
    path = script(tmp_path / "busy.py", text)
    limits = {"TRAINYARD_HANG_SECONDS": "4"}  # below the time of the whole, and far above that of a line
    busy = start(sys.executable, path, "busy", **limits)
    quiet = start(sys.executable, path, **limits, TRAINYARD_RUN=str(tmp_path / "quiet"))
    for one in (busy, quiet):
        assert one.wait() == 0, one.err
    assert "no step was seen yet in the output, so a hang cannot be detected" in quiet.err


@linux
def test_the_stopped_one_of_two_ranks_is_named(start: Start, tmp_path: Path) -> None:
    """Ranks are known by RANK in their environment, whoever starts them."""
    text = """\
        import os, signal, time
        note = os.path.join(os.environ["TRAINYARD_RUN"], "second")
        if os.environ["RANK"] == "1":
            with open(f"{note}.new", "w") as file:
                file.write(f"/proc/{os.getpid()}/stat")
            os.rename(f"{note}.new", note)
            os.kill(os.getpid(), signal.SIGSTOP)
        while not os.path.exists(note) or ") T " not in open(open(note).read()).read():
            time.sleep(0.02)
        for step in range(1, 5):
            print("step", step, "loss", 1.0, flush=True)
        time.sleep(300)
    """
    path = script(tmp_path / "ranks.py", text)
    both = f"for r in 0 1; do RANK=$r LOCAL_RANK=$r {sys.executable} {path} & done; wait -n; code=$?"
    both += "; kill $(jobs -p); exit $code"
    one = start("bash", "-c", both, TRAINYARD_HANG_SECONDS="1")
    assert one.wait() == CODES["hang"], one.err
    end = one.end()
    assert (end["rank"], end["step"]) == (1, 4)
    assert "its process is stopped" in end["message"]


@linux
def test_a_script_that_reports_is_watched_by_its_heartbeat(start: Start, tmp_path: Path) -> None:
    """The stack names the line where it hangs. Its output does not count any more."""
    text = """\
        import time, trainyard
        for step in range(1, 6):
            trainyard.report(step, loss=1.0)
            time.sleep(0.05)
        while True:
            print("still here", flush=True)
            time.sleep(0.2)
    """
    one = start(sys.executable, script(tmp_path / "reports.py", text), TRAINYARD_HANG_SECONDS="1")
    assert one.wait() == CODES["hang"], one.err
    end = one.end()
    assert (end["class"], end["phase"]) == ("hang", "training")
    assert end["step"] >= 3, "the heartbeat is written once a second"
    assert "it is in " in end["message"]
    assert "reports.py, line " in end["message"]
