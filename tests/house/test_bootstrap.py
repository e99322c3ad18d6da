"""Set-up in a small copy of the checkout, at a path with a space: real venv, pip and uv, but no network."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools import bootstrap

SOURCE = Path(__file__).resolve().parents[2] / "tools/bootstrap.py"
UV = Path(sys.executable).parent / "uv"
# The copy is built by copying a finished wheel, with a yard that prints a version.
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = "import shutil\n\ndef build_editable(to, *rest):\n    return shutil.copy('{0}', to) and '{1}'\n"
YARD = "#!python\nprint('yard, version 0')\n"


def wheel(index: Path, name: str, script: str) -> tuple[Path, str]:
    """Write a wheel with one program into a package index; return it, and its entry of a lock."""
    path = index / name / f"{name}-9.9-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    parts = {
        f"{name}-9.9.data/scripts/{name}": script,
        f"{name}-9.9.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n",
        f"{name}-9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-9.9.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for part, content in parts.items():
            entry = zipfile.ZipInfo(part)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, content)
    return path, f"{name}==9.9 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Checkout:
    """A small copy of the checkout, on a machine with its own PATH, HOME and package index."""

    def __init__(self, machine: Path) -> None:
        self.root, self.home, self.programs = machine / "check out", machine / "home", machine / "programs"
        for directory in (self.root / "tools", self.home, self.programs):
            directory.mkdir(parents=True)
        self.index, self.venv, self.lock = (
            machine / "index",
            self.root / ".venv",
            self.root / "requirements.lock",
        )
        user = wheel(self.index, "library", "#!python\n")[1]
        self.lock.write_text(user)
        development = wheel(self.index, "uv", f'#!/bin/sh\nexec {UV} "$@"\n')[1]
        for name in ("requirements-dev.lock", "requirements-track.lock"):
            (self.root / name).write_text(user + development)
        yard = wheel(machine / "built", "yard", YARD)[0]
        (self.root / "backend.py").write_text(BACKEND.format(yard, yard.name))
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        settings = 'DISK_GIB, REPORT_SECONDS = int(os.environ.get("NEEDED_GIB", "0")), 0.2\n'
        source = SOURCE.read_text(encoding="utf-8").replace("if __name__", f"{settings}if __name__")
        (self.root / "tools/bootstrap.py").write_text(source, encoding="utf-8")
        places = f"{self.index / 'library'} {self.index / 'uv'}"
        self.environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": places}

    def put_on_path(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def start(self, lock: str = "requirements.lock", python: str = sys.executable) -> subprocess.Popen[str]:
        """Start the set-up; it reports on stderr."""
        command = [python, str(self.root / "tools/bootstrap.py"), lock]
        environment = {"PATH": str(self.programs), "HOME": str(self.home), **self.environment}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def set_up(self, lock: str = "requirements.lock", python: str = sys.executable) -> tuple[int, str]:
        """Run the set-up to its end; return its exit code and its report."""
        process = self.start(lock, python)
        report = process.communicate(timeout=150)[1]
        return process.returncode, report

    def is_whole(self) -> bool:
        """Return whether the stamp is complete and the installed yard runs."""
        stamp = json.loads((self.venv / "trainyard.json").read_text())
        done = subprocess.run([self.venv / "bin/yard"], capture_output=True, timeout=180, check=False)
        return bool(stamp) and done.stdout == b"yard, version 0\n"


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    """A checkout on a machine without uv."""
    return Checkout(tmp_path)


@pytest.fixture
def checkout(bare: Checkout) -> Checkout:
    """A checkout on a machine with uv."""
    bare.put_on_path("uv", f'exec {UV} "$@"')
    return bare


def files(root: Path) -> dict[Path, tuple[int, int]]:
    """Return when each file below a directory was changed, and its size."""
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in root.rglob("*")}


def test_each_lock_is_installed_once_and_nothing_is_removed(checkout: Checkout) -> None:
    """The development lock comes on top of the user's. Nothing is written to HOME, no download is left."""
    tool = checkout.venv / "bin/uv"
    code, report = checkout.set_up()
    assert code == 0, report
    assert re.search(r"set-up: ready after \d+ s: yard, version 0\n$", report)
    assert checkout.is_whole()
    assert not tool.exists()
    assert list(checkout.home.iterdir()) == []
    assert {path.name for path in (checkout.root / ".cache/setup").iterdir()} == {"install.log", "lock"}
    before = files(checkout.root)
    assert checkout.set_up() == (0, "set-up: .venv is up to date\n")
    assert files(checkout.root) == before

    assert "updating .venv from requirements-dev.lock" in checkout.set_up("requirements-dev.lock")[1]
    assert tool.exists()
    assert "up to date" in checkout.set_up()[1]
    for lock in bootstrap.LOCKS:
        with (checkout.root / lock).open("a") as file:
            file.write("# changed\n")
    assert "updating .venv from requirements.lock" in checkout.set_up()[1]
    assert tool.exists()
    assert "updating .venv from requirements-dev.lock" in checkout.set_up("requirements-dev.lock")[1]
    assert "updating .venv from requirements-track.lock" in checkout.set_up("requirements-track.lock")[1]
    assert "up to date" in checkout.set_up("requirements-dev.lock")[1], "one lock does not take another away"
    assert checkout.is_whole()


def test_the_index_of_pip_conf_is_used_and_must_answer(bare: Checkout) -> None:
    """Only pip's configuration names a company's mirror. The uv on PATH is too old, so pip installs one."""
    bare.put_on_path("uv", "echo uv 0.4.9")
    handler = partial(SimpleHTTPRequestHandler, directory=str(bare.index))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        configuration = bare.home / ".config/pip/pip.conf"
        configuration.parent.mkdir(parents=True)
        mirror = f"http://127.0.0.1:{server.server_port}"
        configuration.write_text(f"[global]\nindex-url = {mirror}\nretries = 0\n")
        bare.environment = {"UV_HTTP_RETRIES": "0"}
        code, report = bare.set_up()
        assert code == 0, report
        assert bare.is_whole()
        assert (bare.venv / "bin/uv").exists()
        server.shutdown()
    with (bare.root / "requirements-dev.lock").open("a") as file:
        file.write(f"missing==1.0 --hash=sha256:{'0' * 64}\n")
    code, report = bare.set_up("requirements-dev.lock")
    assert code == 1
    assert "error: the package index cannot be reached\n  hint: check the network, PIP_INDEX_URL" in report


def test_pip_settings_as_variables_of_uv() -> None:
    """The environment precedes a file; empty values and settings that uv does not know are left out."""
    listed = (
        ":env:.index-url='https://env/simple'\n:env:.find-links=''\n:env:.default-timeout='60'\n"
        "global.index-url='https://file/simple'\nglobal.cert='/ca.pem'\nglobal.user='1'\n"
        "global.extra-index-url='\\nhttps://a/simple\\nhttps://b/simple'\nglobal.find-links='/w /x'\n"
    )
    assert bootstrap.pip_settings(listed) == {
        "UV_DEFAULT_INDEX": "https://env/simple",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/w,/x",
        "UV_HTTP_TIMEOUT": "60",
    }


def test_a_moved_checkout_is_made_again_from_an_activated_environment(checkout: Checkout) -> None:
    """The scripts name the old path; the interpreter that runs the set-up is the one that it removes."""
    assert checkout.set_up()[0] == 0
    checkout.root = checkout.root.rename(checkout.root.with_name("elsewhere"))
    checkout.venv = checkout.root / ".venv"
    assert not checkout.is_whole()
    checkout.environment["VIRTUAL_ENV"] = str(checkout.venv)
    code, report = checkout.set_up(python=str(checkout.venv / "bin/python"))
    assert code == 0, report
    assert "making .venv" in report
    assert checkout.is_whole()


def test_a_wrong_hash_is_refused(checkout: Checkout) -> None:
    checkout.lock.write_text(checkout.lock.read_text()[:-65] + "0" * 64 + "\n")
    code, report = checkout.set_up()
    assert code == 1
    assert "error: a package is not the one in the lock\n  hint: " in report
    assert (checkout.venv / "trainyard.json").read_text() == "{}"
    assert not list(checkout.venv.glob("lib/*/site-packages/library*"))


@pytest.fixture
def hanging(checkout: Checkout) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A set-up whose installer never ends, and the installer's process id."""
    started = checkout.root.parent / "started"
    note = f"echo $$ > {started}.new && /bin/mv {started}.new {started}"
    checkout.put_on_path("uv", f'[ "$1" = --version ] && echo uv 0.13.8 && exit\n{note}\nexec /bin/sleep 600')
    process = checkout.start()
    deadline = time.monotonic() + 120
    while not started.exists():
        assert time.monotonic() < deadline, "the installer does not start"
        time.sleep(0.02)
    installer = int(started.read_text())
    yield process, installer
    process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.kill(installer, signal.SIGKILL)


def test_a_killed_setup_starts_from_scratch_when_its_installer_has_ended(
    checkout: Checkout, hanging: tuple[subprocess.Popen[str], int]
) -> None:
    """SIGKILL leaves the installer running: the next set-up waits for it."""
    first, installer = hanging
    first.kill()
    first.communicate(timeout=180)
    assert (checkout.venv / "trainyard.json").read_text() == "{}"
    rest = checkout.venv / "rest"
    rest.touch()
    checkout.put_on_path("uv", f'exec {UV} "$@"')
    second = checkout.start()
    assert second.stderr is not None
    assert "waiting for another set-up" in second.stderr.readline()
    assert rest.exists(), "the second set-up did not wait"
    os.kill(installer, signal.SIGKILL)
    report = second.communicate(timeout=300)[1]
    assert second.returncode == 0, report
    assert not rest.exists()
    assert checkout.is_whole()


def test_progress_is_reported_and_sigterm_ends_the_installer(
    hanging: tuple[subprocess.Popen[str], int],
) -> None:
    process, installer = hanging
    assert process.stderr is not None
    while not re.match(r"set-up: +\d+ s, installing; [\d.]+ GiB are free", process.stderr.readline()):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    report = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert report.splitlines()[-1] == "set-up: interrupted; the next set-up keeps finished downloads"
    with pytest.raises(ProcessLookupError):
        os.kill(installer, 0)


def test_two_at_once_make_one(checkout: Checkout) -> None:
    both = [checkout.start(), checkout.start()]
    reports = [process.communicate(timeout=150)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], reports
    assert sum("making .venv" in report for report in reports) == 1
    assert checkout.is_whole()


@pytest.mark.parametrize("kind", ["link", "directory", "file"])
def test_an_environment_that_was_not_made_here_is_refused_and_kept(kind: str, checkout: Checkout) -> None:
    """A link may lead to the environment of another checkout, which would be emptied."""
    error, hint = "was not made by this set-up", "move it away, or delete it: rm -rf .venv"
    if kind == "file":
        checkout.venv.write_text("kept")
    elif kind == "directory":
        (checkout.venv / "bin").mkdir(parents=True)
    else:
        assert checkout.set_up()[0] == 0
        other = checkout.venv.rename(checkout.home / "other")
        checkout.venv.symlink_to(other)
        error, hint = f"is a symbolic link to {other}", "remove the link: rm .venv"
    before = files(checkout.root.parent)
    assert checkout.set_up() == (2, f"error: {checkout.venv} {error}\n  hint: {hint}\n")
    assert files(checkout.root.parent) == before


def test_a_small_disk_is_refused_before_anything_is_installed(checkout: Checkout) -> None:
    checkout.environment["NEEDED_GIB"] = "1000000000"
    code, report = checkout.set_up()
    assert code == 2
    assert re.search(r"error: [\d.]+ GiB are free at .*/check out, and \d+ GiB are needed", report)
    assert not checkout.venv.exists()


def test_a_checkout_without_write_permission_is_one_error(checkout: Checkout) -> None:
    command = [sys.executable, str(checkout.root / "tools/bootstrap.py"), "requirements.lock"]
    if os.geteuid() == 0:  # root may write everywhere except on a read-only mount
        mount = 'mount --bind -o ro "$0" "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(checkout.root), *command]
        if subprocess.run([*command[:-2], "-c", ""], capture_output=True, check=False).returncode != 0:
            pytest.skip("this root cannot mount: run the test as a user")
    checkout.root.chmod(0o555)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    checkout.root.chmod(0o755)
    assert done.returncode == 1
    assert re.fullmatch(r"error: set-up failed: .*\.cache'\n  hint: check that you can write .*\n", done.stderr)


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("cause: failed to write to file `x.so`: No space left on device (os error 28)", "the disk is full"),
        ("/usr/bin/python3: No module named ensurepip", "this Python has no complete venv module"),
        ("hint: torch==2.15.0 has no wheels with a matching platform tag", "a package has no build for this"),
        ("Traceback\nValueError: odd", "sh failed: ValueError: odd"),
        ("", "sh failed: no output"),
    ],
)
def test_a_failed_installer_is_one_sentence(
    log: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With output of pip 23, uv 0.13 and Debian's Python."""
    monkeypatch.setattr(bootstrap, "CACHE", str(tmp_path))
    with pytest.raises(SystemExit, match="1"):
        bootstrap.run("sh", "-c", 'echo "$0"; exit 7', log)
    printed = capsys.readouterr().err
    assert re.match(rf"error: {error}.*\n  hint: .*see .cache/setup/install.log", printed)


def test_an_old_python_reads_the_file_and_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest construct is Python 3.7's at most: an old Python prints a sentence and not a SyntaxError."""
    source = SOURCE.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))
    assert "from __future__" not in source, "`annotations` is a SyntaxError before 3.7"
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match="2"):
        bootstrap.main("requirements.lock", quiet=True)
    assert "3.11 to 3.14 are supported\n  hint: name another one: make PYTHON=" in capsys.readouterr().err
