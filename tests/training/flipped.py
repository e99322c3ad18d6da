"""Forked ranks of `training.pretrain`; after one step a bit of a parameter of one of them changes by itself.

Arguments: the directory of the configuration's files, the runs', the data's.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch.distributed.tensor import DTensor

from tests.training.sharded_init import fork
from training import pretrain
from training.trainer import loop
from training.trainer.main import main
from training.trainer.state import TrainState

CASES: dict[str, tuple[int, str, int | None]] = {  # the number of ranks on two nodes, the sharding, the broken rank
    "two": (2, "ddp", 1),
    "three": (4, "ddp", 2),
    "nodes": (4, "hsdp", 3),
    "sound": (4, "hsdp", None),
    "shards": (2, "fsdp", 1),
}
STEP = 7


def rank(broken: int | None, configuration: Path, run: Path, data: Path) -> None:
    """Train as one rank, and leave with its exit code."""
    step = loop._step

    def stepping(run: loop.Run, now: TrainState, *rest: Any) -> str:
        done = step(run, now, *rest)
        if (now.step, run.ranks.rank) == (STEP, broken):
            *_, parameter = now.parallel.model.blocks()[1].parameters()
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.detach().view(torch.int32)[0].bitwise_xor_(1)
        return done

    setattr(loop, "_step", stepping)  # noqa: B010 - the type of the loop's own
    os.environ |= {
        "TRAINYARD_RUN": str(run),
        "TRAINYARD_DATA": str(data),
        "TRAINYARD_NODE": f"node-{os.environ['RANK']}",
    }
    sys.argv[1:] = ["--config", str(configuration)]
    try:
        main(pretrain.TASK, None)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))


def run_all(configuration: Path, runs: Path, data: Path) -> None:
    """Run all cases, one after another, and print the exit codes of their ranks."""
    for name, (ranks, sharding, broken) in CASES.items():
        own = runs / f"{name}-configuration"
        own.mkdir()
        for path in configuration.glob("*.yaml"):
            (own / path.name).write_text(path.read_text().replace("sharding: ddp", f"sharding: {sharding}"))
        codes = fork(ranks, partial(rank, broken, own, runs / name, data), of_a_node=ranks // 2)
        print(name, *codes, flush=True)


if __name__ == "__main__":
    run_all(*map(Path, sys.argv[1:]))
