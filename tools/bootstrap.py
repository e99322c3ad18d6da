"""Make `.venv` from a lock with uv: python3 tools/bootstrap.py requirements.lock [--quiet]

This file runs before anything is installed. It uses the standard library only, and Python 3.6 can parse it,
so that an old Python ends in one sentence and not in a SyntaxError. Nothing is written outside the checkout.

`.venv/trainyard.json` records where `.venv` was made and from which locks. It is empty while a set-up runs,
so that the next set-up after a kill starts from scratch.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Dict, List, NoReturn, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV, CACHE = os.path.join(ROOT, ".venv"), os.path.join(ROOT, ".cache/setup")
PYTHON, YARD, STAMP = (os.path.join(VENV, name) for name in ("bin/python", "bin/yard", "trainyard.json"))
# Each lock, and the one that it contains.
LOCKS: Dict[str, List[str]] = {
    "requirements.lock": [],
    "requirements-dev.lock": ["requirements.lock"],
    "requirements-track.lock": ["requirements.lock"],
}
OLDEST_UV = (0, 8)  # 0.5 refuses our locks
GIB, DISK_GIB = 1 << 30, 8 if sys.platform == "linux" else 2  # torch 2.15 brings CUDA libraries on Linux
BEGAN, REPORT_SECONDS = time.monotonic(), 5

# pip's setting -> the variable of uv, which does not read pip's configuration.
PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "HTTPS_PROXY",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
NETWORK = "dns error|name resolution|onnection|timed? ?out|ailed to fetch|ertificate|not found in"
# What uv, pip or venv prints -> the error and the hint.
FAILURES = [
    ("No space left|os error 28|uota exceeded", "the disk is full", f"free about {DISK_GIB} GiB"),
    ("ensurepip", "this Python has no complete venv module", "apt install python3-venv, or install uv"),
    ("ash mismatch|NOT MATCH THE HASH", "a package is not the one in the lock", "use another package index"),
    ("no wheels with", "a package has no build for this machine", "use Linux, or macOS 14 on Apple silicon"),
    (NETWORK, "the package index cannot be reached", "check the network, PIP_INDEX_URL and HTTPS_PROXY"),
]


def say(line: str) -> None:
    """Print progress on stderr: stdout belongs to the command that make runs afterwards."""
    print("set-up: " + line, file=sys.stderr, flush=True)


def fail(message: str, hint: str, code: int = 2) -> NoReturn:
    for line in (f"error: {message}", f"  hint: {hint}"):  # the installer's message may hold any character
        print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr)
    sys.exit(code)


def expected_stamp() -> Dict[str, str]:
    """Return the stamp of a finished environment: its place, and a digest for each lock."""
    stamp = {"place": " ".join([ROOT, os.path.realpath(PYTHON), os.uname().sysname, os.uname().machine])}
    for lock in LOCKS:
        digest = hashlib.sha256()
        for name in (lock, "pyproject.toml"):
            with open(os.path.join(ROOT, name), "rb") as file:
                digest.update(file.read())
        stamp[lock] = digest.hexdigest()
    return stamp


def read_stamp() -> Optional[Dict[str, str]]:
    """Return the stamp, or None where no set-up has written one. An incomplete one is empty."""
    if not os.path.exists(STAMP):
        return None
    try:
        with open(STAMP) as file:
            return dict(json.load(file))
    except ValueError:
        return {}


def write_stamp(stamp: Dict[str, str]) -> None:
    with open(STAMP, "w") as file:
        json.dump(stamp, file, indent=1)


def is_current(*keys: str) -> bool:
    stamp, wanted = read_stamp() or {}, expected_stamp()
    made = os.path.exists(PYTHON) and os.path.exists(YARD)
    return made and all(stamp.get(key) == wanted[key] for key in keys)


def refuse_foreign() -> None:
    """End where `.venv` is a link or was not made here: its files belong to another environment."""
    if os.path.islink(VENV):
        fail(f"{VENV} is a symbolic link to {os.path.realpath(VENV)}", "remove the link: rm .venv")
    if os.path.lexists(VENV) and read_stamp() is None and not (os.path.isdir(VENV) and not os.listdir(VENV)):
        fail(f"{VENV} was not made by this set-up", "move it away, or delete it: rm -rf .venv")


def run(*command: str) -> str:
    """Run a command with its output in a log, and report progress; return its last line, or end."""
    with open(os.path.join(CACHE, "install.log"), "w+", errors="replace") as log:
        # The installer inherits the lock, so that it never runs beside another set-up.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False)
        try:
            while child.poll() is None:
                try:
                    child.wait(REPORT_SECONDS - (time.monotonic() - BEGAN) % REPORT_SECONDS)
                except subprocess.TimeoutExpired:
                    free = shutil.disk_usage(ROOT).free / GIB
                    say(f"{time.monotonic() - BEGAN:3.0f} s, installing; {free:.1f} GiB are free")
        finally:
            child.terminate()
            child.wait()
        log.seek(0)
        lines = log.read().strip().splitlines()[-40:] or ["no output"]
    if child.returncode == 0:
        return lines[-1]
    details = "see .cache/setup/install.log"
    for pattern, message, hint in FAILURES:
        if re.search(pattern, "\n".join(lines)):
            fail(message, f"{hint} ({details})", 1)
    fail(f"{command[0]} failed: {lines[-1].strip()}", details, 1)


def make_venv() -> None:
    """Make an empty environment in place of what is there."""
    free = shutil.disk_usage(ROOT).free / GIB
    if free < DISK_GIB:
        fail(f"{free:.1f} GiB are free at {ROOT}, and {DISK_GIB} GiB are needed", "free some space")
    say("making .venv; this takes a minute or two")
    python = os.path.realpath(sys.executable)  # an activated `.venv` is about to be removed
    os.makedirs(VENV, exist_ok=True)
    write_stamp({})
    for entry in list(os.scandir(VENV)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.path != STAMP:
            os.unlink(entry.path)
    run(python, "-I", "-m", "venv", "--without-pip", VENV)


def find_uv() -> str:
    """Return a uv that is new enough: on PATH or in `.venv`, where pip installs the locked one if needed."""
    own = os.path.join(VENV, "bin/uv")
    for path in filter(os.path.exists, [shutil.which("uv") or own, own]):
        said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        version = re.match(rb"uv (\d+)\.(\d+)", said)
        if version and tuple(map(int, version.groups())) >= OLDEST_UV:
            return path
    with open(os.path.join(ROOT, "requirements-dev.lock")) as lock, open(os.path.join(CACHE, "uv.txt"), "w") as pin:
        pin.writelines(re.findall(r"(?m)^uv==(?:.*\\\n)*.*\n", lock.read()))
    run(PYTHON, "-I", "-m", "ensurepip")
    run(PYTHON, "-I", "-m", "pip", "install", "--no-input", "--no-deps", "--require-hashes", "-r", pin.name)
    return own


def pip_settings(listed: str) -> Dict[str, str]:
    """Return what `pip config list` prints as uv's variables; pip's own variables precede its files."""
    settings: Dict[str, str] = {}
    for section in (":env:", "install", "global"):
        for key, value in re.findall(rf"(?m)^{section}\.([a-z-]+)='([^']+)'$", listed):
            if key in PIP_TO_UV:
                separator = "," if key == "find-links" else " "
                settings.setdefault(PIP_TO_UV[key], separator.join(value.replace("\\n", " ").split()))
    if "UV_INDEX" in settings:  # like pip, take a package from any index: the hashes protect it
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return settings


def install(lock: str) -> None:
    """Make or update `.venv`: the packages of a lock, then the checkout itself."""
    os.environ["PIP_USER"] = "0"
    for name in ("uv", "pip"):
        os.environ.setdefault(name.upper() + "_CACHE_DIR", os.path.join(CACHE, name))
    kept = [name for name in LOCKS if is_current("place", name)]  # the locks agree on all versions
    if is_current("place"):
        say(f"updating .venv from {lock}")
        write_stamp({})
    else:
        make_venv()
    uv = find_uv()
    for python in (PYTHON, os.path.realpath(PYTHON)):
        command = [python, "-I", "-m", "pip", "config", "list"]
        listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
        for name, value in pip_settings(listed).items():
            os.environ.setdefault(name, value)
        if listed:
            break
    command = [uv, "pip", "install", "--python", PYTHON, "--no-python-downloads"]
    run(*command, "--only-binary", ":all:", "--require-hashes", "-r", os.path.join(ROOT, lock))
    run(*command, "--no-deps", "--no-build-isolation", "--no-index", "-e", ROOT)
    wanted = expected_stamp()
    write_stamp({key: wanted[key] for key in ["place", lock, *LOCKS[lock], *kept]})
    for name in ("uv", "pip"):
        shutil.rmtree(os.path.join(CACHE, name), ignore_errors=True)
    version = run(YARD, "--version")
    say(f"ready after {time.monotonic() - BEGAN:.0f} s: {version}")


def main(lock: str, quiet: bool) -> None:
    if not (3, 11) <= tuple(sys.version_info[:2]) <= (3, 14):
        this = f"{sys.executable} is Python {sys.version.split()[0]}"
        fail(f"{this}, and 3.11 to 3.14 are supported", "name another one: make PYTHON=python3.13")
    refuse_foreign()
    if is_current("place", lock):
        if not quiet:
            say(".venv is up to date")
        return
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "lock"), "w") as file:
        os.set_inheritable(file.fileno(), True)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                say("waiting for another set-up of this checkout")
                time.sleep(REPORT_SECONDS)
        if not is_current("place", lock):
            install(lock)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1], "--quiet" in sys.argv)
    except OSError as error:
        fail(f"set-up failed: {error}", "check that you can write to the checkout and that its disk has space", 1)
    except KeyboardInterrupt:
        say("interrupted; the next set-up keeps finished downloads")
        sys.exit(130)
