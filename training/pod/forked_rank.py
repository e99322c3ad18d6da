"""A forked rank: `forked_rank.py training.pretrain --config DIR`, run by torchrun in its own process."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from training.pod import fork_server
from training.pod.development import Code

CAUSE_SECONDS = 1.0  # torchrun checks its ranks ten times a second


def main() -> None:
    """Run the task named by the first argument as one rank. Exit codes: `training.run.failure.CODES`."""
    take_changes(Code.of(os.environ))
    from training.trainer.main import main as run_rank

    fork_server.set_up()
    del sys.argv[0]
    task = importlib.import_module(sys.argv[0])
    try:
        run_rank(task.TASK, task.__doc__)
    except SystemExit as end:
        _wait_for_the_cause(end.code)
        raise


def take_changes(code: Code | None) -> None:
    """Import the trainer again if its code was changed while it ran; torch and the like stay as they are."""
    if code is None or not code.changed():
        return
    for name in [one for one in sys.modules if one.partition(".")[0] == "training"]:
        del sys.modules[name]
    sys.path.insert(0, str(code.files))
    importlib.invalidate_caches()


def _wait_for_the_cause(code: str | int | None) -> None:
    """If this rank failed because of another one, let torchrun find the other one dead first.

    torchrun names only one of the ranks that it finds dead, and a killed rank leaves no other trace. It then
    asks the remaining ranks to stop, which ends the wait.
    """
    from training.run.failure import CODES

    if code in (CODES["lost peer"], CODES["communication"]) and os.environ.get("LOCAL_WORLD_SIZE") != "1":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.sigtimedwait({signal.SIGTERM}, CAUSE_SECONDS)


if __name__ == "__main__":
    main()
