"""Loaded values equal the saved ones bit for bit, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.training.checkpoint.values import assert_holds, held, whole
from training.checkpoint.errors import CheckpointError
from training.checkpoint.header import SIZES
from training.checkpoint.layout import step_name
from training.checkpoint.read import Checkpoint, open_checkpoint
from training.checkpoint.shards import Shard, shards_of
from training.checkpoint.store import Store
from training.checkpoint.tensors import DTYPES
from training.checkpoint.write import Snapshot


def save(directory: Path, tensors: dict[str, torch.Tensor], step: int = 1) -> Checkpoint:
    Store(directory).save(Snapshot(step, shards_of(tensors.items()), meta={"config": "digest"}))
    return open_checkpoint(directory / step_name(step))


def every_dtype() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        code: torch.randint(0, 2 if code == "BOOL" else 120, (3, 5), generator=draw).to(dtype)
        for code, dtype in DTYPES.items()
    }


def test_every_dtype_and_odd_shape(tmp_path: Path) -> None:
    tensors = every_dtype() | {
        "0-d": torch.tensor(2.5),
        "no rows": torch.empty(0, 3),
        "no columns": torch.empty(3, 0),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    }
    checkpoint = save(tmp_path, tensors)
    for name, tensor in tensors.items():
        found = checkpoint.full(name)
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        bits = tensor.contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(found.reshape(-1).view(torch.uint8), bits), name


def test_sizes_of_dtypes_are_torchs() -> None:
    assert {code: dtype.itemsize for code, dtype in DTYPES.items()} == SIZES


def test_files_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    tensors = every_dtype()
    checkpoint = save(tmp_path, tensors)
    with safe_open(checkpoint.directory / "rank-00000.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(tensors)
        for name, tensor in tensors.items():
            found = file.get_tensor(name).view(torch.uint8)
            assert torch.equal(found, tensor.view(torch.uint8)), name


def test_loading_fills_the_parameters_themselves(tmp_path: Path) -> None:
    source, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    checkpoint = save(tmp_path, dict(source.named_parameters()))
    address = target.weight.data_ptr()
    checkpoint.load(shards_of(target.named_parameters()))
    assert torch.equal(target.weight, source.weight)
    assert target.weight.data_ptr() == address
    assert target.weight.requires_grad
    strided = torch.zeros(3, 2).T
    checkpoint.load({"weight": Shard(strided, (2, 3), 0, True)}, only="weight")
    assert torch.equal(strided, source.weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: run on a machine with one")
def test_cuda_tensors(tmp_path: Path) -> None:
    tensors = {name: tensor.cuda() for name, tensor in every_dtype().items()}
    checkpoint = save(tmp_path, tensors)
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    checkpoint.load(shards_of(found.items()))
    for name, tensor in tensors.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_states_and_meta(checkpoints: Path) -> None:
    checkpoint = Store(checkpoints).latest()
    assert checkpoint is not None
    assert_holds(checkpoint, 2)
    assert checkpoint.world_size == 2
    assert checkpoint.meta == {"versions": {"torch": "test"}}
    assert checkpoint.directory == checkpoints / "step-00000002"
    assert (checkpoints / "LATEST").read_text() == "step-00000002\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.bias": None}, "tensor 'model.bias' is stored, but not wanted"),
        ({"model.other": (1,)}, "tensor 'model.other' is wanted, but not stored"),
        ({"model.bias": (2,)}, "tensor 'model.bias' has shape (1,), not (2,)"),
        ({"model.weight": (5, 6)}, "tensor 'model.weight' has shape (5, 3, 2), not (5, 6)"),
    ],
)
def test_names_and_shapes_are_strict(
    checkpoints: Path, change: dict[str, tuple[int, ...] | None], message: str
) -> None:
    checkpoint = open_checkpoint(checkpoints / "step-00000002")
    given = {name: torch.zeros_like(tensor) for name, tensor in whole(2).items()}
    given |= {name: torch.zeros(shape) for name, shape in change.items() if shape is not None}
    wanted = {name: tensor for name, tensor in given.items() if change.get(name, ()) is not None}
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(shards_of(wanted.items()))
    assert message in str(caught.value)
    assert not any(tensor.any() for tensor in wanted.values()), "nothing may be filled before the check"


def test_dtype_is_strict(checkpoints: Path) -> None:
    checkpoint = open_checkpoint(checkpoints / "step-00000002")
    wanted = whole(2) | {"model.norm": torch.zeros(4)}
    with pytest.raises(CheckpointError, match=r"tensor 'model.norm' has dtype BF16, not F32"):
        checkpoint.load(shards_of(wanted.items()))


def test_only_a_part(checkpoints: Path) -> None:
    checkpoint = open_checkpoint(checkpoints / "step-00000002")
    model = {name: torch.zeros_like(tensor) for name, tensor in whole(2).items() if name.startswith("model.")}
    checkpoint.load(shards_of(model.items()), only="model.")
    assert all(torch.equal(model[name], whole(2)[name]) for name in model)
    del model["model.bias"]
    with pytest.raises(CheckpointError, match=r"'model.bias' is stored, but not wanted"):
        checkpoint.load(shards_of(model.items()), only="model.")
    with pytest.raises(CheckpointError, match=r"no tensor 'model.nothing'"):
        checkpoint.full("model.nothing")


@pytest.mark.parametrize("saved_sharded", [True, False])
def test_two_ranks_to_one_to_three(ranks: Callable[..., list[Any]], tmp_path: Path, saved_sharded: bool) -> None:
    """Through world sizes 2, 1 and 3, sharded and replicated, every bit is preserved."""
    ranks("save", 2, directory=tmp_path, steps=[1], sharded=saved_sharded)
    for world, sharded in ((1, True), (3, True), (3, False), (2, not saved_sharded)):
        loaded = ranks("load", world, directory=tmp_path, sharded=sharded)
        assert loaded == [{"step": 1, "equal": True, "told": []}] * world
    ranks("save", 1, directory=tmp_path, steps=[2], sharded=saved_sharded)
    assert ranks("load", 3, directory=tmp_path) == [{"step": 2, "equal": True, "told": []}] * 3
    ranks("save", 3, directory=tmp_path, steps=[3], sharded=not saved_sharded)
    assert ranks("load", 2, directory=tmp_path, sharded=False) == [{"step": 3, "equal": True, "told": []}] * 2


def test_only_the_overlapping_rows_are_read(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of three whose rows are in one of the two files does not open the other."""
    opened: list[str] = []
    real = Checkpoint._read

    def spy(self: Checkpoint, file_name: str, name: str, row: int, out: torch.Tensor) -> None:
        opened.append(file_name)
        real(self, file_name, name, row, out)

    monkeypatch.setattr(Checkpoint, "_read", spy)
    checkpoint = open_checkpoint(checkpoints / "step-00000002")
    mine = {"model.embedding": held(whole(2), 2, 3, sharded=True)["model.embedding"]}
    checkpoint.load(mine, only="model.embedding")
    assert opened == ["rank-00001.safetensors"]


def test_replicated_tensors_are_written_once_and_balanced(ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    ranks("save", 3, directory=tmp_path, steps=[1], sharded=False)
    names: list[str] = []
    sizes = []
    for rank in range(3):
        with safe_open(tmp_path / f"step-00000001/rank-{rank:05d}.safetensors", framework="pt") as file:
            names += file.keys()
            sizes.append(sum(file.get_tensor(name).nbytes for name in file.keys()))  # noqa: SIM118 - not a mapping
    assert sorted(names) == sorted(name for name, tensor in whole(1).items() if tensor.numel())
    assert sizes == [168, 120, 20], "the largest tensor, the next, and the three small ones"
