"""One run that changes its layout at every start, on up to four forked ranks of two nodes.

Arguments: the directory of the configuration's files, the run's, the data's. Each layout continues from the
checkpoint of the one before, writes it once more in its own layout, and trains two steps.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from tests.training.inprocess import run
from tests.training.sharded_init import fork
from training.checkpoint.read import Checkpoint
from training.checkpoint.store import Store
from training.trainer import state

ALL = {
    "ddp": (4, ()),
    "fsdp": (4, ("parallel.sharding=fsdp",)),
    "fsdp-2": (2, ("parallel.sharding=fsdp", "parallel.reshard_after_forward=true")),
    "hsdp": (4, ("parallel.sharding=hsdp", "parallel.activation_checkpointing=selective")),
    "fsdp-parts": (4, ("parallel.sharding=fsdp", "parallel.reshard_after_forward=2")),
    "fsdp-host": (4, ("parallel.sharding=fsdp", "parallel.offload=cpu")),
    "tensor": (4, ("parallel.sharding=fsdp", "parallel.tensor=2")),
    "tensor-nodes": (4, ("parallel.sharding=hsdp", "parallel.tensor=2", "parallel.activation_checkpointing=full")),
    "ddp-again": (2, ()),
}
STEPS = 2  # of each layout


def rank(texts: dict[str, tuple[str, str]], name: str, overrides: tuple[str, ...], run_dir: Path, data: Path) -> None:
    """Continue the run in one layout, as one rank."""
    restore = state.restore

    def restore_and_repeat(now: state.TrainState, checkpoint: Checkpoint, number: int) -> None:
        restore(now, checkpoint, number)
        again = run_dir.parent / f"again-{name}" / "checkpoints"
        Store(again, group=now.parallel.ranks.group).save(state.collect(now, {}), finite=True)

    steps = STEPS * (list(ALL).index(name) + 1)
    with mock.patch.object(state, "restore", restore_and_repeat):
        run(texts, (*overrides, f"train.steps={steps}"), run_dir, data)
    torch.distributed.destroy_process_group()


def main() -> int:
    """Run all layouts, one after another."""
    configuration, run_dir, data = map(Path, sys.argv[1:])
    texts = {path.stem: (path.name, path.read_text()) for path in configuration.glob("*.yaml")}
    for name, (ranks, overrides) in ALL.items():
        codes = fork(ranks, partial(rank, texts, name, overrides, run_dir, data), of_a_node=2)
        print(name, codes, flush=True)
        if any(codes):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
