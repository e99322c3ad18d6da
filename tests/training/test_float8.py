"""Products in float8 change results by rounding only; the card's products stand in as emulated ones here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cosine_similarity

from training.config import Config, ConfigError, apply_override, load_texts
from training.device import resolve
from training.models.causal import CausalLM, initialise, named_parameters
from training.pretrain import TASK
from training.trainer.float8 import convert, use_float8

pytest.importorskip("torchao", reason="torchao is not installed: .venv/bin/uv pip install torchao==0.18.*")
Texts = dict[str, tuple[str, str]]
WIDE = ("model.hidden_size=64", "model.intermediate_size=128", "device.precision=bf16")


def _config(texts: Texts, *overrides: str) -> Config:
    for override in (*WIDE, *overrides):
        texts = apply_override(texts, override)
    return load_texts(texts)


def _model(config: Config) -> CausalLM:
    model = TASK.build(config, resolve(config))
    assert isinstance(model, CausalLM)
    return model


def _learn(model: CausalLM, config: Config) -> tuple[float, torch.Tensor]:
    """The loss and all gradients of one batch."""
    ids = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))
    places = torch.arange(32).expand(2, 32).contiguous()
    loss = model(ids, ids.roll(-1, 1), places, torch.zeros_like(ids)).sum()
    loss.backward()
    found = [p.grad.flatten() for _, p in named_parameters(model) if p.grad is not None]
    return loss.item(), torch.cat([each.to_local() if hasattr(each, "to_local") else each for each in found])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("sharded", [False, True])
def test_only_rounding_changes(texts: Texts, recipe: str, sharded: bool, alone: None) -> None:
    config = _config(texts)
    results, names = [], []
    for rounded in (False, True):
        model = _model(config)
        if rounded:
            assert convert(model, recipe, emulate=True) == 7 * len(model.blocks())
        if sharded:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            mesh = init_device_mesh("cpu", (1,))
            for part in (*model.blocks(), model):
                fully_shard(part, mesh=mesh, mp_policy=policy)
        initialise(model, config, torch.device("cpu"))
        names.append([name for name, _ in named_parameters(model)])
        with torch.autocast("cpu", torch.bfloat16, enabled=not sharded):
            results.append(_learn(model, config))
    (plain, gradients), (loss, rounded_gradients) = results
    assert names[0] == names[1]
    assert loss == pytest.approx(plain, rel=5e-3)
    assert cosine_similarity(gradients, rounded_gradients, dim=0) > 0.99
    assert not torch.equal(gradients, rounded_gradients)


def test_layers_of_other_sizes_are_refused(texts: Texts) -> None:
    config = _config(texts, "model.hidden_size=40", "model.num_attention_heads=2", "model.num_key_value_heads=1",
                     "model.head_dim=20", "model.intermediate_size=72")  # fmt: skip
    with pytest.raises(ConfigError, match=r"no linear layer is large enough .* multiples of 16; nearest value: off"):
        convert(_model(config), "rowwise", emulate=True)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_small_layers_stay_in_bf16(texts: Texts, recipe: str) -> None:
    """Llama 3.2 3B's sizes: k_proj and v_proj have 1,024 rows."""
    config = _config(texts, "model.hidden_size=3072", "model.num_attention_heads=24", "model.num_key_value_heads=8",
                     "model.intermediate_size=8192")  # fmt: skip
    model = _model(config)
    assert convert(model, recipe) == 5 * len(model.blocks())
    left = {name.split(".")[-1] for name, one in model.blocks()[0].named_modules() if type(one) is torch.nn.Linear}
    assert left == {"k_proj", "v_proj"}


def test_a_processor_is_refused(texts: Texts) -> None:
    free = ("device.type=auto", "device.compile=auto", "device.precision=bf16")
    config = _config(texts, "device.float8=rowwise", *free)
    with pytest.raises(ConfigError, match=r"device.float8 is rowwise, but cpu .* multiplies no float8; nearest.*off"):
        use_float8(_model(config), config, resolve(config))


@pytest.mark.parametrize("more", ["parallel.tensor=2"])
def test_other_splits_are_refused(texts: Texts, more: str) -> None:
    with pytest.raises(ConfigError, match=r"device.float8 does not work with parallel.tensor; nearest value: off"):
        _config(texts, "device.float8=rowwise", "parallel.sharding=fsdp", more)
