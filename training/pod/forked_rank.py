"""A forked rank: `forked_rank.py training.pretrain --config DIR`, run by torchrun in its own process."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from training.pod import fork_server
from training.pod.development import Code

CAUSE_SECONDS = 1.0  # torchrun checks its ranks ten times a second
END_SECONDS = 10.0  # process 1 looks for records once a second, and waits a second for those of other ranks


def main() -> None:
    """Run the task named by the first argument as one rank. Exit codes: `training.run.failure.CODES`."""
    fork_server.set_up()
    take_changes(Code.of(os.environ))
    from training.trainer.main import main as run_rank

    del sys.argv[0]
    task = importlib.import_module(sys.argv[0])
    try:
        run_rank(task.TASK, task.__doc__)
    except SystemExit as end:
        wait_to_be_ended(end.code)
        raise


def take_changes(code: Code | None) -> None:
    """Import the trainer again if its code was changed while it ran; torch and the like stay as they are."""
    if code is None or not code.changed():
        return
    for name in [one for one in sys.modules if one.partition(".")[0] == "training"]:
        del sys.modules[name]
    sys.path.insert(0, str(code.files))
    importlib.invalidate_caches()


def wait_to_be_ended(code: str | int | None) -> None:
    """After some failures, wait before this process ends, until torchrun asks it to stop.

    If another rank is the cause, torchrun must find that one dead first: it names only one of the ranks that it finds
    dead, and a killed rank leaves no other trace. If no restart can help, process 1 must end torchrun first, which
    would start the ranks again at once.
    """
    from training.distributed.process import ENTRYPOINT
    from training.run.failure import CODES, PERMANENT

    seconds = 0.0
    if code in (CODES["lost peer"], CODES["communication"]) and os.environ.get("LOCAL_WORLD_SIZE") != "1":
        seconds = CAUSE_SECONDS
    starts = [os.environ.get(f"TORCHELASTIC_{name}") for name in ("RESTART_COUNT", "MAX_RESTARTS")]
    if code in {CODES[kind] for kind in PERMANENT} and ENTRYPOINT in os.environ and starts[0] != starts[1]:
        seconds = END_SECONDS
    if seconds:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.sigtimedwait({signal.SIGTERM}, seconds)


if __name__ == "__main__":
    main()
