"""The probe in real ranks: what it records, when it ends them, and which faults it causes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from tests.prove.parts import ROOT, launch
from training.prove.probe import samples
from training.prove.probe import world as probe_world
from training.prove.probe.loaders import Loaders, Pass
from training.prove.probe.state import Probe
from training.prove.records import (
    Batch,
    Begin,
    End,
    Fetched,
    Injected,
    Loss,
    Peers,
    Save,
    Step,
    Uncovered,
    World,
    workers,
)

DDP = ROOT / "tests/prove/scripts/ddp.py"


def test_two_ranks_record_their_steps_and_end_after_the_wished_number(tmp_path: Path) -> None:
    done = launch(tmp_path, DDP, steps=7)
    assert done.exit_code == 0, done.output
    assert sorted(done.ranks) == [0, 1]
    assert len(done.files) == 2  # neither torchrun nor a worker of a loader has a file
    for rank in (0, 1):
        assert isinstance(done.ranks[rank][0], Begin)
        assert [step.step for step in done.of(rank, Step)] == list(range(1, 8))
        (world,) = done.of(rank, World)
        assert (world.size, world.rank, world.backend) == (2, rank, "gloo")
        (end,) = done.of(rank, End)
        assert (end.reason, end.step, end.seeded) == ("steps", 7, False)
        assert all(step.collectives for step in done.of(rank, Step))
        assert all(loss.finite and loss.value > 0 for loss in done.of(rank, Loss))
    left, right = (done.of(rank, Step) for rank in (0, 1))
    assert [step.parameters_after for step in left] == [step.parameters_after for step in right]
    assert all(after.parameters_before == before.parameters_after for before, after in itertools.pairwise(left))
    assert {batch.digest for batch in done.of(0, Batch)} & {batch.digest for batch in done.of(1, Batch)} == set()
    # The save after step 5 is there, and nothing of step 8.
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000005.pt"]


@pytest.mark.parametrize(
    "kind", ["kill", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("exception", "terminate"))]
)
def test_a_fault_happens_at_its_step(kind: str, tmp_path: Path) -> None:
    done = launch(tmp_path, DDP, steps=9, fault={"kind": kind, "step": 3, "rank": 1})
    injected = done.all(Injected)
    assert {event.step for event in injected} == {3}
    if kind == "terminate":
        assert done.exit_code == 0  # the signal is the runner's
        return
    assert done.exit_code == 1, done.output
    assert {event.rank for event in injected} == ({0, 1} if kind == "kill" else {1})
    assert max(step.step for step in done.all(Step)) == 3
    if kind == "exception":
        assert "trainyard: planted exception" in done.output
        assert done.of(1, End)[0].reason == "exception"


HOOKED = """
    import sys, torch
    sys.excepthook = lambda kind, value, trace: print("shown in a box:", value)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            raise ValueError("no such sample")
"""


def test_an_exception_is_seen_where_a_script_shows_its_own(tmp_path: Path) -> None:
    """As rich and typer do, which replace `sys.excepthook`."""
    done = launch(tmp_path, HOOKED, ranks=0, steps=9)
    assert done.exit_code == 1
    assert "shown in a box: no such sample" in done.output
    (end,) = done.of(0, End)
    assert (end.step, end.reason, end.error) == (3, "exception", "ValueError: no such sample")


WRITTEN = """
    import torch
    models = [torch.nn.Linear(4, 1) for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(4):
        for model, weight in zip(models, (1, 0)):
            loss = weight * model(torch.randn(2, 4)).pow(2).sum()
            for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
                parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
"""


def test_gradients_that_a_script_writes_itself_are_not_kept_ones(tmp_path: Path) -> None:
    """Zero, as those of a loss with the weight 0, is not missing, as those of a model that nothing uses."""
    steps = launch(tmp_path, WRITTEN, ranks=0, steps=12).of(0, Step)
    assert {(step.optimizer, step.zero_gradients, step.no_gradients) for step in steps} == {
        (0, False, False), (1, True, False), (2, True, True),
    }  # fmt: skip
    assert not any(step.accumulated for step in steps)


COMPILED = """
    import torch
    for how in ("function", "method", "whole graph"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if how == "method":
            model.compile(backend="aot_eager")
        else:
            model = torch.compile(model, backend="aot_eager", fullgraph=how == "whole graph")
        for step in range(3):
            model(torch.full((2, 4), step + 1.0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_compiled_model_is_followed_and_compiles_as_without_the_probe(tmp_path: Path) -> None:
    done = launch(tmp_path, COMPILED, ranks=0, steps=20)
    assert done.exit_code == 0, done.output
    assert [batch.step for batch in done.of(0, Batch)] == list(range(9))
    assert [step.forwards for step in done.of(0, Step)] == [1] * 9
    assert done.of(0, Uncovered) == []


SHARDED = """
    import copy, torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    saved = []
    for how in ("whole", "resumed", "lost"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
        if saved:
            parameters, state = copy.deepcopy(saved)
            model.load_state_dict(parameters)
            optimizer.load_state_dict({**state, "state": {}} if how == "lost" else state)
        for step in range(2 if saved else 0, 4):
            model(torch.full((2, 4), step + 1.0)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                optimizer.consolidate_state_dict()
                saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
"""


def test_the_state_of_a_sharded_optimizer_is_that_of_the_one_which_steps(tmp_path: Path) -> None:
    """ZeroRedundancyOptimizer keeps what it loaded in a state of its own, which no step reads."""
    done = launch(tmp_path, SHARDED, ranks=0, steps=12)
    found = [step.state_before for step in done.of(0, Step)]
    assert len(found) == 8, done.output
    whole, resumed, lost = found[:4], found[4:6], found[6:]
    assert len(set(whole)) == 4
    assert resumed == whole[2:]
    assert set(whole).isdisjoint(lost[1:])  # the first is as empty as that of the whole run was


PARTED = """
    import sys, torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    if "tensor" in sys.argv:
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        step = lambda data: model(data).pow(2).mean().backward()
    else:
        rank, model = dist.get_rank(), model[dist.get_rank()]
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
        step = lambda data: schedule.step(target=data) if rank else schedule.step(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for number in range(3):
        step(torch.full((4, 4), number + 1.0))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("how", "read"), [("tensor", {0: 3, 1: 3}), pytest.param("pipeline", {0: 6, 1: 0}, marks=pytest.mark.long)]
)
def test_ranks_that_hold_parts_of_one_model_are_known(how: str, read: dict[int, int], tmp_path: Path) -> None:
    """A later stage reads no batch, and the made-up data by which a pipeline learns shapes is none."""
    done = launch(tmp_path, PARTED, how, steps=9)
    for rank, count in read.items():
        assert [(event.how, event.ranks) for event in done.of(rank, Peers)] == [(how, [0, 1])], done.output
        assert [step.step for step in done.of(rank, Step)] == [1, 2, 3]
        assert len(done.of(rank, Batch)) == count
    assert not [event for event in done.all(Uncovered) if event.what in ("batches", "gradients")]


METHOD = """
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        def loss(self, data):
            return self.down(self.up(data)).pow(2).mean()
    model = fully_shard(Model(), mesh=init_device_mesh("cpu", (2,)))
    register_fsdp_forward_method(model, "loss")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.loss(torch.full((4, 4), dist.get_rank() + 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def test_ranks_of_a_sharded_model_that_is_never_called_hold_no_parts_of_layers(tmp_path: Path) -> None:
    done = launch(tmp_path, METHOD, steps=9)
    assert [len(done.of(rank, Step)) for rank in (0, 1)] == [2, 2], done.output
    assert all(step.sharded for step in done.all(Step))
    assert done.all(Peers) == []


UNEVEN = """
    import torch, torch.distributed as dist
    from torch.distributed.algorithms.join import Join
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for _ in range(3 - dist.get_rank()):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_ranks_that_join_are_known(tmp_path: Path) -> None:
    done = launch(tmp_path, UNEVEN, steps=9)
    assert [len(done.of(rank, Step)) for rank in (0, 1)] == [3, 2], done.output
    assert {event.what for event in done.all(Uncovered)} == {"steps"}


PAIR = """
    import sys, torch
    from torch.autograd import grad
    made, judge = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
    first, second = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (judge, made))
    for step in range(6):
        fake = made(torch.randn(8, 2))
        first.zero_grad()
        judge(fake.detach() if "detached" in sys.argv else fake).mean().backward(retain_graph=True)
        first.step()
        loss = judge(made(torch.randn(8, 2))).pow(2).mean()
        if "kept" in sys.argv:
            loss.backward()
        else:
            for parameter, gradient in zip(made.parameters(), grad(loss, [*made.parameters()])):
                parameter.grad = gradient
        second.step()
"""


@pytest.mark.parametrize(
    ("how", "kept", "unknown"),
    [(("detached",), set(), 0), (("detached", "kept"), {1}, 0), ((), set(), 1)],
    ids=["written", "kept", "replaced"],
)
def test_only_backward_keeps_gradients(how: tuple[str, ...], kept: set[int], unknown: int, tmp_path: Path) -> None:
    """One optimizer has gradients of backward, the other those of `autograd.grad`, or sums of backward's."""
    done = launch(tmp_path, PAIR, *how, ranks=0, steps=12)
    steps = [step for step in done.of(0, Step) if step.step > 2]
    assert {step.optimizer for step in steps} == {0, 1}
    assert {step.optimizer for step in steps if step.accumulated} == kept
    assert [event.what for event in done.of(0, Uncovered)] == ["gradients"] * unknown


LOADED = """
    import sys, torch
    from torch.utils.data import DataLoader

    how, skipped = sys.argv[1], int(sys.argv[2])
    def prefetched(batches):
        now = next(batches)
        for later in batches:
            yield now
            now = later
        yield now
    loader = DataLoader(torch.arange(24.0).reshape(12, 2), batch_size=2, shuffle=True)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        batches = iter(loader)
        for _ in range(0 if number else skipped):
            next(batches)
        for batch in prefetched(batches) if how == "prefetched" else batches:
            print("rows", *(int(row[0]) // 2 for row in batch), flush=True)
            model(batch * 3 + 1).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("how", "skipped"),
    [("prefetched", 0), *(pytest.param("plain", number, marks=pytest.mark.long) for number in (0, 4))],
)
def test_a_batch_that_the_script_changes_is_known_by_its_place(how: str, skipped: int, tmp_path: Path) -> None:
    """Its content is not that of the loader. A script may read the next batch first, or skip batches at a restart."""
    done = launch(tmp_path, LOADED, how, str(skipped), ranks=0, steps=20, restart=skipped > 0)
    due = [line.split()[1:] for line in done.output.splitlines() if line.startswith("rows")]
    assert len(due) == 12 - skipped
    assert [batch.indices for batch in done.of(0, Batch)] == due


STREAM = """
    import random, torch
    from torch.utils.data import DataLoader, IterableDataset

    class Shuffled(IterableDataset):
        def __iter__(self):
            rows = list(range(24))
            random.shuffle(rows)
            return (torch.full((3,), float(row)) for row in rows)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for batch in DataLoader(Shuffled(), batch_size=4, num_workers=2):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_each_batch_that_a_worker_reads_of_a_stream_is_recorded(tmp_path: Path) -> None:
    """Each worker of this one reads all samples, in an order of its own: only the later batches show it."""
    done = launch(tmp_path, STREAM, ranks=0, steps=20)
    read: dict[int, list[str]] = {0: [], 1: []}
    for one in workers(tmp_path / "records/0", Fetched):
        read[one.worker] += one.rows
    assert read[0] != read[1], done.output
    assert len(read[0]) == 24
    assert sorted(read[0]) == sorted(read[1])


NEW = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(3):
        train = TensorDataset(torch.randperm(8, generator=torch.Generator().manual_seed(epoch)).repeat(2, 1).T.float())
        other = TensorDataset(torch.ones(4, 2))
        for loader in (DataLoader(train, batch_size=4), DataLoader(other, batch_size=4)):
            for (batch,) in loader:
                model(batch).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_new_data_set_for_each_pass_continues_the_passes(tmp_path: Path) -> None:
    done = launch(tmp_path, NEW, ranks=0, steps=20)
    assert [batch.passes for batch in done.of(0, Batch)] == [0, 0, 0, 1, 1, 1, 2, 2, 2], done.output
    assert len({batch.dataset for batch in done.of(0, Batch)}) == 4


LISTS = """
    import torch
    from torch.utils.data import DataLoader

    class Sizes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
        def forward(self, images, targets):
            return sum(self.layer(image.mean((1, 2))).sum() + target for image, target in zip(images, targets))
    rows = [(torch.full((3, 2 + number % 2, 4), float(number)), 1.0) for number in range(12)]
    loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch)))
    model = Sizes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, targets in loader:
        print("rows", *(int(image[0, 0, 0]) for image in images), flush=True)
        model([image.clone() for image in images], targets).backward()
        optimizer.step()
"""


def test_a_list_of_tensors_is_a_batch_of_samples(tmp_path: Path) -> None:
    done = launch(tmp_path, LISTS, ranks=0, steps=20)
    due = [line.split()[1:] for line in done.output.splitlines() if line.startswith("rows")]
    batches = done.of(0, Batch)
    assert [batch.indices for batch in batches] == due
    assert [batch.shape[0] for batch in batches] == [4, 4, 4]
    assert all(batch.whole for batch in batches)
    assert len({row for batch in batches for row in batch.rows}) == 12


SAVES = """
    import io, os, sys, pickle, torch
    from safetensors.torch import save_file
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = sys.argv[1]
    for step in range(4):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        if how == "replace":
            torch.save(model.state_dict(), "model.tmp")
            os.replace("model.tmp", "model.pt")
        elif how == "stream":
            with open("model.pt", "wb") as file:
                torch.save(model.state_dict(), file)
        elif how == "safetensors":
            save_file(model.state_dict(), "model.safetensors")
        elif how == "dcp":
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"checkpoint-{step}")
        elif how == "async":
            dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"checkpoint-{step}").result()
        elif how == "file":
            with open("model.tmp", "wb") as file:
                pickle.dump(model.weight.tolist(), file)
            os.rename("model.tmp", "model.pkl")
        with open("progress.json", "w") as file:
            file.write(str(step))
"""


@pytest.mark.parametrize(
    ("how", "kind", "names", "overwritten"),
    [
        ("replace", "torch.save", ["model.tmp"] * 4, False),
        pytest.param("stream", "torch.save", ["model.pt"] * 4, True, marks=pytest.mark.long),
        pytest.param("safetensors", "safetensors", ["model.safetensors"] * 4, True, marks=pytest.mark.long),
        ("dcp", "dcp", ["__0_0.distcp", ".metadata.tmp"] * 4, False),
        pytest.param("async", "dcp", ["__0_0.distcp", ".metadata.tmp"] * 4, False, marks=pytest.mark.long),
        ("file", "file", ["model.pkl"] * 4, False),
    ],
)
def test_each_save_is_recorded_once(how: str, kind: str, names: list[str], overwritten: bool, tmp_path: Path) -> None:
    done = launch(tmp_path, SAVES, how, ranks=0, steps=9)
    assert done.exit_code == 0, done.output
    saves = done.of(0, Save)
    assert [Path(save.path).name for save in saves] == names
    assert {save.kind for save in saves} == {kind}
    assert [save.overwritten for save in saves] == [overwritten and number > 0 for number in range(len(saves))]
    assert [save.number for save in saves] == list(range(1, len(saves) + 1))
    assert all(save.bytes > 0 and save.step >= 1 for save in saves)


LATE = """
    import threading, torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import FileSystem

    create, stepped = FileSystem.create_stream, threading.Event()
    def create_late(system, path, mode):
        stepped.wait(60)
        return create(system, path, mode)
    FileSystem.create_stream = create_late
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        if step == 1:
            saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id="checkpoint-2")
    stepped.set()
    saved.result()
"""


def test_a_save_that_later_steps_overtake_is_of_its_own_step(tmp_path: Path) -> None:
    done = launch(tmp_path, LATE, ranks=0, steps=9)
    assert [(Path(save.path).name, save.step) for save in done.of(0, Save)] == [
        ("__0_0.distcp", 2), (".metadata.tmp", 2),
    ], done.output  # fmt: skip


@pytest.mark.parametrize(
    ("how", "torn", "whole"),
    [
        ("replace", "model.tmp", "model.pt"),
        ("stream", "model.pt", None),
        pytest.param("safetensors", "model.safetensors", None, marks=pytest.mark.long),
        pytest.param("file", "model.tmp", "model.pkl", marks=pytest.mark.long),
    ],
)
def test_a_torn_save_is_half_a_file_and_a_killed_rank(how: str, torn: str, whole: str | None, tmp_path: Path) -> None:
    done = launch(tmp_path, SAVES, how, ranks=0, steps=9, fault={"kind": "torn-save", "save": 2, "rank": 0})
    assert done.exit_code == -9, done.output
    (injected,) = done.of(0, Injected)
    assert injected.path == str(tmp_path / torn)
    assert 0 < injected.bytes == injected.whole // 2
    assert (tmp_path / torn).stat().st_size == injected.bytes
    # A script that renames has the whole file of its first save; one that overwrites has nothing else.
    assert whole is None or (tmp_path / whole).stat().st_size > injected.bytes
    assert len(done.of(0, Save)) == 1


def _read(batches: int, change: Callable[[torch.Tensor], torch.Tensor], ahead: bool) -> list[tuple[int | None, int]]:
    """Return the pass and the number of each batch of two rounds, of which the script has kept the second."""
    probe = SimpleNamespace(torch=torch, restart=False, safe=lambda _: lambda function: function)
    loaders, digest = Loaders(cast(Probe, probe)), lambda data: samples.digest(torch, data)
    data = torch.utils.data.TensorDataset(torch.arange(2.0 * batches).reshape(batches, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=1)
    iterator = iter(loader)
    loaders._begin_pass(iterator, loader)
    kept, found = [], []
    for (batch,) in iterator:
        loaders._yielded(iterator, [batch])
        kept.append(batch)
        if not ahead:
            found.append(loaders.place(digest(change(batch))))
    loaders._ended(iterator)
    found += [loaders.place(digest(change(batch))) for batch in kept * (1 + ahead) for _ in range(2)]
    return [(place.of.number, place.number) for place in found]


@pytest.mark.parametrize("change", [lambda batch: batch, lambda batch: 3 * batch], ids=["as read", "changed"])
def test_batches_that_a_script_keeps_are_passes(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As `itertools.cycle` keeps them. The model may have each one twice."""
    numbers = range(1, 13)
    assert _read(12, change, ahead=False) == [(0, one) for one in numbers] + [(1, one) for one in numbers for _ in "12"]


def test_batches_that_are_all_read_first_are_known() -> None:
    due = [(turn, one) for turn in (0, 1) for one in range(1, 13) for _ in "12"]
    assert _read(12, lambda batch: batch, ahead=True) == due


@pytest.mark.parametrize(("backends", "count"), [(["gloo", "gloo"], 6), (["gloo", "ucc"], None), ([], 0)])
def test_collectives_of_a_backend_that_does_not_count_are_unknown(backends: list[str], count: int | None) -> None:
    def counted(backend: str) -> int:
        if backend == "ucc":
            raise RuntimeError("Backend ucc does not yet support sequence numbers.")
        return 3

    groups = [SimpleNamespace(_get_sequence_number_for_group=partial(counted, one)) for one in backends]
    distributed = SimpleNamespace(distributed_c10d=SimpleNamespace(_world=SimpleNamespace(pg_map=groups)))
    probe = SimpleNamespace(distributed=distributed, safe=lambda _: lambda _: lambda: None)
    assert probe_world.World(cast(Probe, probe)).collectives() == count


@pytest.mark.parametrize(("restart", "number"), [(True, 7), (False, 1)])
def test_a_restart_that_reads_seven_batches_before_a_forward_pass_skips_six(restart: bool, number: int) -> None:
    """In its second pass too. A run from the start reads them ahead."""
    loaders = cast(Loaders, SimpleNamespace(probe=SimpleNamespace(restart=restart)))
    assert Loaders._next(loaders, Pass(1, read=7)) == number
