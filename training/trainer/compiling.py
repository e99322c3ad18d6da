"""Who compiles blocks, and when: code that is there is used, and one rank compiles for the others of its node."""

from __future__ import annotations

import logging
import secrets

from training.device import Device
from training.distributed.rank_zero import while_others_wait
from training.distributed.ranks import Ranks
from training.run import heartbeat
from training.trainer.compile_cache import CompileCache, leave_headers
from training.trainer.state import TrainState

log = logging.getLogger("trainyard")


def compiled_before(cache: CompileCache, device: Device, ranks: Ranks) -> bool:
    """Begin to use each node's cache; return whether every rank finds compiled code there."""
    (attempt,) = ranks.sum([float(secrets.randbits(40)) if ranks.first else 0.0])
    missing = False
    # Rank 0 comes first: on one machine its cache may be that of the other pods.
    for turn in (ranks.first, ranks.local_rank == 0 and not ranks.first):
        if turn and device.compile:
            found = cache.begin(f"{attempt:.0f}")
            missing = found in ("none", "broken")
            if found == "broken":
                log.warning("the compiler's cache was incomplete and was removed; compiling again")
            if found == "copied":
                log.info("beginning with the compiled code that this run has kept")
        ranks.barrier()
    before = ranks.sum([float(missing)]) == [0.0]
    if before and device.compile:
        leave_headers()
    return before


def compile_once(now: TrainState) -> None:
    """On a CPU, let one rank of each node compile, rank 0 first; the others wait and find its results.

    Otherwise all ranks on the same processors would compile the same code at once. On CUDA each card needs
    its own code, and a sharded model cannot run on one rank alone. State, gradients and random generators do
    not change.
    """
    device, ranks = now.device, now.parallel.ranks
    if not device.compile or device.is_cuda or ranks.world_size == 1 or not now.parallel.replicated:
        return
    heartbeat.enter("compiling", now.step)

    def compile_all() -> None:
        log.info("compiling on rank %d; this takes a while the first time", ranks.rank)
        before = device.rng_state()
        with now.parallel.autocast(device):
            losses = now.parallel.model(**device.put(now.feed.batches(now.position)[0].arrays()))
        (losses * 0.0).sum().backward()
        now.optimizer.zero_grad(set_to_none=True)
        device.set_rng_state(before)

    for leader in (ranks.first, ranks.local_rank == 0 and not ranks.first):
        while_others_wait(ranks, compile_all if leader else None)


def keep(cache: CompileCache) -> None:
    """Keep compiled code for new pods, if there is a key to sign it with."""
    try:
        if cache.keep():
            log.info("compiled code is kept, signed, for new pods of this run")
    except OSError as error:
        log.warning("compiled code was not kept for new pods: %s", error)
