"""Process 1 of a trainer's pod: `python -m training.entrypoint torchrun ...`.

torchrun exits with 1 for every failure. This process

- starts torchrun, for the trainer's own tasks by `training.pod.launcher`, whose ranks start faster; what it
  starts reads the rendezvous' state without pickle (`training/guard`);
- gives torchrun a rendezvous id that only this job's pods know (`training.pod.rendezvous`);
- passes SIGTERM on to it, and ends the processes that it leaves behind;
- checks the heartbeats of this pod's ranks (`training.pod.hang_detector`);
- ends the pod early if a rank records a failure that no restart can fix;
- writes `<run>/end.json` (`training.pod.end_record`);
- exits with the code of the failure's class (`training.run.failure.CODES`).

`training.pod.supervisor` does all but the first two. This process imports nothing heavy and needs no
files except those that it writes below TRAINYARD_RUN.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from training.pod import development, launcher, metrics_server, rendezvous
from training.pod.retries import Retries
from training.pod.supervisor import Pod
from training.run.directory import RunDir
from training.run.failure import CODES
from training.run.hang_limits import Limits

GUARD = str(Path(__file__).resolve().parent / "guard")


def _command(words: Sequence[str]) -> list[str]:
    """Return the command; where it is safe, the launcher that forks its ranks replaces torchrun."""
    if not launcher.suits(words):
        return list(words)
    return [sys.executable, "-m", "training.pod.launcher", *words[1:]]


def _fence() -> dict[str, str]:
    """Return PYTHONPATH with the directory of `trainyard_guard` in front."""
    path = (GUARD, os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def _meeting(run: RunDir | None) -> dict[str, str]:
    """Return the variables of torchrun's rendezvous: the id of this run's, and that this pod is its host."""
    if os.environ.get("PET_RDZV_BACKEND") != "c10d":
        return {}
    host = rendezvous.hosted(os.environ, socket.gethostname())
    return host if run is None else {**host, rendezvous.VARIABLE: rendezvous.agreed(run.path)}


def main() -> None:
    """Command line. Exit codes: `training.run.failure.CODES`; 126 and 127 if the command does not start."""
    words = sys.argv[1:]
    if not words or words[0].startswith("-"):
        _say("no command; for example: python -m training.entrypoint torchrun -m training.pretrain ...")
        sys.exit(2)
    path = os.environ.get("TRAINYARD_RUN")
    run = RunDir(path) if path else None
    try:
        limits, restarts = Limits.of(os.environ), development.restarts(os.environ)
        metrics_server.address(os.environ)
        environment = {**_fence(), **_meeting(run)}
    except ValueError as problem:
        _say(str(problem))
        sys.exit(CODES["config"])
    except (rendezvous.BadIdError, OSError) as problem:
        kind = "config" if isinstance(problem, rendezvous.BadIdError) else "storage"
        _say(f"no rendezvous id: {problem} (exit code {CODES[kind]})")
        sys.exit(CODES[kind])
    command, retries = _command(words), Retries(run, words) if run else None
    sys.exit(development.run(lambda code: Pod(command, limits, run, environment, code, retries), restarts))


def _say(text: str) -> None:
    print(f"{Pod.name}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
