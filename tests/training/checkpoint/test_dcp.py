"""DCP directories of other trainers: every value is read, and no pickle is executed."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from training.checkpoint.dcp import METADATA, read_index
from training.checkpoint.errors import CheckpointError
from training.weights.dcp import DcpTensors
from training.weights.tensors import whole

TENSORS = {
    "matrix": torch.arange(24.0).reshape(6, 4),
    "half": torch.arange(4.0).bfloat16(),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "scalar": torch.tensor(3.0),
    "part": torch.arange(100).reshape(10, 10)[2:4, 3:5],
    "empty": torch.empty(0, 3),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    dcp.save({"model": TENSORS, "step": 5}, checkpoint_id=tmp_path / "dcp", no_dist=True)  # type: ignore[attr-defined]
    return tmp_path / "dcp"


def test_every_value_is_read(saved: Path) -> None:
    tensors = DcpTensors(saved)
    assert set(tensors.kinds) == {f"model.{name}" for name in TENSORS}, "objects that are not tensors are left out"
    for name, expected in TENSORS.items():
        found = whole(tensors, f"model.{name}")
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), name
    rows = torch.empty(2, 4)
    tensors.read("model.matrix", 3, rows)
    assert torch.equal(rows, TENSORS["matrix"][3:5])


class Planted:
    """A pickle of this runs code in a careless reader."""

    def __init__(self, act: Callable[..., Any], *arguments: Any) -> None:
        self.call = act, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_a_planted_pickle_is_refused_and_not_executed(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    good = (saved / METADATA).read_bytes()
    for planted, reason in (
        (pickle.dumps(Planted(Path.touch, mark)), "which a checkpoint does not need"),
        (pickle.dumps(Planted(print, "x"), 0), "does not need"),
        (b"\x80\x04r\xff\xff\xff\x7f.", "instruction LONG_BINPUT"),
        (good[:-20], "was not read"),
        (pickle.dumps({"state_dict_metadata": {}}), "is not a checkpoint's"),
        (good.replace(b"__0_0.distcp", b"../_0.distcp"), "not a plain file name"),
    ):
        (saved / METADATA).write_bytes(planted)
        with pytest.raises(CheckpointError, match=reason):
            read_index(saved)
    (saved / METADATA).write_bytes(good)
    data = saved / "__0_0.distcp"
    piece = read_index(saved)["model.scalar"].pieces[0]
    inner = pickle.dumps(Planted(Path.touch, mark))
    with zipfile.ZipFile(tmp_path / "piece", "w") as archive:
        archive.writestr("archive/data.pkl", inner)
        archive.writestr("archive/data/0", b"\0" * 4)
    packed = (tmp_path / "piece").read_bytes().ljust(piece.length, b"\0")
    whole_file = data.read_bytes()
    data.write_bytes(whole_file[: piece.first] + packed[: piece.length] + whole_file[piece.first + piece.length :])
    with pytest.raises(CheckpointError):
        whole(DcpTensors(saved), "model.scalar")
    assert not mark.exists()
    data.write_bytes(whole_file[: piece.first])
    with pytest.raises(CheckpointError, match="damaged"):
        whole(DcpTensors(saved), "model.scalar")
