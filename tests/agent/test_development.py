"""The edit loop inside a pod: process 1 starts its command again with files that were put beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import Started, descendants, interpreters
from training.pod import development
from training.remote import code_writer

TRAIN = """\
import os, sys, time
from helper import parts
from own.part import WORD

out = open(os.environ["OUTPUT"], "a") if "LOCAL_RANK" in os.environ else sys.stdout
for step in range(1, 2000):
    print(f"step {step} loss=1.0 {WORD} {parts()} {open('data.txt').read()}", flush=True, file=out)
    time.sleep(0.05)
"""
IMAGE = {
    "train.py": TRAIN,
    "helper.py": "def parts():\n    return 'old-helper'\n",
    "own/__init__.py": "",
    "own/part.py": "WORD = 'old-part'\n",
    "data.txt": "data",
}
START = "step 1 loss=1.0 "
Start = Callable[..., Started]


class Pod:
    """A command below the agent in a directory like an image's, and the program that puts files there."""

    SHELL = True  # writes the output to a file
    VARIABLES: dict[str, str] = {}  # noqa: RUF012 - it is replaced, never changed

    def __init__(self, start: Start, image: Path, code: Path, words: tuple[str, ...], python: str) -> None:
        for name, text in IMAGE.items():
            (image / name).parent.mkdir(parents=True, exist_ok=True)
            (image / name).write_text(text)
        code.mkdir()
        self.image, self.code, self.python = image, code, python
        self.output = image.parent / "output"
        shell = ("sh", "-c", 'exec "$@" >> $OUTPUT', "sh") if self.SHELL else ()
        variables = {"TRAINYARD_CODE": str(code), "OUTPUT": str(self.output), **self.VARIABLES}
        self.started = start(*shell, *words, python=python, **variables)

    def answer(self, action: str, **given: Any) -> dict[str, Any]:
        environment = {**os.environ, "TRAINYARD_CODE": str(self.code), "TRAINYARD_RUN": str(self.started.run)}
        done = subprocess.run(
            [self.python, "-u", "-c", Path(code_writer.__file__).read_text()],
            cwd=self.image,
            env=environment,
            input=json.dumps({"action": action, **given}) + "\n",
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        assert "error" not in found
        return found

    def sync(self, name: str, **files: str) -> None:
        """Put files, named with __ for / and without .py, in place, as `yard job sync` does."""
        texts = {key.replace("__", "/") + ".py": text.encode() for key, text in files.items()}
        coded = {key: base64.b64encode(text).decode() for key, text in texts.items()}
        assert self.answer("stage", id=name, files=coded) == {"staged": len(files)}
        assert self.answer("place", id=name) == {"placed": len(files)}
        assert self.answer("stop", id=name)["time"] <= time.time()
        assert self.answer("start", id=name)["time"] <= time.time()
        digests = {key: hashlib.sha256(text).hexdigest() for key, text in texts.items()}
        assert self.answer("digests", names=list(texts)) == {"digests": digests}

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def until(self, word: str, seconds: float = 120) -> None:
        self.started.until(lambda: word in self.text(), seconds)


@pytest.fixture
def pod(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pod]:
    image = tmp_path / "image"
    image.mkdir()
    monkeypatch.chdir(image)

    def make(*words: str, python: str = sys.executable) -> Pod:
        words = words or (python, "train.py")
        return Pod(start, image, tmp_path / "code", tuple(word.format(image=image) for word in words), python)

    return make


@pytest.mark.parametrize(
    "words",
    [
        ("train.py",),
        ("{image}/train.py",),
        ("-m", "train"),
    ],
    ids=["script", "absolute", "module"],
)
def test_changed_files_are_in_front_of_the_images(pod: Callable[..., Pod], words: tuple[str, ...]) -> None:
    """A module, then the script, then a file of a package: what has not changed stays the image's."""
    here = pod(sys.executable, *words)
    here.until(f"{START}old-part old-helper data")
    first = descendants(here.started.process.pid)
    here.sync("a1", helper="def parts():\n    return 'new-helper'\n")
    here.until(f"{START}old-part new-helper data")
    assert not set(first) & set(descendants(here.started.process.pid))
    here.sync("a2", own__part="WORD = 'new-part'\n", own__more="")
    here.until(f"{START}new-part new-helper data")
    here.sync("a3", train=TRAIN.replace("step {step}", "again step {step}"))
    here.until(f"again {START}new-part new-helper data")
    here.sync("a4", own__part="WORD = 'two-part'\n")
    here.until(f"again {START}two-part new-helper data")
    assert (here.image / "own/part.py").read_text() == IMAGE["own/part.py"]
    assert json.loads((here.code / "state.json").read_text())["state"] == "started"


@pytest.mark.long
@pytest.mark.parametrize(("option", "stays"), [((), True), (("--max-restarts=3",), False)])
def test_torchrun_stays_when_its_ranks_change(
    option: tuple[str, ...], stays: bool, pod: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks are killed, and it starts others, which take the changed file. An edit costs no restart of the job's.

    With a limit of the command's own, the whole command starts again. So it does after a failure.
    """
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    monkeypatch.setattr(Pod, "SHELL", False)
    monkeypatch.setattr(Pod, "VARIABLES", {"PET_MAX_RESTARTS": "0"})
    here = pod(torchrun, *option, "--standalone", "--nproc-per-node=2", "train.py")
    here.until(f"{START}old-part old-helper data")
    launcher = _children(here.started.process.pid)
    for number in range(2 if stays else 1):
        here.sync(f"a{number}", own__part=f"WORD = 'part-{number}'\n")
        here.until(f"{START}part-{number} old-helper data")
        assert (_children(here.started.process.pid) == launcher) == stays
    assert not (here.started.run / "failures").exists()
    if stays:
        here.sync("b1", helper="raise ValueError('misspelt')\n")
        here.started.until(lambda: here.answer("state")["state"]["state"] == "failed", 120)
        here.sync("b2", helper="def parts():\n    return 'two-helper'\n")
        here.until(f"{START}part-1 two-helper data")


SHOW = """\
import atexit, json, os, pickle, random, signal, sys, threading
known = "torch" in sys.modules
KEPT = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS PYTHONPATH TRAINYARD_RUN".split()
import numpy, torch

class Own:
    pass

signals = [str(signal.getsignal(one)) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD)]
variables = sorted((name, value) for name, value in os.environ.items() if name in KEPT)
main = sys.modules["__main__"]
same = [sys.argv, sys.path, __name__, __file__, main.__file__, type(pickle.loads(pickle.dumps(Own()))) is Own, signals]
same += [variables, torch.get_num_threads(), os.getcwd(), threading.current_thread() is threading.main_thread()]
name = os.environ["OUTPUT"] + os.environ["RANK"]
seen = {"same": same, "forked": known, "random": [random.random(), numpy.random.rand(), torch.rand(()).item()]}
atexit.register(lambda: open(name, "w").write(json.dumps(seen)))
if sys.argv[-1] == "fail":
    raise ValueError("misspelt")
sys.exit(0)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code"),
    [(("own/show.py", "a b", "fail"), None), (("-m", "own.show", "--x=1"), 0)],
    ids=["script", "module"],
)
def test_a_forked_rank_is_as_torchrun_starts_it(
    words: tuple[str, ...], code: int | None, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control starts another program, which is the same Python."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    found, errors = {}, {}
    for name, variables in (("forked", {}), ("control", {"PYTHON_EXEC": sys.executable})):
        image = tmp_path / name / "image"
        (image / "own").mkdir(parents=True)
        (tmp_path / name / "code").mkdir()
        (image / "own/show.py").write_text(SHOW)
        monkeypatch.chdir(image)
        output, place = tmp_path / name / "out", {"TRAINYARD_CODE": str(tmp_path / name / "code")}
        options = ("--standalone", "--nproc-per-node=2", "--max-restarts=0")
        started = start(torchrun, *options, *words, OUTPUT=str(output), **place, **variables)
        if code is None:
            state = tmp_path / name / "code/state.json"
            started.until(lambda: state.exists() and "failed" in state.read_text(), 90)  # noqa: B023
            assert "ValueError: misspelt" in started.end()["message"]
            started.process.send_signal(signal.SIGTERM)
        assert started.wait() == (code if code is not None else started.process.returncode)
        shown = [json.loads(Path(f"{output}{rank}").read_text()) for rank in (0, 1)]
        assert [one["forked"] for one in shown] == [name == "forked"] * 2
        assert not set(shown[0]["random"]) & set(shown[1]["random"])
        found[name] = json.dumps([one["same"] for one in shown]).replace(str(tmp_path / name), "")
        assert ("each rank imports for itself" in started.err) == (name == "control")
        trace = started.err.partition("ValueError: misspelt")[0].replace(str(tmp_path / name), "")
        errors[name] = {line for line in trace.splitlines() if line.startswith("  File")}
    assert found["forked"] == found["control"]
    assert errors["forked"] == errors["control"]


@pytest.mark.parametrize(("name", "known"), [("installed_here", True), ("starts_a_thread", False)])
def test_what_the_fork_server_imports(name: str, known: bool, tmp_path: Path) -> None:
    """What is installed, unless forking is not safe with it; never a file of the user's."""
    base = {**os.environ, "PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    ask = "import site; print(site.getusersitepackages())"
    place = Path(subprocess.run([sys.executable, "-c", ask], env=base, capture_output=True, text=True).stdout.strip())
    place.mkdir(parents=True)
    (place / "installed_here.py").write_text("")
    (place / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "imports").write_text(f"mine\nmissing.part\n{name}\n")
    code = (
        f"import sys; sys.path.append({str(place)!r}); import training.agent.installed as here, signal\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        f"print([n in sys.modules for n in ('torch._dynamo', 'mine', {name!r})])\n"
        "here.record()\n"
        "for _ in range(2):\n    try:\n        import looked_for\n    except ImportError:\n        pass\n"
    )
    server = {"TRAINYARD_TASK": "training.agent.installed", "TRAINYARD_CODE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**base, **server}, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == str([True, False, known])
    assert (tmp_path / "imports").read_text().split().count("looked_for") == 1, "a script may look in each step"


def _children(pid: int) -> list[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


def test_a_command_that_fails_waits_for_its_next_version(pod: Callable[..., Pod]) -> None:
    here = pod()
    here.until(START)
    here.sync("a1", helper="raise ValueError('misspelt')\n")
    here.started.until(lambda: here.answer("state")["state"]["state"] == "failed", 120)
    assert here.started.end()["class"] == "error"
    here.sync("a2", helper="def parts():\n    return 'right'\n")
    here.until(f"{START}old-part right data")
    here.started.process.send_signal(signal.SIGTERM)
    assert here.started.wait() == 143
    assert here.started.end()["class"] == "drained"
    assert "waiting 30 min for another version (yard job sync)" in here.started.err
    assert here.started.err.count("another version of the command is here") == 1


def test_a_command_that_lost_its_peers_starts_again(pod: Callable[..., Pod]) -> None:
    """As the kubelet would start its container again, if the pod ended. Sync reaches it too."""
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:38342"
    here = pod()
    here.until(START)
    here.sync("a1", helper=f"raise RuntimeError('{lost.partition(': ')[2]}')\n")
    said = here.started.run / "attempts.jsonl"
    here.started.until(lambda: said.exists() and len(said.read_text().splitlines()) > 2, 120)
    assert {json.loads(line)["class"] for line in said.read_text().splitlines()} <= {
        "lost peer",
        "communication",
    }
    assert "failed" not in _state(here)
    here.sync("a2", helper="def parts():\n    return 'right'\n")
    here.until(f"{START}old-part right data")


def test_control_without_the_directory_a_failed_command_ends_the_pod(start: Start, tmp_path: Path) -> None:
    started = start("sh", "-c", "exit 3", TRAINYARD_CODE=str(tmp_path / "missing"))
    assert started.wait() != 0
    assert "waiting" not in started.err


@pytest.mark.parametrize("state", [development.STARTED, development.FAILED])
def test_a_request_that_comes_while_the_command_starts_or_fails_is_met_next(state: str, tmp_path: Path) -> None:
    code = development.Code(tmp_path)
    (tmp_path / "request.json").write_text(json.dumps({"id": "a1", "wanted": development.STOPPED}))
    code.answer(state)
    assert code.asks_to_stop()
    assert json.loads((tmp_path / "state.json").read_text())["id"] == ""
    code.answer(development.STOPPED)
    assert not code.asks_to_stop()
    assert json.loads((tmp_path / "state.json").read_text())["id"] == "a1"


def test_a_pod_that_waits_ends_when_it_is_asked_to(pod: Callable[..., Pod]) -> None:
    here = pod(sys.executable, "-c", "raise SystemExit(3)")
    here.started.until(lambda: (here.code / "state.json").exists() and "failed" in _state(here), 120)
    here.started.process.send_signal(signal.SIGTERM)
    assert here.started.wait() != 0


def _state(here: Pod) -> str:
    return (here.code / "state.json").read_text()


@pytest.mark.parametrize("version", sorted(interpreters()))
def test_the_loop_runs_on_each_python(version: str, pod: Callable[..., Pod]) -> None:
    here = pod(python=interpreters()[version])
    here.until(START)
    here.sync("a1", helper="def parts():\n    return 'new-helper'\n")
    here.until(f"{START}old-part new-helper data")


@pytest.mark.parametrize(
    ("action", "given", "message"),
    [
        ("stage", {"id": "a", "files": {"../a.py": ""}}, "not the name of a Python file: '../a.py'"),
        ("stage", {"id": "a", "files": {"/etc/a.py": ""}}, "not the name of a Python file"),
        ("stage", {"id": "a", "files": {"a/./b.py": ""}}, "not the name of a Python file"),
        ("stage", {"id": "a", "files": {"run.sh": ""}}, "not the name of a Python file"),
        ("stage", {"id": "../a", "files": {}}, "not an id"),
        ("digests", {"names": ["a/../../b.py"]}, "not the name of a Python file"),
        ("stop", {"id": "a"}, "process 1 has not stopped its command"),
    ],
)
def test_what_is_refused_in_the_pod(
    action: str,
    given: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setattr(code_writer, "SECONDS", 0.2)
    said = code_writer.answer(str(tmp_path), json.dumps({"action": action, **given}))
    assert message in said["error"]
    assert {path.name for path in tmp_path.rglob("*.py")} == set()


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"action": "rm"}', '{"action": "stop"}', "[" * 9000])
def test_a_strange_question_is_answered(line: str, tmp_path: Path) -> None:
    assert "error" in code_writer.answer(str(tmp_path), line)
    assert "--dev" in code_writer.answer("", line)["error"]
