"""Scripts that cannot be proven, or that misbehave: one clear sentence, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

PYTHON = sys.executable
YARD = Path(PYTHON).parent / "yard"


@dataclass
class Place:
    """A directory with a script, and what `yard prove` says there. `mark` is in the environment of its processes."""

    directory: Path
    temporary: Path
    mark: str

    def write(self, text: str, name: str = "train.py") -> None:
        (self.directory / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def words(self, *options: str, command: tuple[str, ...] = ()) -> list[str]:
        return [str(YARD), "prove", "--env", f"MARK={self.mark}", *options, "--", *(command or (PYTHON, "train.py"))]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary)}

    def prove(self, *options: str, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words("--only", "trains", *options, command=command), cwd=self.directory, env=self.environment(),
            capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert self.left_in_the_end() == []
        return done

    def processes(self) -> list[int]:
        """Return the processes that carry the mark in their environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"MARK={self.mark}".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Return what a proof left: processes, mounts and temporary files."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.temporary) in line]
        return [*map(str, self.processes()), *mounts, *(path.name for path in self.temporary.iterdir())]

    def left_in_the_end(self) -> list[str]:
        """The same, once the kernel had time to end what was killed."""
        limit = time.monotonic() + 60
        while (found := self.left()) and time.monotonic() < limit:
            time.sleep(0.1)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "work", tmp_path / "tmp", uuid.uuid4().hex)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ((PYTHON, "trian.py"), "trian.py: no such file in", "did you mean train.py?"),
        (("no-such-launcher", "train.py"), "no-such-launcher: no such program", "the command is what you would type"),
        (("train.py",), "train.py: is a script, not a program", "yard prove -- python train.py"),
        (("./train.py",), "./train.py: cannot be executed", "python ./train.py"),
    ],
)
def test_a_command_that_cannot_start(words: tuple[str, ...], message: str, hint: str, place: Place) -> None:
    place.write("pass")
    done = place.prove(command=words)
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "tranis"], "did you mean trains?"),
        (["--env", "NAME"], "--env NAME: write it as NAME=VALUE"),
        (["--workdir", "nowhere"], "nowhere: no such directory"),
        (["--resume", "torchrun 'train.py"], '--resume "torchrun \'train.py": No closing quotation'),
        (["--resume", " "], '--resume "": give the command of a restart'),
        (["--link", "/no/data"], "--link /no/data: no such file or directory"),
        (["--kill-at", "30"], "--kill-at 30: each run ends after 30 steps"),
        (["--out", "/proc/none/proof.json"], "--out /proc/none/proof.json: No such file or directory"),
        (["--report", "train.py/proof.html"], "--report train.py/proof.html: Not a directory"),
        (["--set", "train.steps=3"], "a COMMAND takes --nodes and --nproc"),
        (["-n", "team-a"], "--namespace and --context name a cluster: --submit proves there"),
        (["--submit"], "--submit takes a CELL or -f FILE, and neither --workdir"),
        (["-f", "job.yaml"], "give -f FILE, a CELL or a COMMAND: only one of them"),
    ],
)
def test_options_that_do_not_fit(options: list[str], message: str, place: Place) -> None:
    """A refused command leaves nothing behind, also where its results would get a directory of their own."""
    place.write("pass")
    done = place.prove("--out", "made/for/proof.json", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (place.directory / "made").exists()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("input('how many steps? ')", [], "the script reads standard input, which is empty here"),
        ("import time; time.sleep(900)", ["--timeout", "2"], "it did not end within 2 s"),
        (
            "import urllib.request as one; one.urlopen('http://files.example.com/weights')",
            [],
            "--network gives it to them",
        ),
        ("import no_torch_here_either", [], "No module named 'no_torch_here_either'"),
        ("def broken(:", [], "SyntaxError"),
        ("print('done')", [], "the probe was not loaded by any process of the command"),
    ],
    ids=["stdin", "endless", "network", "module", "syntax", "nothing"],
)
def test_a_script_that_cannot_be_proven(text: str, options: list[str], message: str, place: Place) -> None:
    place.write(text)
    done = place.prove(*options)
    assert done.returncode in (1, 3), done.stdout + done.stderr
    assert message in done.stdout, done.stdout


def test_a_script_that_ends_well_and_trains_nothing(place: Place) -> None:
    place.write("import torch")
    done = place.prove()
    assert done.returncode == 1
    assert "FAIL: 1. It trains: the script ended with exit code 0 and took no optimizer step" in done.stdout


DAEMON = """
    import os, time
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            open("started", "w").close()
            time.sleep(600)
        os._exit(0)
    os.waitpid(first, 0)
    while not os.path.exists("started"):
        time.sleep(0.01)
"""


def test_a_daemon_is_ended(place: Place) -> None:
    """Control: without a proof it lives on."""
    place.write(DAEMON)
    environment = {**os.environ, "MARK": place.mark}
    subprocess.run([PYTHON, "train.py"], cwd=place.directory, env=environment, check=True)
    alive = place.processes()
    assert len(alive) == 1
    os.kill(alive[0], signal.SIGKILL)
    (place.directory / "started").unlink()
    assert "the probe was not loaded by any process" in place.prove().stdout  # and no process is left


def test_the_users_files_stay_as_they_are(place: Place) -> None:
    """Control: the script does delete and overwrite when it runs by itself."""
    place.write(
        """
        import os, shutil
        open("checkpoint.pt", "w").write("mine")
        shutil.rmtree("data")
        os.makedirs("new")
        """
    )
    (place.directory / "data").mkdir()
    (place.directory / "data/corpus.txt").write_text("words")
    (place.directory / "checkpoint.pt").write_text("the user's")
    before = sorted(str(path) for path in place.directory.rglob("*"))
    place.prove()
    assert sorted(str(path) for path in place.directory.rglob("*")) == before
    assert (place.directory / "checkpoint.pt").read_text() == "the user's"
    subprocess.run([PYTHON, "train.py"], cwd=place.directory, check=True)
    assert sorted(str(path) for path in place.directory.rglob("*")) != before


def test_what_a_script_prints_is_data(place: Place) -> None:
    token = "hf_" + "a1B2" * 9
    place.write(f"""raise ValueError("\\x1b]0;title\\x07 token={token} \\u202e")""")
    done = place.prove("--json")
    answer = json.loads(done.stdout)
    assert "ValueError" in json.dumps(answer)
    assert token not in done.stdout + done.stderr
    done = place.prove()
    assert not any(one in done.stdout + done.stderr for one in (token, "\x1b", "\x07", "\u202e"))


def test_the_callers_environment_is_not_passed_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the caller")
    place.write("import os; raise ValueError(' '.join(sorted(os.environ)))")
    done = place.prove("--env", "GIVEN=1")
    said = done.stdout
    assert "GIVEN" in said
    assert "PATH" in said
    assert "AWS" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_proof_leaves_nothing(number: signal.Signals, place: Place) -> None:
    place.write("import time; time.sleep(600)")
    with subprocess.Popen(
        place.words(), cwd=place.directory, env=place.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        limit = time.monotonic() + 120
        while not place.processes() and time.monotonic() < limit:
            time.sleep(0.05)
        assert place.processes()
        process.send_signal(number)
        _, errors = process.communicate(timeout=180)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert place.left_in_the_end() == []


UNSEEN = {
    "functional": """
        import torch
        model = torch.nn.Linear(8, 8)
        weights = {name: one.detach() for name, one in model.named_parameters()}

        def loss(weights, batch):
            return torch.func.functional_call(model, weights, (batch,)).square().mean()

        for _ in range(4):
            gradients, _ = torch.func.grad_and_value(loss)(weights, torch.randn(4, 8))
            weights = {name: one - 0.1 * gradients[name] for name, one in weights.items()}
        """,
    "compiled": """
        import torch
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))

        @torch.compile
        def step():
            optimizer.step()

        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            step()
        """,
    "backward": """
        import torch
        model = torch.nn.Linear(8, 8)
        optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}

        def hook(one):
            optimizers[one].step()
            optimizers[one].zero_grad()

        for one in model.parameters():
            one.register_post_accumulate_grad_hook(hook)
        for _ in range(4):
            model(torch.randn(4, 8)).pow(2).mean().backward()
        """,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("functional", "gradients were computed 4 times, and no optimizer of torch took a step"),
        ("compiled", "gradients were computed 4 times, and no optimizer of torch took a step"),
        ("backward", "an optimizer steps inside backward, where steps are not followed"),
    ],
)
def test_an_optimizer_that_is_not_seen_is_unknown(name: str, reason: str, place: Place) -> None:
    place.write(UNSEEN[name])
    done = place.prove()
    assert done.returncode == 3
    assert f"CANNOT TELL: 1. It trains: {reason}" in done.stdout
    assert "stand-in" not in done.stdout + done.stderr
