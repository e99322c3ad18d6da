"""One run of changing size beside one of a fixed size, on forked ranks, each of them a node.

Arguments: the directory of the configuration's files, the runs', the data's. Every rank notes what it reads.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from tests.training.inprocess import Quiet, StopAfter, run
from tests.training.sharded_init import fork
from training.config import apply_override
from training.data.indexed_feed import IndexedFeed
from training.data.sampler import Indices, samples_at
from training.task import Batch

STEPS = 50
SIZES = ((4, 15), (2, 25), (3, 35), (4, STEPS))  # the number of nodes, and the step up to which they train


def rank(texts: dict[str, tuple[str, str]], last: int, directory: Path, data: Path) -> None:
    """Train up to a step as one rank."""
    read = IndexedFeed._read
    with (directory / f"samples-{os.environ['RANK']}-{last}.jsonl").open("w") as notes:

        def noting(feed: IndexedFeed, places: Indices) -> Batch:
            chosen = samples_at(places[places >= 0], feed._config.train.seed, len(feed.train))
            notes.write(json.dumps([places.tolist(), chosen.tolist()]) + "\n")
            return read(feed, places)

        with mock.patch.object(IndexedFeed, "_read", noting):
            run(texts, (), directory, data, StopAfter(last) if last < STEPS else Quiet())
    torch.distributed.destroy_process_group()


def main() -> int:
    """Run both, and for each size print the exit codes of its ranks."""
    configuration, runs, data = map(Path, sys.argv[1:])
    texts = {path.stem: (path.name, path.read_text()) for path in configuration.glob("*.yaml")}
    for name, sizes in (("fixed", ((4, STEPS),)), ("elastic", SIZES)):
        (runs / name).mkdir()
        own = texts if name == "fixed" else apply_override(texts, "nodes={min: 2, max: 4}")
        for nodes, last in sizes:
            codes = fork(nodes, partial(rank, dict(own), last, runs / name, data), of_a_node=1)
            print(name, nodes, codes, flush=True)
            if any(codes):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
