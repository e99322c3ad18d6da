"""The runner of a proof on real processes: faults happen, kept files survive and others do not, nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.prove import made
from tests.prove.parts import ROOT
from training.prove import faults, plan, records, runner, view, watch
from training.prove.plan import Fault, Plan, Start
from training.prove.records import Outcome

FAKE = str(ROOT / "tests/prove/fake_rank.py")
KINDS = {"killed": "kill", "term": "terminate", "exception": "exception", "hang": "hang"}
VIEWS = ["overlay", "copy"]


@pytest.fixture(params=VIEWS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    if name == "copy":
        monkeypatch.setattr(view, "_bases", lambda out, source: [])
    elif subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("user namespaces are not allowed here: set kernel.unprivileged_userns_clone=1")
    return name


def carried_out(
    tmp_path: Path,
    names: list[str],
    *options: str,
    command: list[str] | None = None,
    say: runner.Say = lambda row: None,
    **values: Any,
) -> dict[str, Outcome]:
    """Carry out starts of the fake rank in a directory, and return what was seen of each."""
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir(exist_ok=True)
    out.mkdir()
    words = command or [sys.executable, FAKE, *options]
    sources = {"resumed": "killed"}
    starts = [
        Start(name, [1], words, sources.get(name), Fault(KINDS[name]) if name in KINDS else None) for name in names
    ]
    given = {"keep": [str(work / "kept")], "timeout": 60.0, **values}
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    runner.run(Plan(starts, str(work), variables, 30, **given), out, say)
    return {name: records.read_outcome(out / name) for name in names}


def log(tmp_path: Path, name: str) -> str:
    return (tmp_path / "out" / name / "log").read_text(encoding="utf-8")


def test_a_restart_finds_what_was_kept_and_nothing_else(kind: str, tmp_path: Path) -> None:
    seen = carried_out(tmp_path, ["whole", "killed", "resumed"])
    assert {one.view for one in seen.values()} == {kind}
    assert (seen["whole"].ended_by, seen["whole"].exit_code) == ("itself", 0)
    assert seen["killed"].ended_by == "fault"
    assert seen["killed"].fault_step == 5  # between the saves after steps 3 and 6
    assert log(tmp_path, "whole").startswith("first 0 scratch False")
    assert log(tmp_path, "resumed").startswith("first 3 scratch False")
    assert {(Path(one.path).name, one.kept) for one in seen["whole"].files} == {("step", True), ("scratch", False)}
    assert list((tmp_path / "work").iterdir()) == []  # the user's directory is as it was
    assert not list((tmp_path / "out/views").iterdir())


@pytest.mark.parametrize("kind", ["overlay"], indirect=True)
def test_later_starts_find_what_python_compiled(kind: str, tmp_path: Path) -> None:
    """In what is kept and elsewhere, as an image has it. The user's directories stay as they are."""
    places = [tmp_path / "work/kept", tmp_path / "elsewhere"]
    for number, place in enumerate(places):
        place.mkdir(parents=True)
        (place / f"module_{number}.py").touch()
    text = f"""
        import importlib.util, os, sys
        sys.path += {[str(place) for place in places]}
        specs = [importlib.util.find_spec(f"module_{{number}}") for number in (0, 1)]
        print([os.path.exists(spec.cached) for spec in specs])
        sys.dont_write_bytecode = False
        import module_0, module_1
        """
    seen = carried_out(tmp_path, ["whole", "again"], command=[sys.executable, "-c", textwrap.dedent(text)])
    assert {one.view for one in seen.values()} == {kind}
    assert [log(tmp_path, name) for name in seen] == ["[False, False]\n", "[True, True]\n"]
    assert [one.files for one in seen.values()] == [[], []]
    assert sorted(path.name for place in places for path in place.iterdir()) == ["module_0.py", "module_1.py"]


def test_signals_and_exceptions_end_a_start(kind: str, tmp_path: Path) -> None:
    seen = carried_out(tmp_path, ["whole", "term", "exception"])
    assert (seen["term"].ended_by, seen["term"].exit_code) == ("itself", 143)
    assert seen["term"].fault_seconds is not None
    assert (seen["exception"].ended_by, seen["exception"].exit_code) == ("itself", 1)
    assert "RuntimeError: planted" in log(tmp_path, "exception")


def test_other_starts_run_beside_a_blocked_rank(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where each start has a network of its own: the copies of this machine share one."""
    monkeypatch.setattr(runner, "ENDING", 0.0)
    monkeypatch.setattr(runner, "ACCELERATORS", ())
    rows: list[dict[str, Any]] = []
    names = ["whole", "hang", "exception"]
    seen = carried_out(tmp_path, names, "meet", say=rows.append, nodes=2, hang_timeout=3.0)
    assert (seen["hang"].ended_by, seen["hang"].view) == ("timeout", kind)
    assert seen["exception"].ended_by == "itself"
    moments = [(row["start"], row["state"]) for row in rows]
    beside = moments.index(("exception", "starting")) < moments.index(("hang", "ended"))
    assert beside is (kind == "overlay")


def test_a_stopped_runner_ends_the_start_beside_too(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    words = [sys.executable, FAKE, "meet"]
    starts = [
        Start("whole", [1], words), Start("hang", [8], words, fault=Fault("hang")),
        Start("term", [7], [*words, "deaf"], fault=Fault("terminate")),
    ]  # fmt: skip
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    plan.write(Plan(starts, str(work), variables, 30, nodes=2, keep=[str(work / "kept")]), tmp_path / "plan.json")
    command = [sys.executable, "-I", str(ROOT / "training/prove/__main__.py"), str(tmp_path / "plan.json"), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for name, seconds in (("hang", 120.0), ("term", 5.0)):  # the second one waits for its turn on some machines
            limit = time.monotonic() + seconds
            while not list(out.glob(f"{name}/rank-*")) and time.monotonic() < limit:
                time.sleep(0.02)
        assert list(out.glob("hang/rank-*"))
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    marked = f"{out}".encode()
    limit = time.monotonic() + 60
    while left := [path for path in Path("/proc").glob("[0-9]*/environ") if marked in _content(path)]:
        assert time.monotonic() < limit, left
        time.sleep(0.1)
    assert not list((out / "views").iterdir())


def _content(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


LATE = """
    import os, sys, time
    from pathlib import Path
    from training.prove.records import Begin, End, Step, Writer
    rank, out = int(os.environ["NODE_RANK"]), Path(os.environ["TRAINYARD_PROVE"]).parent

    def ended(other):
        return any('"reason": "steps"' in one.read_text() for one in out.glob(f"rank-{other}-*"))

    limit = time.monotonic() + 50
    while rank == 1 and not ended(0) and time.monotonic() < limit:
        time.sleep(0.02)
    time.sleep(0.8 if rank else 2.0)
    writer = Writer(out / f"rank-{rank}-{os.getpid()}.jsonl")
    writer.write(Begin(rank, 0, 2, rank, os.getpid(), [], "3"))
    writer.write(Step(1, 0, "SGD", "a", "b", "c", "d", {}, [0.1], None, 0.01))
    writer.write(End(1, "steps"))
    while not ended(1 - rank) and time.monotonic() < limit:
        time.sleep(0.02)
    """


def test_a_rank_that_starts_late_takes_its_steps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that do not wait for each other differ by their time to start, which is long on a busy machine."""
    monkeypatch.setattr(runner, "DONE_WAIT", 0.1)
    carried_out(tmp_path, ["whole"], command=[sys.executable, "-c", textwrap.dedent(LATE)], nodes=2)
    assert {rank for rank, _ in records.ranks(tmp_path / "out/whole")} == {0, 1}


def test_the_grace_period_ends_by_a_kill(tmp_path: Path) -> None:
    seen = carried_out(tmp_path, ["whole", "term"], "deaf", grace=1.0)
    assert (seen["term"].ended_by, seen["term"].reason) == ("timeout", "it did not end within 1 s of SIGTERM")


@pytest.mark.parametrize(
    ("text", "values", "ended_by", "reason"),
    [
        ("import time; time.sleep(600)", {"timeout": 1.0}, "timeout", "it did not end within 1 s"),
        (
            "import time; open('kept/a', 'wb').write(b'0' * (30 << 20)); time.sleep(600)",
            {"disk": 10 << 20},
            "disk",
            "it wrote more than 0.0 GiB",
        ),
    ],
)
def test_bounds_end_a_start(
    text: str, values: dict[str, Any], ended_by: str, reason: str, kind: str, tmp_path: Path
) -> None:
    text = f"import os; os.makedirs('kept', exist_ok=True); {text}"
    seen = carried_out(tmp_path, ["whole"], command=[sys.executable, "-c", text], **values)
    assert (seen["whole"].ended_by, seen["whole"].reason) == (ended_by, reason)


def test_what_cannot_start_or_is_pointless_is_said(tmp_path: Path) -> None:
    seen = carried_out(tmp_path, ["whole", "killed", "resumed"], "no-saves")
    assert [one.ended_by for one in seen.values()] == ["itself", "skipped", "skipped"]
    assert {seen[name].reason for name in ("killed", "resumed")} == {"no save in 9 steps"}
    (tmp_path / "other").mkdir()
    missing = carried_out(tmp_path / "other", ["whole"], command=["/no/such/program"])
    assert missing["whole"].exit_code == 127


def test_nodes_share_a_port_and_what_is_kept(tmp_path: Path) -> None:
    carried_out(tmp_path, ["whole"], nodes=2)
    said = log(tmp_path, "whole")
    found = sorted(re.findall(r"node (\d) port (\d+)", said))
    assert [node for node, _ in found] == ["0", "1"], said
    assert len({port for _, port in found}) == 1


def test_secrets_in_files_are_found(kind: str, tmp_path: Path) -> None:
    text = """if True:
        import os
        os.makedirs("kept", exist_ok=True)
        open("kept/log", "w").write("key tok_12345678")
        open("b", "w").write("x")
    """
    seen = carried_out(tmp_path, ["whole"], command=[sys.executable, "-c", text], secrets={"a token": "tok_[0-9]{8}"})
    assert {Path(one.path).name: one.secret for one in seen["whole"].files} == {"log": "a token", "b": ""}


def test_a_copy_refuses_to_write_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the view does write, to its own layer. The user's file is as it was in both."""
    other = tmp_path / "other.txt"
    other.write_text("the user's")
    text = f"open({str(other)!r}, 'w').write('changed'); print(open({str(other)!r}).read())"
    (tmp_path / "control").mkdir()
    seen = carried_out(tmp_path / "control", ["whole"], command=[sys.executable, "-c", text])
    if seen["whole"].view == "overlay":
        assert log(tmp_path / "control", "whole") == "changed\n"
        assert other.read_text() == "the user's"
    monkeypatch.setattr(view, "_bases", lambda out, source: [])
    seen = carried_out(tmp_path, ["whole"], command=[sys.executable, "-c", text])
    assert seen["whole"].ended_by == "outside"
    assert str(other) in seen["whole"].reason
    assert other.read_text() == "the user's"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("import os; os.mkdir('a'); os.symlink('../../blobs/x', 'a/link'); os.symlink('/etc/hosts', 'hosts')", False),
        ("import os; os.rmdir('inner', dir_fd=os.open({outside!r}, os.O_RDONLY))", True),
        ("import os; os.rename('mine', {outside!r} + '/mine')", True),
    ],
)
def test_a_copy_knows_what_a_call_writes(
    text: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link may point anywhere. A directory may be named by a descriptor."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine").write_text("1")
    monkeypatch.setattr(view, "_bases", lambda out, source: [])
    command = [sys.executable, "-c", text.format(outside=str(outside))]
    seen = carried_out(tmp_path, ["whole"], command=command)
    assert seen["whole"].ended_by == ("outside" if refused else "itself"), log(tmp_path, "whole")
    assert [path.name for path in outside.iterdir()] == ["inner"]


def test_the_end_of_a_long_log_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "HEAD_BYTES", 1000)
    monkeypatch.setattr(watch, "TAIL_BYTES", 5000)
    monkeypatch.setattr(watch, "_CHUNK", 512)
    text = "import os\nfor n in range(3000): os.write(1, b'line %d\\n' % n)"
    carried_out(tmp_path, ["whole"], command=[sys.executable, "-c", text])
    said = log(tmp_path, "whole").splitlines()
    assert (said[0], said[-1]) == ("line 0", "line 2999")
    assert any(line.startswith("... ") for line in said)
    assert sum(map(len, said[-400:])) > 3000


def test_a_copy_has_what_git_does_not_ignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    for name, text in {".gitignore": "data\nbig\n", "train.txt": "1", "big": "2", "data/a": "3"}.items():
        (work / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    monkeypatch.setattr(view, "_bases", lambda out, source: [])
    text = "import os; print(sorted(os.listdir('.')), os.path.exists('data/a'))"
    carried_out(tmp_path, ["whole"], command=[sys.executable, "-c", text], link=[str(work / "data")])
    said = log(tmp_path, "whole")
    assert "train.txt" in said
    assert "big" not in said
    assert said.strip().endswith("True")


@pytest.mark.parametrize("network", [False, True])
def test_ranks_have_loopback_only(network: bool, tmp_path: Path) -> None:
    text = """
        import socket, sys
        try:
            socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()
            print("reached")
        except OSError as problem:
            print("refused", problem)
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-c", textwrap.dedent(text), port]
        seen = carried_out(tmp_path, ["whole"], command=command, network=network)
    if seen["whole"].view == "copy":
        pytest.skip("user namespaces are not allowed here: set kernel.unprivileged_userns_clone=1")
    assert log(tmp_path, "whole").startswith("reached" if network else "refused")


# The choice of the step


def recorded(tmp_path: Path, saves: tuple[int, ...], last: int = 12, ranks: int = 2) -> Path:
    """Write the records of an uninterrupted start."""
    for number in range(ranks):
        writer = records.Writer(tmp_path / f"rank-{number}-1.jsonl")
        one = made.rank(number, last=last)
        for event in one.events:
            if not isinstance(event, records.Save):
                writer.write(event)
        for place, step in enumerate(saves if number == 0 else (), 1):
            writer.write(records.Save(step, place, f"/kept/{step}", 100 * place, "torch.save", False, 0.1))
    return tmp_path


def choice(directory: Path, name: str, fault: Fault, limit: int = 12) -> Fault:
    return faults.chosen(Start(name, [1], [], None, fault), directory, limit)


def test_a_kill_comes_between_two_saves(tmp_path: Path) -> None:
    assert choice(recorded(tmp_path, (5, 10)), "killed", Fault("kill")).step == 7
    assert choice(tmp_path, "killed", Fault("kill", step=9)).step == 9
    with pytest.raises(faults.NoFault, match="ends after step 12, before step 13"):
        choice(tmp_path, "killed", Fault("kill", step=13))


@pytest.mark.parametrize(
    ("saves", "step"), [(tuple(range(1, 13)), 7), ((11,), 12), ((10,), 11), ((2,), 7), ((5, 6, 7, 8, 9, 10), 7)]
)
def test_a_kill_finds_a_checkpoint(saves: tuple[int, ...], step: int, tmp_path: Path) -> None:
    """Also where each step is saved: the kill comes before the save of its own step."""
    assert choice(recorded(tmp_path, saves), "killed", Fault("kill")).step == step


def test_data_that_is_saved_before_the_first_step_is_no_checkpoint(tmp_path: Path) -> None:
    assert choice(recorded(tmp_path, (0, 9)), "killed", Fault("kill")).step == 10
    assert choice(tmp_path, "torn-first", Fault("torn-save")).save == 2
    (tmp_path / "other").mkdir()
    with pytest.raises(faults.NoFault, match="no save in 12 steps"):
        choice(recorded(tmp_path / "other", (0,)), "killed", Fault("kill"))


def test_a_kill_comes_late_where_no_rank_saves_the_checkpoints(tmp_path: Path) -> None:
    """A process that a rank starts does it. Its saves are not seen, and none of them can be torn."""
    files = [records.FoundFile("/kept/step-5.pt", 1000, True)]
    records.write_outcome(recorded(tmp_path, ()), Outcome("whole", "itself", exit_code=0, files=files))
    assert choice(tmp_path, "killed", Fault("kill")).step == 10
    with pytest.raises(faults.NoFault, match="no save can be interrupted"):
        choice(tmp_path, "torn-first", Fault("torn-save"))


def test_one_save_at_the_end_is_too_late_for_a_kill(tmp_path: Path) -> None:
    with pytest.raises(faults.NoFault, match="the first save comes after step 12, which is the last one"):
        choice(recorded(tmp_path, (12,)), "killed", Fault("kill"))


def test_torn_saves_are_the_first_and_a_later_one(tmp_path: Path) -> None:
    assert choice(recorded(tmp_path, (3, 6, 9)), "torn-first", Fault("torn-save")).save == 1
    assert choice(tmp_path, "torn-later", Fault("torn-save")).save == 3


def test_one_save_has_no_later_one(tmp_path: Path) -> None:
    with pytest.raises(faults.NoFault, match="only one checkpoint was written in 12 steps"):
        choice(recorded(tmp_path, (6,)), "torn-later", Fault("torn-save"))


def test_without_a_save_nothing_is_killed(tmp_path: Path) -> None:
    with pytest.raises(faults.NoFault, match="no save in 12 steps"):
        choice(recorded(tmp_path, ()), "killed", Fault("kill"))


def test_a_rank_alone_cannot_hang_the_others(tmp_path: Path) -> None:
    with pytest.raises(faults.NoFault, match="no other rank waits for a single one"):
        choice(recorded(tmp_path, (5,), ranks=1), "hang", Fault("hang"))
    assert choice(tmp_path, "exception", Fault("exception")).rank == 0


def test_a_failure_comes_in_another_rank_than_0(tmp_path: Path) -> None:
    found = choice(recorded(tmp_path, ()), "exception", Fault("exception"))
    assert (found.rank, found.step) == (1, 6)


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not Path("/usr/bin/python3").exists(),
    reason="needs root, setpriv and /usr/bin/python3: apt install util-linux python3",
)
def test_an_ordinary_user_gets_a_view(tmp_path: Path) -> None:
    """The runner and a rank as user 65534, on a Python that is not that of this environment."""
    place = Path(tempfile.mkdtemp(prefix="prove-user-"))
    try:
        shutil.copytree(ROOT / "training/prove", place / "training/prove")
        shutil.copy(FAKE, place / "fake_rank.py")
        (place / "training/__init__.py").touch()
        for name in ("work", "out"):
            (place / name).mkdir()
        words = ["/usr/bin/python3", str(place / "fake_rank.py")]
        starts = [Start("whole", [1], words), Start("killed", [5], words, fault=Fault("kill"))]
        variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        made_plan = Plan(starts, str(place / "work"), variables, 30, keep=[str(place / "work/kept")], timeout=60.0)
        plan_file = place / "plan.json"
        plan.write(made_plan, plan_file)
        subprocess.run(["chown", "-R", "65534:65534", str(place)], check=True)
        main = str(place / "training/prove/__main__.py")
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-I", main,
             str(plan_file), str(place / "out")],
            capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        seen = {name: records.read_outcome(place / "out" / name) for name in ("whole", "killed")}
        assert (seen["whole"].exit_code, seen["killed"].ended_by) == (0, "fault")
        assert list((place / "work").iterdir()) == []
        assert {(Path(one.path).name, one.kept) for one in seen["whole"].files} == {("step", True), ("scratch", False)}
    finally:
        shutil.rmtree(place)
