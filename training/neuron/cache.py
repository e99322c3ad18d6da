"""The Neuron compiler's cache on the shared volume: a directory for each cacheset, one job at a time.

Two running jobs that write the same cache can spoil it, so a job claims it first. Claims are numbered files
in `<root>/claims/<cacheset>/`: the highest number counts, a file is made whole by a hard link, and no number
is made twice. An owner that lives touches its claim every `BEAT` seconds. A claim that has not been touched
for `LEASE` seconds, by the file server's clock, or whose process is known to be gone, is taken over with the
next number; an owner that wakes up afterwards sees the higher number and stops. File locks would be simpler,
but not every network file system has them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
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
DEFAULT_ROOT = "/var/tmp/neuron-compile-cache"  # the Neuron SDK's own
BEAT, LEASE = 10.0, 60.0  # seconds
LOOK = 0.2  # seconds between looks at somebody else's claim


def cacheset(config: Config) -> str:
    """Return the name of a configuration's cache; `auto` gives one name to equal graphs and no others."""
    if config.device.cacheset != "auto":
        return config.device.cacheset
    keys = {"model", "sequence_length", "lora", "masking", "parallel"}
    shapes = config.model_dump(mode="json", include=keys)
    text = json.dumps([shapes, config.device.precision], sort_keys=True)
    return f"{config.model.architecture}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def use(config: Config) -> Path:
    """Point this process and its children at the configuration's cache; returns the directory.

    NEURON_COMPILE_CACHE_URL names the root before, and the cacheset's directory below it afterwards.

    Raises:
        ConfigError: the root is no directory of the shared volume, or the compiler is told another one.
    """
    root = os.environ.get(URL) or DEFAULT_ROOT
    if "://" in root:
        raise ConfigError(f"{URL} is {root}: a cache there cannot be claimed; name a directory of the volume")
    if "--cache_dir" in os.environ.get("NEURON_CC_FLAGS", ""):
        raise ConfigError(f"NEURON_CC_FLAGS has --cache_dir, which would win over {URL}: take it out")
    name = cacheset(config)
    directory = Path(root) if Path(root).name == name else Path(root) / name
    os.environ[URL] = str(directory)
    return directory


@dataclass(frozen=True)
class Owner:
    """Who holds a claim. `process` is empty where the system does not tell a process from its successor."""

    job: str
    host: str
    pid: int
    space: str  # boot and process name space: pids are comparable within one
    process: str  # the process's start time
    since: str


@dataclass(frozen=True)
class Claim:
    """One claim as it was read; `touched` is the file's time in ns."""

    path: Path
    owner: Owner
    released: bool
    touched: int

    @property
    def number(self) -> int:
        return int(self.path.stem)


@contextmanager
def claimed(cache: Path, job: str) -> Iterator[None]:
    """Hold `cache` for `job`; a process of the same job that comes second shares the claim of the first.

    Raises:
        ConfigError: another job that lives holds it. It takes up to `BEAT` seconds to know that it lives, and
            up to `LEASE` to know that it does not.
    """
    directory = cache.parent / "claims" / cache.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        own = _acquire(directory, cache, job)
    except OSError as error:
        raise ConfigError(f"the compile cache {cache} cannot be claimed: {error}") from None
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
    """Return the claim made, or None where this job has one already."""
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
                "Wait for it to end, or give this job a cache of its own: device.cacheset"
            )
        if made := _make(directory, held.number + 1 if held else 1, me):
            return made


def _lives(held: Claim, me: Owner) -> bool:
    """Say whether a claim's owner lives; looks until it is known, or the claim is not the newest any more."""
    owner = held.owner
    if owner.space == me.space and owner.process:
        return _process(owner.pid) == owner.process
    if owner.job == me.job and owner.host == me.host:
        return False  # a pod of this name has been started anew; its former processes are gone
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
    """Return a process's start time as the kernel counts it, or an empty text where there is none."""
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
            continue  # a newer one has been made meanwhile
        return Claim(path, Owner(**found["owner"]), found["released"], touched)


def _number(path: Path) -> int:
    return int(path.stem)


def _make(directory: Path, number: int, owner: Owner) -> Path | None:
    """Make the claim with this number; None where another process was first."""
    path = directory / f"{number}.json"
    temporary = _written(directory, owner, released=False)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return None
    finally:
        temporary.unlink()
    newest = _newest(directory)
    if newest is None or newest.path != path:  # this process slept while others came and went
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
    """Return the file system's own time in ns: machines' clocks differ."""
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
                f"the claim {own} was taken over: this process was silent too long, and stops",
                file=sys.stderr,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        os.utime(own)


def _release(own: Path) -> None:
    """Say that the claim is over; the file stays, so that its number is never made again."""
    held = _newest(own.parent)
    if held is not None and held.path == own:
        os.replace(_written(own.parent, held.owner, released=True), own)
