"""The Neuron compiler's cache: a directory for each cacheset, one job at a time.

A cell's cache is in its run's directory, which no other job can write, because graphs are programs. Rank 0
copies there what the run of `yard precompile` has compiled, which is mounted read-only.

Two running jobs that write the same cache can damage it, so a job claims it first. Claims are numbered files
in `<root>/claims/<cacheset>/`. The highest number counts, a hard link creates the file atomically, and no
number is used twice. A live owner touches its claim every `BEAT` seconds. A claim is taken over with the next
number if it was not touched for `LEASE` seconds by the file server's clock, or if its process is known to be
gone. An owner that wakes up afterwards sees the higher number and stops. File locks would be simpler, but not
every network file system has them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from training.config import Config, ConfigError

URL = "NEURON_COMPILE_CACHE_URL"
PRECOMPILED = "TRAINYARD_GRAPHS"  # the root of the precompiled graphs' cache
DEFAULT_ROOT = "/var/tmp/neuron-compile-cache"  # the Neuron SDK's own
BEAT, LEASE = 10.0, 60.0  # seconds
LOOK = 0.2  # seconds between checks of another job's claim


def cacheset(config: Config) -> str:
    """Return the name of a configuration's cache; with `auto` only equal graphs share a name."""
    if config.device.cacheset != "auto":
        return config.device.cacheset
    keys = {"model", "sequence_length", "lora", "masking", "parallel"}
    shapes = config.model_dump(mode="json", include=keys)
    text = json.dumps([shapes, config.device.precision], sort_keys=True)
    return f"{config.model.architecture}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def use(config: Config) -> Path:
    """Make this process and its children use the configuration's cache; return the directory.

    NEURON_COMPILE_CACHE_URL names the root before this call, and the cacheset's directory in it afterwards.

    Raises:
        ConfigError: the root is not a directory on the shared volume, or the compiler's flags name another
        one.
    """
    root = os.environ.get(URL) or DEFAULT_ROOT
    if "://" in root:
        raise ConfigError(f"{URL} is {root}: a cache there cannot be claimed; use a directory on the volume")
    if "--cache_dir" in os.environ.get("NEURON_CC_FLAGS", ""):
        raise ConfigError(f"NEURON_CC_FLAGS has --cache_dir, which would override {URL}: remove it")
    name = cacheset(config)
    directory = Path(root) if Path(root).name == name else Path(root) / name
    os.environ[URL] = str(directory)
    return directory


def add_precompiled(cache: Path) -> None:
    """Copy into `cache` the precompiled graphs of the same cacheset that it lacks: regular files only.

    The compiler keeps a graph in `<compiler version>/MODULE_<key>/`. Raises ConfigError.
    """
    root = os.environ.get(PRECOMPILED)
    try:
        for found in sorted((Path(root) / cache.name).glob("*/MODULE_*")) if root else []:
            target = cache / found.parent.name / found.name
            if not target.exists():
                _copy(found, target)
    except OSError as error:
        raise ConfigError(f"cannot copy the precompiled graphs of {root} to {cache}: {error}") from None


def _copy(directory: Path, target: Path) -> None:
    """Copy a graph so that it appears as a whole; a link in it stays behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    temporary.mkdir()
    for path in directory.iterdir():
        if path.is_file() and not path.is_symlink():
            shutil.copyfile(path, temporary / path.name)
    temporary.rename(target)


@dataclass(frozen=True)
class Owner:
    """The owner of a claim. `process` is empty if the system cannot tell a process from its successor."""

    job: str
    host: str
    pid: int
    space: str  # boot and process name space, within which pids are comparable
    process: str  # the process's start time
    since: str


@dataclass(frozen=True)
class Claim:
    """One claim; `touched` is the file's time in ns."""

    path: Path
    owner: Owner
    released: bool
    touched: int

    @property
    def number(self) -> int:
        return int(self.path.stem)


@contextmanager
def claimed(cache: Path, job: str) -> Iterator[None]:
    """Hold `cache` for `job`; a second process of the same job shares the claim of the first.

    Raises:
        ConfigError: another live job holds it. It takes up to `BEAT` seconds to see that a job lives, and
        up to
            `LEASE` to see that it does not.
    """
    directory = cache.parent / "claims" / cache.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        own = _acquire(directory, cache, job)
    except OSError as error:
        raise ConfigError(f"cannot claim the compile cache {cache}: {error}") from None
    if own is None:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_beat, args=(own, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _release(own)


def _acquire(directory: Path, cache: Path, job: str) -> Path | None:
    """Return the new claim, or None if this job has one already."""
    me = _me(job)
    while True:
        held = _newest(directory)
        lives = held is not None and not held.released and _lives(held, me)
        if held is not None and lives:
            if held.owner.job == job:
                return None
            raise ConfigError(
                f"the compile cache {cache} is used by {held.owner.job} ({held.owner.host}, process "
                f"{held.owner.pid}, since {held.owner.since}): two running jobs must not share one. "
                "Wait for that job to end, or give this job its own cache: device.cacheset"
            )
        if made := _make(directory, held.number + 1 if held else 1, me):
            return made


def _lives(held: Claim, me: Owner) -> bool:
    """Return whether a claim's owner lives; wait until that is known or the claim is no longer the newest."""
    owner = held.owner
    if owner.space == me.space and owner.process:
        return _process(owner.pid) == owner.process
    if owner.job == me.job and owner.host == me.host:
        return False  # this pod was restarted; its former processes are gone
    while True:
        now = _newest(held.path.parent)
        if now is None or now.path != held.path or now.released:
            return False
        if now.touched != held.touched:
            return True
        if _server_time(held.path.parent) - held.touched > LEASE * 1e9:
            return False
        time.sleep(LOOK)


def _me(job: str) -> Owner:
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    pid = os.getpid()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Owner(job, host, pid, _space(), _process(pid), since)


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _process(pid: int) -> str:
    """Return a process's start time in the kernel's units, or an empty text if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _newest(directory: Path) -> Claim | None:
    while True:
        numbers = sorted((path for path in directory.glob("*.json") if path.stem.isdigit()), key=_number)
        if not numbers:
            return None
        path = numbers[-1]
        try:
            touched = path.stat().st_mtime_ns
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue  # a newer one was created meanwhile
        return Claim(path, Owner(**found["owner"]), found["released"], touched)


def _number(path: Path) -> int:
    return int(path.stem)


def _make(directory: Path, number: int, owner: Owner) -> Path | None:
    """Create the claim with this number; None if another process was first."""
    path = directory / f"{number}.json"
    temporary = _written(directory, owner, released=False)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return None
    finally:
        temporary.unlink()
    newest = _newest(directory)
    if newest is None or newest.path != path:  # this process slept while others claimed and released
        path.unlink(missing_ok=True)
        return None
    for older in directory.glob("*.json"):
        if older.stem.isdigit() and _number(older) < number:
            older.unlink(missing_ok=True)
    return path


def _written(directory: Path, owner: Owner, *, released: bool) -> Path:
    path = directory / f"{secrets.token_hex(8)}.tmp"
    path.write_text(json.dumps({"owner": asdict(owner), "released": released}), encoding="utf-8")
    return path


def _server_time(directory: Path) -> int:
    """Return the file server's time in ns, because machines' clocks differ."""
    probe = directory / f"{secrets.token_hex(8)}.now"
    probe.touch()
    try:
        return probe.stat().st_mtime_ns
    finally:
        probe.unlink()


def _beat(own: Path, over: threading.Event) -> None:
    while not over.wait(BEAT):
        held = _newest(own.parent)
        if held is None or held.path != own:
            print(
                f"the claim {own} was taken over because this process was silent too long; stopping",
                file=sys.stderr,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        os.utime(own)


def _release(own: Path) -> None:
    """Mark the claim as released; the file stays, so that its number is never used again."""
    held = _newest(own.parent)
    if held is not None and held.path == own:
        os.replace(_written(own.parent, held.owner, released=True), own)
