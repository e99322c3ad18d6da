"""Real ranks for the tests: a server that imports torch once and forks ranks, which join over gloo.

Run as a script it reads one JSON request a line, {"function", "world", "limit_s", "arguments"}, calls that
function (of this module, or MODULE:FUNCTION) on every rank, and answers with one line: each rank's exit status and
result or error.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP and optimizers import it late: once here instead of in every rank
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from tests.training.checkpoint.boundaries import Boundaries
from tests.training.checkpoint.values import held, same, state, whole, zeroed
from training.checkpoint import store as stores
from training.checkpoint.layout import step_name
from training.checkpoint.read import Checkpoint
from training.checkpoint.shards import shards_of
from training.checkpoint.store import Store
from training.checkpoint.write import Snapshot


def rank_and_world() -> tuple[int, int]:
    """This rank and the world size; (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def put(store: Store, step: int, *, sharded: bool = True) -> Path:
    """Save the test values of `step` from every rank; return its directory."""
    rank, world = rank_and_world()
    tensors = held(whole(step), rank, world, sharded=sharded)
    meta = {"versions": {"torch": "test"}}
    store.save(Snapshot(step, tensors, state(step, rank), {"tokens": 1000 * step}, meta))
    return store.directory / step_name(step)


def save(directory: str, steps: list[int], sharded: bool = True) -> list[str]:
    """Save some steps with one store."""
    store = Store(Path(directory))
    return [put(store, step, sharded=sharded).name for step in steps]


def save_with_own_run_state(directory: str) -> None:
    """A save in which the ranks have different run states."""
    rank, world = rank_and_world()
    Store(Path(directory)).save(Snapshot(1, held(whole(1), rank, world, sharded=True), run_state={"tokens": rank}))


def load(directory: str, sharded: bool = True) -> dict[str, Any]:
    """Load the newest checkpoint into this rank's shards; return step, equality and log."""
    rank, world = rank_and_world()
    told: list[str] = []
    checkpoint = Store(Path(directory), log=told.append).latest()
    if checkpoint is None:
        return {"step": None, "told": told}
    wanted = held(whole(checkpoint.step), rank, world, sharded=sharded)
    return {"step": checkpoint.step, "equal": _loads(checkpoint, wanted), "told": told}


def load_where(directories: list[str], wait_s: float) -> dict[str, Any]:
    """The same, where each rank sees a directory of its own, and waits so long for what rank 0 sees."""
    stores.SEEN_WITHIN_S = wait_s
    return load(directories[rank_and_world()[0]])


def _loads(checkpoint: Checkpoint, wanted: dict[str, Any]) -> bool:
    found = zeroed(wanted)
    checkpoint.load(found)
    return same(found, wanted)


def save_until_killed(directory: str, step: int, victim: int, point: int | None, lazy: bool = False) -> list[str]:
    """Save one step; the victim is killed at its boundary number `point`. Returns this rank's boundaries."""
    store = Store(Path(directory))
    boundaries = Boundaries(point if rank_and_world()[0] == victim else None, lazy=lazy)
    with boundaries.watched():
        put(store, step)
    return boundaries.passed


def save_in_place_until_killed(directory: str, step: int, point: int | None) -> list[str]:
    """The control: one file per tensor, written over the old one, without a protocol."""
    boundaries = Boundaries(point)
    with boundaries.watched():
        for name, tensor in whole(step).items():
            descriptor = os.open(Path(directory) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            os.close(descriptor)
    return boundaries.passed


def save_with_limit(directory: str, step: int, victim: int, limit: int) -> None:
    """A save in which the victim's files may not grow beyond `limit` bytes."""
    store = Store(Path(directory))
    if rank_and_world()[0] == victim:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        put(store, step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def fsdp_round_trip(directory: str) -> dict[str, Any]:
    """Save a sharded model and its optimizer, load them into a second one, and compare."""
    model, optimizer = _trained(seed=1)
    store = Store(Path(directory))
    store.save(Snapshot(1, shards_of(_named(model, optimizer))))
    other, other_optimizer = _trained(seed=2)
    before = same(shards_of(_named(other, other_optimizer)), shards_of(_named(model, optimizer)))
    checkpoint = store.latest()
    assert checkpoint is not None
    checkpoint.load(shards_of(_named(other, other_optimizer)))
    after = same(shards_of(_named(other, other_optimizer)), shards_of(_named(model, optimizer)))
    whole_weight = model[0].weight.full_tensor().detach()  # type: ignore[operator, union-attr]
    rows = {name: [s.row_offset, s.row_count, s.replicated] for name, s in shards_of(_named(model, optimizer)).items()}
    return {
        "before": before,
        "after": after,
        "rows": rows,
        "full": torch.equal(checkpoint.full("model.0.weight"), whole_weight),
    }


def _trained(seed: int) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def _named(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    named = [(f"model.{name}", parameter) for name, parameter in model.named_parameters()]
    moments = [
        (f"optimizer.{name}.{key}", value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    ]
    return [*named, *moments]


def refused_layout(directory: str) -> None:
    """A tensor sharded by columns, which the store refuses."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards_of([("columns", DTensor.from_local(torch.zeros(4, 2), mesh, [Shard(1)]))])


def _rank(request: dict[str, Any], rank: int, scratch: Path) -> int:
    world = request["world"]
    if world > 1:
        address, limit = f"file://{scratch}/rendezvous", timedelta(seconds=60)
        dist.init_process_group("gloo", address, rank=rank, world_size=world, timeout=limit)
    try:
        answer, status = {"result": _named_function(request["function"])(**request["arguments"])}, 0
    except Exception as error:  # noqa: BLE001 - every failure is the caller's to judge
        answer, status = {"error": str(error), "kind": type(error).__name__}, 1
    (scratch / f"{rank}.json").write_text(json.dumps(answer))
    return status


def _named_function(name: str) -> Any:
    """A function of this module, or MODULE:FUNCTION."""
    module, _, function = name.rpartition(":")
    return getattr(importlib.import_module(module), function) if module else globals()[function]


def _fork(request: dict[str, Any], rank: int, scratch: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 70
        try:
            status = _rank(request, rank, scratch)
        finally:
            os._exit(status)
    return child


def _wait(children: list[int], limit_s: float) -> list[int]:
    """Return exit statuses, negative signal numbers for killed ranks. Kills ranks that exceed the limit."""
    end = time.monotonic() + limit_s
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        for child in children:
            if child in statuses:
                continue
            if time.monotonic() > end:
                os.kill(child, signal.SIGABRT)
                end += 5
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return [statuses[child] for child in children]


def _serve(request: dict[str, Any]) -> list[dict[str, Any]]:
    _named_function(request["function"])  # imports its module once, before the forks
    with tempfile.TemporaryDirectory() as scratch:
        children = [_fork(request, rank, Path(scratch)) for rank in range(request["world"])]
        statuses = _wait(children, request["limit_s"])
        answers = []
        for rank, status in enumerate(statuses):
            told = Path(scratch) / f"{rank}.json"
            answers.append({"status": status, **(json.loads(told.read_text()) if told.exists() else {})})
        return answers


def main() -> None:
    """Answer requests until standard input ends."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("training").addHandler(logging.NullHandler())  # else hundreds of killed saves print warnings
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        print(json.dumps(_serve(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
