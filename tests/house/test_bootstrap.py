"""Set-up in a small copy of the house: real venv, real pip and uv, real hashes, no network.

The copy's lock names one package, setuptools, built into a wheel from what is installed here.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tools import bootstrap

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "trainyard"
version = "0"

[project.scripts]
yard = "tools.cli:main"

[tool.setuptools]
packages = ["tools"]
"""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory that holds one wheel: the installed setuptools, packed again."""
    directory = tmp_path_factory.mktemp("wheels")
    found = distribution("setuptools")
    wheel = directory / f"setuptools-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in found.files or []:
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and file.suffix != ".pyc" and path.is_file():
                archive.write(path, str(file))
    return directory


class Copy:
    """A copy of the house that can be set up without a network."""

    def __init__(self, root: Path, wheels: Path) -> None:
        self.root, self.python = root, sys.executable
        self.programs, self.home = root.parent / "programs", root.parent / "home"
        self.programs.mkdir()
        self.home.mkdir()
        (root / "tools").mkdir(parents=True)
        source = (ROOT / "tools/bootstrap.py").read_text(encoding="utf-8")
        source, replaced = re.subn(r"(?m)^ROOM_NEEDED = .*$", "ROOM_NEEDED = {sys.platform: GIB}", source)
        assert replaced == 1, "one small wheel needs less room than torch"
        (root / "tools/bootstrap.py").write_text(source, encoding="utf-8")
        (root / "tools/__init__.py").touch()
        (root / "tools/cli.py").write_text("def main():\n    print('yard runs')\n")
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / "requirements.in").write_text("setuptools\n")
        (root / "requirements-dev.in").touch()
        (wheel,) = wheels.glob("*.whl")
        version, digest = wheel.name.split("-")[1], hashlib.sha256(wheel.read_bytes()).hexdigest()
        self.lock = root / "requirements.lock"
        self.lock.write_text(f"setuptools=={version} \\\n    --hash=sha256:{digest}\n")
        self.offline = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(wheels),
            "UV_OFFLINE": "1",
        }

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Starts the set-up; its words come on stderr."""
        command = [self.python, str(self.root / "tools/bootstrap.py")]
        env = {"PATH": str(self.programs), "HOME": str(self.home), **self.offline, **environment}
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)

    def set_up(self, **environment: str) -> tuple[int, str]:
        """Runs the set-up to its end; returns exit code and what it said."""
        process = self.start(**environment)
        said = process.communicate(timeout=100)[1]
        return process.returncode, said

    def give_uv(self) -> None:
        """Puts the real uv on PATH."""
        (self.programs / "uv").unlink(missing_ok=True)
        (self.programs / "uv").symlink_to(Path(sys.executable).parent / "uv")

    def lock_uv(self, script: str) -> None:
        """Adds a uv to the lock and to what can be installed: a shell script that says what it is told to."""
        wheels = self.root.parent / "more-wheels"
        wheels.mkdir()
        wheel = wheels / "uv-9.9-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            program = zipfile.ZipInfo("uv-9.9.data/scripts/uv")
            program.external_attr = 0o100755 << 16
            archive.writestr(program, f"#!/bin/sh\n{script}\n")
            archive.writestr("uv-9.9.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 9.9\n")
            tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            archive.writestr("uv-9.9.dist-info/WHEEL", tag)
            archive.writestr("uv-9.9.dist-info/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        self.lock.write_text(self.lock.read_text() + f"uv==9.9 \\\n    --hash=sha256:{digest}\n")
        self.offline["PIP_FIND_LINKS"] += f" {wheels}"
        del self.offline["UV_NO_INDEX"], self.offline["UV_FIND_LINKS"]

    def let_uv_hang(self) -> Path:
        """Puts a uv on PATH that never ends; returns the file that will hold its process id once it runs."""
        started, uv = self.root.parent / "started", self.programs / "uv"
        uv.unlink()
        note = f"echo $$ > {started}.new && /bin/mv {started}.new {started}"
        uv.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{note}\nexec /bin/sleep 60\n')
        uv.chmod(0o755)
        return started

    def stamp(self) -> dict[str, str]:
        """Returns what the stamp says."""
        stamp: dict[str, str] = json.loads((self.root / ".venv/trainyard.json").read_text())
        return stamp

    def yard(self) -> str:
        """Runs the installed yard."""
        return subprocess.check_output([self.root / ".venv/bin/yard"], text=True, timeout=30).strip()


@pytest.fixture
def with_uv(tmp_path: Path, wheels: Path) -> Copy:
    """Returns a copy on a machine that has uv."""
    copy = Copy(tmp_path / "checkout", wheels)
    copy.give_uv()
    return copy


@pytest.fixture
def with_pip(tmp_path: Path, wheels: Path) -> Copy:
    """Returns a copy on a machine that has no uv."""
    return Copy(tmp_path / "checkout", wheels)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Polls until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("machine", ["with_uv", "with_pip"])
def test_first_run_installs_and_second_does_nothing(machine: str, request: pytest.FixtureRequest) -> None:
    """With uv and with plain pip; nothing lands in HOME, and no downloads are left."""
    copy: Copy = request.getfixturevalue(machine)
    code, said = copy.set_up()
    assert code == 0, said
    assert f"and {machine.removeprefix('with_')};" in said
    assert copy.yard() == "yard runs"
    assert copy.stamp()["state"] == "ready"
    assert list(copy.home.iterdir()) == []
    assert sorted(path.name for path in (copy.root / ".cache/setup").iterdir()) == ["install.log", "lock"]

    before = {path: path.lstat().st_mtime_ns for path in copy.root.rglob("*")}
    assert copy.set_up() == (0, "set-up: nothing to do, .venv is ready\n")
    assert {path: path.lstat().st_mtime_ns for path in copy.root.rglob("*")} == before


def test_without_uv_the_locked_one_is_fetched_and_knows_what_pip_knows(with_pip: Copy) -> None:
    """The second installer is uv, with pip's places to look."""
    calls = with_pip.root.parent / "calls"
    with_pip.lock_uv(f'echo "$@" >> {calls}\nexec {Path(sys.executable).parent / "uv"} "$@"')
    code, said = with_pip.set_up()
    assert code == 0, said
    assert len(calls.read_text().splitlines()) == 2, "the locked packages, then the checkout"
    assert with_pip.yard() == "yard runs"


@pytest.mark.long
def test_where_uv_reaches_no_index_pip_goes_on(with_pip: Copy) -> None:
    """A proxy that only pip's settings name, say."""
    with_pip.lock_uv('echo "error: Failed to fetch: x"; exit 2')
    code, said = with_pip.set_up()
    assert code == 0, said
    assert "uv does not reach the package index; pip may" in said
    assert with_pip.yard() == "yard runs"


@pytest.mark.long
def test_where_uv_fails_otherwise_it_is_the_end(with_pip: Copy) -> None:
    """A wrong hash is wrong for pip too."""
    with_pip.lock_uv('echo "error: Hash mismatch"; exit 2')
    code, said = with_pip.set_up()
    assert code == 1
    assert "a downloaded package is not the one" in said


def test_pip_settings_in_the_words_of_uv() -> None:
    """The environment counts more than a file; what is empty or means nothing to uv is left out."""
    said = (
        ":env:.index-url='https://env/simple'\n:env:.find-links=''\n:env:.timeout='60'\n"
        "global.index-url='https://file/simple'\nglobal.cert='/ca.pem'\n"
        "global.extra-index-url='\\nhttps://a/simple\\nhttps://b/simple'\nuser.find-links='/w /x'\n"
    )
    assert bootstrap.as_uv_reads(said) == {
        "UV_DEFAULT_INDEX": "https://env/simple",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/w,/x",
    }


@pytest.mark.long
def test_a_moved_checkout_is_made_anew(with_uv: Copy) -> None:
    """The old path stands in the scripts' first lines, so they must be written again."""
    assert with_uv.set_up()[0] == 0
    moved = with_uv.root.with_name("elsewhere")
    with_uv.root.rename(moved)
    with_uv.root = moved
    with pytest.raises(FileNotFoundError):
        with_uv.yard()
    code, said = with_uv.set_up()
    assert code == 0, said
    assert "making .venv" in said
    assert with_uv.yard() == "yard runs"


def test_a_changed_lock_updates_in_place(with_uv: Copy) -> None:
    """Minutes are not spent again for one changed pin; a comment for ruff changes nothing at all."""
    assert with_uv.set_up()[0] == 0
    witness = with_uv.root / ".venv/witness"
    witness.touch()
    with (with_uv.root / "pyproject.toml").open("a") as file:
        file.write("[tool.ruff]\nline-length = 90\n")
    assert "nothing to do" in with_uv.set_up()[1]
    with with_uv.lock.open("a") as file:
        file.write("# changed\n")
    code, said = with_uv.set_up()
    assert (code, "updating .venv" in said) == (0, True), said
    assert witness.exists()
    assert "nothing to do" in with_uv.set_up()[1]


@pytest.mark.long
def test_an_activated_environment_is_made_anew_from_outside(with_uv: Copy) -> None:
    """python3 on PATH is then the one in `.venv`, which goes away while it runs."""
    assert with_uv.set_up()[0] == 0
    (with_uv.root / ".venv/trainyard.json").write_text('{"state": "installing"}')
    inside = with_uv.root / ".venv/bin"
    with_uv.python = str(inside / "python3")
    code, said = with_uv.set_up(PATH=f"{inside}:{with_uv.programs}", VIRTUAL_ENV=str(inside.parent))
    assert code == 0, said
    assert with_uv.yard() == "yard runs"


def test_a_wrong_hash_is_refused(with_uv: Copy) -> None:
    """What the index serves is not what was locked: nothing is installed, and the next run tries again."""
    good = with_uv.lock.read_text()
    with_uv.lock.write_text(good[:-65] + "0" * 64 + "\n")
    code, said = with_uv.set_up()
    assert code == 1
    assert "error: a downloaded package is not the one that requirements.lock names\n  hint: " in said
    assert with_uv.stamp() == {"state": "installing"}
    assert list((with_uv.root / ".venv/lib").glob("*/site-packages/setuptools")) == []
    with_uv.lock.write_text(good)
    assert with_uv.set_up()[0] == 0


@pytest.mark.long
def test_a_killed_setup_is_made_anew_and_never_meets_its_orphan(with_uv: Copy) -> None:
    """SIGKILL leaves the installer running: the next set-up waits for it, then starts from nothing."""
    started = with_uv.let_uv_hang()
    first = with_uv.start()
    wait_for(started.exists, "the installer starts")
    first.send_signal(signal.SIGKILL)
    assert first.wait(timeout=10) == -signal.SIGKILL
    assert with_uv.stamp() == {"state": "installing"}
    rubble = with_uv.root / ".venv/rubble"
    rubble.touch()

    with_uv.give_uv()
    second = with_uv.start()
    assert second.stderr is not None
    assert "another set-up of this checkout is running" in second.stderr.readline()
    assert rubble.exists(), "the second set-up did not wait"
    os.kill(int(started.read_text()), signal.SIGKILL)
    said = second.communicate(timeout=60)[1]
    assert second.returncode == 0, said
    assert not rubble.exists()
    assert with_uv.yard() == "yard runs"


def test_interrupting_ends_the_installer_too(with_uv: Copy) -> None:
    """SIGTERM as from make: one line, code 130, no process left behind."""
    started = with_uv.let_uv_hang()
    process = with_uv.start()
    wait_for(started.exists, "the installer starts")
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert said.splitlines()[-1] == "set-up interrupted; run it again, it keeps what was downloaded"
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_two_at_once_make_one(with_uv: Copy) -> None:
    """Both end well, and only one of them installs."""
    both = [with_uv.start(), with_uv.start()]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("making .venv" in words for words in said) == 1
    assert with_uv.yard() == "yard runs"


def test_somebody_elses_environment_is_left_alone(with_uv: Copy) -> None:
    """A `.venv` that this set-up did not make is not its to delete."""
    precious = with_uv.root / ".venv/precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    code, said = with_uv.set_up()
    assert code == 2
    assert "exists and was not made by this set-up\n  hint: move it away or delete it: rm -rf .venv" in said
    assert precious.read_text() == "kept"


def interpreter(path: Path, version: str, has_pip: bool) -> str:
    """Writes a stand-in for an interpreter that answers the probe; returns its path."""
    path.write_text(f"#!/bin/sh\necho {version.replace('.', ' ')} {int(has_pip)}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty directory that is the whole PATH, on a machine whose python3 is 3.9."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path / "python3", "3.9.2", True))
    return tmp_path


def test_an_old_python_is_named_with_what_is_needed(pythons: Path) -> None:
    """The message says where and how old, and the hint what to do."""
    with pytest.raises(
        bootstrap.SetupError, match=r"Python 3\.11 to 3\.14 is needed; .*/python3 is 3\.9\.2"
    ) as caught:
        bootstrap.find_python(need_pip=False)
    assert "make PYTHON=" in caught.value.hint


def test_a_newer_python_on_the_path_is_taken(pythons: Path) -> None:
    """The newest that fits; one that is too new, and a shim that does not run, are passed over."""
    interpreter(pythons / "python3.12", "3.12.1", True)
    interpreter(pythons / "python3.13", "3.13.0", True)
    interpreter(pythons / "python3.15", "3.15.0", True)
    (pythons / "python3.14").write_text("#!/bin/sh\nexit 127\n")
    (pythons / "python3.14").chmod(0o755)
    assert bootstrap.find_python(need_pip=True).version == (3, 13, 0)


def test_a_python_without_ensurepip_will_do_only_with_uv(pythons: Path) -> None:
    """Debian's python3 without python3-venv."""
    interpreter(pythons / "python3.11", "3.11.2", False)
    assert bootstrap.find_python(need_pip=False).version == (3, 11, 2)
    with pytest.raises(bootstrap.SetupError, match="comes without ensurepip") as caught:
        bootstrap.find_python(need_pip=True)
    assert "apt install python3.11-venv" in caught.value.hint
    interpreter(pythons / "python3.12", "3.12.1", True)
    assert bootstrap.find_python(need_pip=True).version == (3, 12, 1)


def test_a_small_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The need is compared with what is free."""
    house = bootstrap.House(str(tmp_path))
    monkeypatch.setitem(bootstrap.ROOM_NEEDED, sys.platform, 1)
    bootstrap.check_room(house)
    monkeypatch.setitem(bootstrap.ROOM_NEEDED, sys.platform, 1 << 60)
    with pytest.raises(bootstrap.SetupError, match=r"GiB free at .*, about \d+ GiB needed"):
        bootstrap.check_room(house)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "disk is full",
        ),
        ("cause: failed to write to file `x.so`: No space left on device (os error 28)", "disk is full"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(': Failed to establish a new"
            " connection\nERROR: No matching distribution found for absl-py==2.5.1",
            "index cannot be reached",
        ),
        ("error: Failed to fetch: `x`\n  Caused by: dns error", "index cannot be reached"),
        (
            "hint: torch==2.15.0 has no wheels with a matching platform tag (e.g., `musllinux`)",
            "no build for this",
        ),
        ("Traceback\nValueError: odd", "the installer ended with 7: ValueError: odd"),
        ("", "the installer ended with 7: it said nothing"),
    ],
)
def test_what_installers_say_becomes_one_sentence(log: str, message: str) -> None:
    """Words of pip 23 and uv 0.13, as they were printed."""
    with pytest.raises(bootstrap.SetupError, match=message) as caught:
        bootstrap.explain(log, 7, "the.log")
    assert "the.log" in caught.value.hint


def test_an_old_python_can_read_the_file() -> None:
    """The newest construct is Python 3.7's at most; an older Python gets a sentence, not a SyntaxError."""
    source = (ROOT / "tools/bootstrap.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))
    assert "from __future__" not in source, "`annotations` is a SyntaxError before 3.7"
