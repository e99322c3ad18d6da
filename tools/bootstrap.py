"""Makes the checkout's Python environment, `.venv`, from requirements.lock; does nothing when it is there.

Runs before anything is installed, on whatever `python3` the machine has: standard library only, and syntax
that Python 3.6 reads, so that an old Python is refused with one sentence and not with a SyntaxError.

How it stays right:
- `.venv/trainyard.json` says what `.venv` was made from and is written last. While it says "installing", the
  environment is rubble of a killed set-up and is made anew. Downloads lie in `.cache/setup/` until the set-up
  has succeeded, so the second attempt does not repeat them.
- An environment holds its own absolute path, its interpreter and its platform; a moved or copied checkout, a
  removed Python or another machine on the same disk make it anew.
- `.cache/setup/lock` is held by the set-up and by the installer that it started, so two of them never meet.
- Nothing is written outside the checkout. A cache that the user names (UV_CACHE_DIR, PIP_CACHE_DIR) is used
  and kept.
- uv installs several times as fast as pip. Where PATH has none, pip fetches the one that the lock pins; where
  that one does not reach an index that pip reaches, pip goes on.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

try:
    import fcntl
except ImportError:  # Windows, which supported_machine() refuses
    fcntl = None  # type: ignore[assignment]

OLDEST, NEWEST = (3, 11), (3, 14)
INPUTS = ("requirements.lock", "requirements.in", "requirements-dev.in")
GIB = 1 << 30
# Measured on Linux x86_64 with torch 2.15: 5.6 GiB installed, CUDA libraries included; 8.5 GiB on the way.
ROOM_NEEDED = {"linux": 10 * GIB, "darwin": 2 * GIB}
REPORT_EVERY_S = 5.0

# pip's settings -> the variables by which uv, which does not read them, learns the same.
PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "HTTPS_PROXY",
    "cert": "SSL_CERT_FILE",
}
NO_INDEX = "the package index cannot be reached"

# What an installer says -> what that means for the person who ran make.
FAILURES = (
    (
        r"No space left|Errno 28\b|os error 28\b|[Qq]uota exceeded",
        "the disk is full",
        "free about 10 GiB (2 GiB on macOS) on the disk that holds the checkout, then run it again",
    ),
    (
        r"DO NOT MATCH THE HASHES|[Hh]ash mismatch",
        "a downloaded package is not the one that requirements.lock names",
        "a mirror or proxy may have changed it; use another index, and do not edit the hash",
    ),
    (
        r"name resolution|dns error|new connection|[Cc]onnection (refused|reset|broken)|timed? ?out"
        r"|unreachable|error sending request|Failed to fetch|ProxyError|SSLError|certificate",
        NO_INDEX,
        "check the network, or name a mirror or proxy: PIP_INDEX_URL, UV_DEFAULT_INDEX, HTTPS_PROXY",
    ),
    (
        r"no wheels with|No matching distribution|not a supported wheel",
        "a locked package has no build for this machine",
        "the lock covers Linux (glibc 2.28 or newer, x86_64 or aarch64) and macOS 14 or newer on arm64",
    ),
)


class SetupError(Exception):
    """A reason why there is no environment, in one sentence, with what to do about it."""

    def __init__(self, message: str, hint: str, code: int = 2) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


class Python(NamedTuple):
    """An interpreter found on this machine."""

    path: str
    version: Tuple[int, ...]
    has_pip: bool


class House(NamedTuple):
    """The paths of one checkout."""

    root: str

    @property
    def venv(self) -> str:
        return os.path.join(self.root, ".venv")

    @property
    def stamp(self) -> str:
        return os.path.join(self.venv, "trainyard.json")

    @property
    def cache(self) -> str:
        return os.path.join(self.root, ".cache", "setup")

    def bin(self, name: str) -> str:
        return os.path.join(self.venv, "bin", name)


def say(line: str) -> None:
    """Prints a line of progress on stderr; stdout belongs to the command that make runs afterwards."""
    print("set-up: " + line, file=sys.stderr, flush=True)


# ---- is there anything to do? ----


def install_section(pyproject: str) -> str:
    """The lines of pyproject.toml that decide what an installation contains: no tool but setuptools."""
    kept, keep = [], False
    for line in pyproject.splitlines():
        header = re.match(r"\[+([A-Za-z0-9_.\-]+)\]", line)
        if header:
            keep = header.group(1).startswith(("build-system", "project", "tool.setuptools"))
        if keep:
            kept.append(line)
    return "\n".join(kept)


def digest_of_inputs(house: House) -> str:
    """SHA-256 over everything that the environment is made from."""
    digest = hashlib.sha256()
    for name in INPUTS:
        with open(os.path.join(house.root, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    with open(os.path.join(house.root, "pyproject.toml"), encoding="utf-8") as file:
        digest.update(install_section(file.read()).encode())
    return digest.hexdigest()


def expected_stamp(house: House) -> Dict[str, str]:
    """What the stamp of a finished environment at this place, on this machine, says."""
    return {
        "state": "ready",
        "inputs": digest_of_inputs(house),
        "root": house.root,
        "python": os.path.realpath(house.bin("python")),
        "machine": "{} {}".format(sys.platform, platform.machine()),
    }


def read_stamp(house: House) -> Optional[Dict[str, str]]:
    """The stamp as it is, or None when there is none that can be read."""
    try:
        with open(house.stamp, encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_stamp(house: House, stamp: Dict[str, str]) -> None:
    """Replaces the stamp in one step, so that no reader sees half of it."""
    fresh = house.stamp + ".new"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
    os.replace(fresh, house.stamp)


def is_ready(house: House) -> bool:
    """Whether `.venv` is finished and was made from what the checkout says today."""
    stamp = read_stamp(house)
    if stamp is None or stamp.get("state") != "ready" or not os.path.exists(house.bin("yard")):
        return False
    return os.path.exists(house.bin("python")) and stamp == expected_stamp(house)


# ---- what the machine offers ----


def supported_machine() -> None:
    """Refuses systems for which the locked packages have no builds."""
    if fcntl is None or sys.platform not in ROOM_NEEDED:
        raise SetupError("trainyard runs on Linux and macOS, not on " + sys.platform, "on Windows, use WSL 2")
    if sys.platform == "darwin" and platform.machine() != "arm64":
        raise SetupError("torch has no builds for Intel Macs", "use a Mac with Apple silicon, or Linux")


def probe(path: str) -> Optional[Python]:
    """Asks an interpreter for its version and for pip; None when it does not run."""
    code = (
        "import sys, importlib.util as u;"
        "print(*sys.version_info[:3], int(bool(u.find_spec('venv') and u.find_spec('ensurepip'))))"
    )
    try:
        said = subprocess.check_output([path, "-I", "-c", code], stderr=subprocess.DEVNULL, timeout=20)
        major, minor, micro, has_pip = (int(word) for word in said.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Python(path, (major, minor, micro), bool(has_pip))


def step_out_of(venv: str) -> None:
    """Takes `.venv` off PATH and out of this process: an activated environment cannot make itself anew."""
    outside = [path for path in os.environ.get("PATH", "").split(os.pathsep) if not path.startswith(venv)]
    os.environ["PATH"] = os.pathsep.join(outside)
    if sys.executable.startswith(venv):
        sys.executable = os.path.realpath(sys.executable)


def find_python(need_pip: bool) -> Python:
    """The interpreter that runs this file, or the newest supported one on PATH when this one will not do."""
    names = ["python3.{}".format(minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    paths = [sys.executable] + [path for path in map(shutil.which, names) if path]
    found = [python for python in map(probe, paths) if python]
    fitting = [python for python in found if OLDEST <= python.version[:2] <= NEWEST]
    for python in fitting:
        if python.has_pip or not need_pip:
            return python
    if fitting:
        short = "python{}.{}".format(*fitting[0].version)
        raise SetupError(
            "{} cannot make environments: it comes without ensurepip".format(fitting[0].path),
            "install it (Debian, Ubuntu: apt install {}-venv), or install uv".format(short),
        )
    seen = ", ".join("{} is {}".format(p.path, ".".join(map(str, p.version))) for p in found) or "none runs"
    raise SetupError(
        "Python {}.{} to {}.{} is needed; {}".format(*OLDEST, *NEWEST, seen),
        "install one (apt install python3.11-venv, brew install python@3.13), or name one: make PYTHON=...",
    )


def find_uv() -> Optional[str]:
    """The uv on PATH, if it runs."""
    path = shutil.which("uv")
    if path is None:
        return None
    done = subprocess.run([path, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path if done.returncode == 0 else None


def check_room(house: House) -> None:
    """Refuses to start what cannot end: the packages do not fit on the disk."""
    free, needed = shutil.disk_usage(house.root).free, ROOM_NEEDED[sys.platform]
    if free < needed:
        raise SetupError(
            "{:.1f} GiB free at {}, about {} GiB needed".format(free / GIB, house.root, needed // GIB),
            "free some space, or clone onto a larger disk",
        )


# ---- doing it ----


@contextlib.contextmanager
def only_one(house: House) -> Iterator[IO[str]]:
    """Holds the checkout's set-up lock; waits for another set-up and says so."""
    os.makedirs(house.cache, exist_ok=True)
    with open(os.path.join(house.cache, "lock"), "w") as file:
        next_report = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() >= next_report:
                say("another set-up of this checkout is running; waiting")
                next_report += 3 * REPORT_EVERY_S
            time.sleep(0.2)
        yield file


def installer_environment(house: House) -> Dict[str, str]:
    """The caller's environment less what bends an installation, with caches inside the checkout."""
    bending = ("PYTHON", "VIRTUAL_ENV", "CONDA_", "PIP_TARGET", "PIP_PREFIX", "UV_SYSTEM_PYTHON", "UV_TARGET")
    env = {name: value for name, value in os.environ.items() if not name.startswith(bending)}
    env["UV_CACHE_DIR"] = env.get("UV_CACHE_DIR") or os.path.join(house.cache, "uv")
    env["PIP_CACHE_DIR"] = env.get("PIP_CACHE_DIR") or os.path.join(house.cache, "pip")
    env["PIP_USER"] = "0"
    env["TMPDIR"] = os.path.join(house.cache, "tmp")
    return env


def bytes_under(directories: Sequence[str]) -> int:
    """Bytes on disk below some directories; a file with two hard links counts once."""
    seen, total = set(), 0
    for directory in directories:
        for parent, _, names in os.walk(directory):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(parent, name))
                    if status.st_ino not in seen:
                        seen.add(status.st_ino)
                        total += status.st_size
    return total


def explain(log: str, code: int, log_path: str) -> NoReturn:
    """Turns a failed installer's output into one SetupError."""
    end = "\n".join(log.splitlines()[-40:])  # warnings that were overcome stand further up
    for pattern, message, hint in FAILURES:
        if re.search(pattern, end):
            raise SetupError(message, "{} (details: {})".format(hint, log_path), code=1)
    said = (log.strip().splitlines() or ["it said nothing"])[-1].strip()
    raise SetupError("the installer ended with {}: {}".format(code, said), "details: " + log_path, code=1)


@contextlib.contextmanager
def progress(house: House) -> Iterator[None]:
    """Says every few seconds how long the set-up has run and how much it has written."""
    began, over = time.monotonic(), threading.Event()

    def report() -> None:
        while not over.wait(REPORT_EVERY_S):
            written = bytes_under([house.venv, house.cache])
            say("{:4.0f} s, {:.1f} GiB on disk".format(time.monotonic() - began, written / GIB))

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def run_installer(house: House, command: List[str], lock: IO[str]) -> None:
    """Runs an installer to its end, its output in a file; raises SetupError when it fails."""
    log_path = os.path.join(house.cache, "install.log")
    os.makedirs(os.path.join(house.cache, "tmp"), exist_ok=True)
    with open(log_path, "w+", errors="replace") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=installer_environment(house),
            cwd=house.root,
            pass_fds=(lock.fileno(),),
        )
        try:
            child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        if child.returncode:
            log.seek(0)
            explain(log.read(), child.returncode, os.path.relpath(log_path, house.root))


def empty_for_a_new_start(house: House) -> None:
    """Makes an empty `.venv` marked as being installed; refuses to delete one that somebody else made."""
    if os.path.isdir(house.venv) and os.listdir(house.venv) and read_stamp(house) is None:
        raise SetupError(
            house.venv + " exists and was not made by this set-up",
            "move it away or delete it: rm -rf .venv",
        )
    os.makedirs(house.venv, exist_ok=True)
    for name in sorted(os.listdir(house.venv), key=lambda name: name == os.path.basename(house.stamp)):
        path = os.path.join(house.venv, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    write_stamp(house, {"state": "installing"})


def can_update(house: House, uv: Optional[str]) -> bool:
    """Whether `.venv` is whole and only the lock or the project's own metadata moved on."""
    stamp = read_stamp(house)
    if stamp is None or stamp.get("state") != "ready" or not os.path.exists(house.bin("python")):
        return False
    if uv is None and not os.path.exists(house.bin("pip")):  # made with uv, which has been removed since
        return False
    expected = expected_stamp(house)
    return all(stamp.get(key) == expected[key] for key in ("root", "python", "machine"))


def locked_entry(lock: str, name: str) -> str:
    """A package's lines in a lock file, with its hashes; empty when the lock does not name it."""
    found = re.search(r"(?m)^" + re.escape(name) + r"==(?:.*\\\n)*.*\n?", lock)
    return found.group(0) if found else ""


def as_uv_reads(pip_settings: str) -> Dict[str, str]:
    """What `pip config list` prints, as uv's variables."""
    settings = {}  # type: Dict[str, str]
    found = re.findall(r"(?m)^(\S+?)\.([a-z-]+)='([^']+)'$", pip_settings)
    for _, key, value in sorted(
        found, key=lambda setting: setting[0] == ":env:"
    ):  # the environment counts most
        if key in PIP_TO_UV:
            separator = "," if key == "find-links" else " "
            settings[PIP_TO_UV[key]] = separator.join(value.replace("\\n", " ").split())
    if "UV_INDEX" in settings:  # pip takes the best of all indexes; the hashes say that it is the right one
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return settings


def fetch_uv(house: House, lock: IO[str]) -> Optional[str]:
    """Installs the lock's uv into `.venv` with pip and tells it pip's settings; None if the lock has none."""
    with open(os.path.join(house.root, "requirements.lock"), encoding="utf-8") as file:
        entry = locked_entry(file.read(), "uv")
    if not entry:
        return None
    wanted = os.path.join(house.cache, "tmp", "uv.txt")
    os.makedirs(os.path.dirname(wanted), exist_ok=True)
    with open(wanted, "w", encoding="utf-8") as file:
        file.write(entry)
    run_installer(house, [*installer(house, None), "--no-deps", "--require-hashes", "-r", wanted], lock)
    settings = subprocess.run([house.bin("pip"), "config", "list"], stdout=subprocess.PIPE, timeout=60)
    for name, value in as_uv_reads(settings.stdout.decode(errors="replace")).items():
        os.environ.setdefault(name, value)
    return house.bin("uv")


def installer(house: House, uv: Optional[str]) -> List[str]:
    """The command that installs into `.venv`, up to its packages."""
    python = house.bin("python")
    if uv:
        return [uv, "pip", "install", "--python", python, "--no-python-downloads"]
    # Modules compile when first imported; compiling all of them here would take as long as installing them.
    return [python, "-I", "-m", "pip", "install", "--no-input", "--no-compile", "--disable-pip-version-check"]


def install_everything(house: House, lock: IO[str], uv: Optional[str]) -> None:
    """Installs the locked packages, then the checkout itself, into `.venv`; removes the downloads."""
    fetched = None if uv else fetch_uv(house, lock)
    install = installer(house, uv or fetched)
    locked = [
        "--require-hashes",
        "--only-binary",
        ":all:",
        "-r",
        os.path.join(house.root, "requirements.lock"),
    ]
    try:
        run_installer(house, install + locked, lock)
    except SetupError as error:
        if not fetched or str(error) != NO_INDEX:
            raise
        say("uv does not reach the package index; pip may")
        install = installer(house, None)
        run_installer(house, install + locked, lock)
    checkout = ["--no-deps", "--no-build-isolation", "--no-index", "-e", house.root]
    run_installer(house, install + checkout, lock)
    for name in ("uv", "pip", "tmp"):
        shutil.rmtree(os.path.join(house.cache, name), ignore_errors=True)


def make_environment(house: House, lock: IO[str]) -> None:
    """Makes or updates `.venv` and writes the stamp."""
    began = time.monotonic()
    step_out_of(house.venv)
    uv = find_uv()
    with_what = "uv" if uv else "pip"
    if can_update(house, uv):
        say("requirements changed; updating .venv with " + with_what)
        write_stamp(house, {"state": "installing"})
    else:
        python = find_python(need_pip=uv is None)
        check_room(house)
        version = ".".join(map(str, python.version))
        say("making .venv with Python {} and {}; this takes a minute or two".format(version, with_what))
        empty_for_a_new_start(house)
        make_venv = [python.path, "-I", "-m", "venv", house.venv] + (["--without-pip"] if uv else [])
        run_installer(house, make_venv, lock)
    with progress(house):
        install_everything(house, lock, uv)
    write_stamp(house, expected_stamp(house))
    say("ready in {:.0f} s".format(time.monotonic() - began))


def stop(_signal: int, _frame: object) -> NoReturn:
    """Ends on SIGTERM the way Ctrl-C does, so that the installer ends too."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str], root: Optional[str] = None) -> int:
    """Makes the environment if needed; returns an exit code."""
    parser = argparse.ArgumentParser(description="Make .venv from requirements.lock.")
    parser.add_argument("--quiet", action="store_true", help="say nothing when there is nothing to do")
    quiet = parser.parse_args(arguments).quiet
    house = House(root or os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    signal.signal(signal.SIGTERM, stop)
    try:
        if not is_ready(house):
            supported_machine()
            with only_one(house) as lock:
                if not is_ready(house):
                    make_environment(house, lock)
        elif not quiet:
            say("nothing to do, .venv is ready")
    except SetupError as error:
        print("error: {}\n  hint: {}".format(error, error.hint), file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("set-up interrupted; run it again, it keeps what was downloaded", file=sys.stderr)
        return 130
    except OSError as error:
        print("error: set-up failed: {}".format(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
