"""Silent corruption: a rank whose parameters differ from those of its replicas is named, and nothing is saved."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training import flipped
from tests.training.inprocess import Texts
from tests.training.jobs import own_network
from training.checkpoint.layout import committed_steps
from training.config import apply_override
from training.run.failure import CODES, PERMANENT
from training.trainer.replicas import _sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_bit_is_part_of_the_sum(dtype: torch.dtype) -> None:
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype).T
    before, size = _sum(values), values.element_size()
    bits = values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    for bit in range(8 * size - 1):
        bits[3, 2].bitwise_xor_(1 << bit)
        assert _sum(values) != before, bit
        bits[3, 2].bitwise_xor_(1 << bit)
    assert _sum(values) == before
    assert _sum(-values) != before, "the sign"


@pytest.mark.long
def test_a_flipped_bit_is_named_before_the_next_save(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    """The bit flips after step 7."""
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    for override in ("train.check_replicas_every=9", "train.steps=12", "train.eval_every=100"):
        texts = apply_override(texts, override)
    for layer, (_, text) in texts.items():
        (configuration / f"{layer}.yaml").write_text(text)
    command = [sys.executable, flipped.__file__, str(configuration), str(tmp_path), str(data_root)]
    done = subprocess.run([*own_network(), *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    codes = {
        name: list(map(int, found))
        for name, *found in map(str.split, done.stdout.splitlines())
        if name in flipped.CASES
    }
    assert "corruption" not in PERMANENT
    wrong, peer = CODES["corruption"], CODES["lost peer"]
    assert codes == {
        "two": [wrong, wrong], "three": [peer, peer, wrong, peer], "nodes": [peer, wrong, peer, wrong],
        "sound": [0] * 4, "shards": [0] * 2,
    }, done.stderr[-3000:]  # fmt: skip
    for name, who in (("two", (0, 1)), ("three", (2,)), ("nodes", (1, 3))):
        assert committed_steps(tmp_path / name / "checkpoints") == [5], name
        records = [json.loads(path.read_text()) for path in (tmp_path / name / "failures").glob("*.json")]
        records = [one for one in records if one["class"] == "corruption"]
        assert {one["rank"] for one in records} == set(who)
        said = records[0]["message"]
        assert "at step 9, the first is model.layers.1.post_attention_layernorm.weight: " in said
        for rank in who:
            assert f"rank {rank} on {socket.gethostname()} (node node-{rank}), cpu (" in said
        assert ("the other 3 agree" in said) == (name == "three")
    assert "compares nothing: parallel.sharding fsdp on 2 ranks keeps each parameter once" in done.stdout
