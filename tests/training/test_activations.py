"""What a block keeps for its backward pass changes memory and work, but neither loss nor gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from training.config import Config, ConfigError, apply_override, load_texts
from training.device import resolve
from training.distributed.ranks import Ranks
from training.pretrain import TASK
from training.trainer import activations
from training.trainer.parallelize import parallelise

MATRIX = torch.ops.aten.mm.default
COPY = torch.ops.aten.copy_.default
Texts = dict[str, tuple[str, str]]


class Calls(TorchDispatchMode):
    """Counts operations, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[Any] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of[operation] += 1
        return operation(*args, **(kwargs or {}))


def _config(texts: Texts, policy: str, *overrides: str) -> Config:
    for override in (f"parallel.activation_checkpointing={policy}", *overrides):
        texts = apply_override(texts, override)
    return load_texts(texts)


def _gradients(config: Config, calls: Calls | None = None) -> tuple[float, torch.Tensor]:
    """The loss and all gradients of one batch."""
    parallel = parallelise(TASK, config, resolve(config), Ranks(0, 1, 0, None))
    ids = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))
    places = torch.arange(32).expand(2, 32).contiguous()
    with calls or nullcontext():
        loss = parallel.wrapped(ids, ids.roll(-1, 1), places, torch.zeros_like(ids))
        loss.sum().backward()
    gradients = [p.grad.flatten() for p in parallel.model.parameters() if p.grad is not None]
    return loss.item(), torch.cat(gradients)


@pytest.fixture(autouse=True)
def own_budget() -> Iterator[None]:
    yield
    torch._functorch.config.activation_memory_budget = 1.0


# A block has seven products with weights. The backward pass computes none of them again, every second one, or all
# but the last, whose result it does not need.
@pytest.mark.parametrize(("policy", "again"), [("selective", 2 * 3), ("full", 2 * 6), ("offload", 0)])
def test_a_policy_computes_again_what_it_does_not_keep(
    texts: Texts, policy: str, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "_SMALLEST", 1)
    plain, other = Calls(), Calls()
    expected = _gradients(_config(texts, "none"), plain)
    found = _gradients(_config(texts, policy), other)
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])
    assert other.of[MATRIX] - plain.of[MATRIX] == again
    assert (other.of[COPY] > plain.of[COPY] + 20) == (policy == "offload")  # there and back


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.parametrize("policy", ["selective", "full", "offload", "budget:0.3"])
def test_policies_compose_with_compiled_blocks(texts: Texts, policy: str) -> None:
    expected = _gradients(_config(texts, "none"))
    torch._dynamo.reset()
    found = _gradients(_config(texts, policy, 'device.compile="on"'))
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("budget:0.5", "budget:0.5, which the compiler carries out, but blocks are not compiled"),
        ("budget:1.5", "parallel.activation_checkpointing: 'budget:1.5' is not none, selective, full, offload or"),
    ],
)
def test_impossible_policies_are_refused(texts: Texts, policy: str, error: str) -> None:
    build: Callable[[], Any] = lambda: _gradients(_config(texts, policy))  # noqa: E731
    with pytest.raises(ConfigError, match=error):
        build()
