"""What must be there before pods start: room on the disk, a free rendezvous port, a run of its own."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cells import locate
from tools.core import UserError, output, repo
from tools.local import report
from tools.simulator.local_pod import ADDRESS, LocalPod
from training.checkpoint.layout import newest_committed

if TYPE_CHECKING:
    from training.config import Config

CHECKPOINTS_AT_ONCE = 4  # two kept, one being written, one report of weights
BYTES_A_PARAMETER = 12  # fp32 master weight and two fp32 moments
OTHER_FILES = 200 << 20  # data, logs, compiled kernels
PORTS_TO_TRY = 100
ELSEWHERE = "set XDG_RUNTIME_DIR to a directory of your own"
OTHER_RUN = "run:"  # before a run's name in model.weights


def check_torch() -> None:
    """Raise UserError when torch is not installed: yard alone does not train."""
    if importlib.util.find_spec("torch") is None:
        raise UserError("training needs torch, which is not installed", repo.how_to_install("train"), 3)


def check_disk(directory: Path, parameters: int) -> None:
    """Raise UserError when the disk of `directory` has no room for a model of `parameters` parameters."""
    need = CHECKPOINTS_AT_ONCE * BYTES_A_PARAMETER * parameters + OTHER_FILES
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < need:
        raise UserError(
            f"{existing}: {output.size(free)} free, {output.size(need)} are needed"
            f" ({CHECKPOINTS_AT_ONCE} checkpoints of {parameters:,} parameters, data and logs)",
            "free some space, or move the checkout to a larger disk",
        )


def check_base(config: Config, run_directory: Path, source: str) -> None:
    """Raise UserError when the run that `config` starts from does not exist. The hint is the command that
    makes it.
    """
    weights = config.model.weights or ""
    if not weights.startswith(OTHER_RUN):
        return
    name = weights.removeprefix(OTHER_RUN)
    if newest_committed(run_directory.parent / name / "checkpoints") is not None:
        return
    cells = {cell.removeprefix("overlays/").replace("/", "-") + "-train": cell for cell in locate.cells()}
    remedy = f"train it: {report.run_command([cells[name]], [])}" if name in cells else "train it first"
    raise UserError(f"{source} starts from the run {name}, which has no checkpoint on this machine yet", remedy)


def rendezvous_port(pods: list[LocalPod]) -> int | None:
    """Return the local port at which the pods meet, or None when they have none."""
    environment = pods[0].environment
    host, _, port = environment.get("PET_RDZV_ENDPOINT", "").rpartition(":")
    if host == ADDRESS and port.isdigit():
        return int(port)
    if environment.get("MASTER_ADDR") == ADDRESS and environment.get("MASTER_PORT", "").isdigit():
        return int(environment["MASTER_PORT"])
    return None


@contextlib.contextmanager
def own_port(port: int, *, asked: bool) -> Iterator[int]:
    """Hold a port that no other run on this machine uses: `port`, else the next free one; yield it.

    A launcher that finds another run's port listening joins that run's pods. Two runs that start at once both
    see a port free before either listens, so a lock holds it too. Raises UserError when the port was `asked`
    for and is taken.
    """
    for candidate in range(port, min(port + PORTS_TO_TRY, 65536)):
        with _port_lock(candidate) as locked:
            if locked and is_free(candidate):
                yield candidate
                return
        if asked:
            hint = f"ss -ltnp 'sport = {port}' names the process; without --port a free port is chosen"
            raise UserError(f"the rendezvous port {port} is taken", hint)
    raise UserError(f"ports {port} to {port + PORTS_TO_TRY} are all taken")


@contextlib.contextmanager
def _port_lock(port: int) -> Iterator[bool]:
    """Lock a port for this user's runs without waiting; yield whether that worked.

    Raises UserError when the directory of the locks does not belong to this user alone.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    home = runtime if os.access(runtime, os.W_OK | os.X_OK) else tempfile.gettempdir()
    directory = Path(home) / f"trainyard-{os.getuid()}"
    with contextlib.ExitStack() as opened:
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            own = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, own)
            found = os.fstat(own)
            if found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise UserError(f"{directory} must belong to this user alone, with mode 0700", ELSEWHERE)
            lock = os.open(str(port), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode=0o600, dir_fd=own)
            opened.callback(os.close, lock)
        except OSError as problem:
            raise UserError(f"{directory}: {problem.strerror}", ELSEWHERE) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def is_free(port: int) -> bool:
    """Return whether no process listens at `port` on loopback or on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((ADDRESS, port))
            server.listen(1)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def only_run(run_directory: Path) -> Iterator[None]:
    """Hold the run directory's lock. Raises UserError with the holder's process id when another `yard run`
    has it.
    """
    run_directory.mkdir(parents=True, exist_ok=True)
    with (run_directory / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                f"this run is already being trained here, by process {holder} ({run_directory})",
                f"wait for it, or stop it: kill {holder}",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
