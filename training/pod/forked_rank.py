"""A rank that was forked: `forked_rank.py training.pretrain --config DIR`, run by torchrun in its process."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path

CAUSE_SECONDS = 1.0  # torchrun looks at its ranks ten times a second


def main() -> None:
    """Be the rank of the task that the first argument names. Exit codes: `training.run.failure.CODES`."""
    import torch

    from training.trainer import main as rank

    with contextlib.suppress(OSError):  # the fork server's command line says nothing of the rank
        Path("/proc/self/comm").write_text(f"rank {os.environ['RANK']}", encoding="utf-8")
    if "OMP_NUM_THREADS" in os.environ:  # OpenMP has read it before torchrun chose it
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    del sys.argv[0]
    task = importlib.import_module(sys.argv[0])
    try:
        rank.main(task.TASK, task.__doc__)
    except SystemExit as end:
        _let_the_cause_be_seen(end.code)
        raise


def _let_the_cause_be_seen(code: str | int | None) -> None:
    """Where this rank only fails for another's sake, let torchrun find that one dead before this one.

    Of those that are dead when it looks, torchrun names one; a rank that was killed leaves no other word. It
    asks the others to stop then, which ends the wait.
    """
    from training.run.failure import CODES

    if code in (CODES["lost peer"], CODES["communication"]) and os.environ.get("LOCAL_WORLD_SIZE") != "1":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.sigtimedwait({signal.SIGTERM}, CAUSE_SECONDS)


if __name__ == "__main__":
    main()
