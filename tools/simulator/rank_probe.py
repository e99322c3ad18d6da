"""Stands in for the trainer in a wiring proof: joins the job, takes part in one all-reduce, says who it is.

Started by the job's own launcher, as a script or as a module; it reads its rank as any trainer would. It
writes `<WIRING_RECORDS>/<pod>-<local rank>.json` twice: when it knows its rank, and when the all-reduce is
done.
"""

import ctypes
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

RECORDS = "WIRING_RECORDS"
SECONDS = "WIRING_SECONDS"
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Join, reduce, record."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    record(rank, world, counted=None)
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")

    import torch
    import torch.distributed as dist

    alone = "MASTER_ADDR" not in os.environ
    if alone:
        record(rank, world, counted=[1])
        return
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ[SECONDS])))
    ones = torch.zeros(world, dtype=torch.int64)
    ones[rank] = 1
    dist.all_reduce(ones)
    record(rank, world, counted=ones.tolist())
    dist.barrier()
    dist.destroy_process_group()


def record(rank: int, world: int, counted: list[int] | None) -> None:
    """Write this process's record, whole or not at all; `counted` is how often each rank was in the sum."""
    pod, local = os.environ["HOSTNAME"], os.environ.get("LOCAL_RANK", "0")
    path = Path(os.environ[RECORDS]) / f"{pod}-{local}.json"
    half = path.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps({"pod": pod, "rank": rank, "world": world, "counted": counted}))
    half.replace(path)


if __name__ == "__main__":
    main()
