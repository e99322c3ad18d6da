"""The loss in chunks of tokens is that of all logits at once, in less memory; so is that of labelled positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from training.config import choices
from training.models.head import IGNORE, HeadLoss, Words

WORDS, WIDTH, TOKENS = 515, 16, 96


class Largest(TorchDispatchMode):
    """The largest number of elements of any result."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def _inputs(head_is_trained: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, TOKENS // 2, WIDTH, generator=draw).requires_grad_()
    table = torch.randn(WORDS, WIDTH, generator=draw).requires_grad_(head_is_trained)
    labels = torch.randint(0, WORDS, (2, TOKENS // 2), generator=draw)
    labels[0, :40] = IGNORE  # at least one chunk without any label
    return hidden, table, labels


def _results(
    how: HeadLoss, half: bool, head_is_trained: bool, mode: Any = None, chosen: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    hidden, table, labels = _inputs(head_is_trained)
    cast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=half)
    with mode or nullcontext(), cast:
        loss = how(hidden, table, labels, chosen)
        (loss * 0.25).backward()
        with torch.no_grad():
            evaluated = how(hidden, table, labels, chosen)
    found = {"loss": loss, "evaluated": evaluated, "hidden": hidden.grad, "head": table.grad}
    return {name: value.detach() for name, value in found.items() if value is not None}


@pytest.mark.parametrize("head_is_trained", [True, False], ids=["full", "lora"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tokens", [16, 36, 1])
def test_chunks_give_the_loss_and_the_gradients_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, tokens: int, half: bool, head_is_trained: bool
) -> None:
    """Chunks that divide the tokens, that do not, and single tokens."""
    expected, whole = _results(HeadLoss(), half, head_is_trained, mode := Largest()), mode.elements
    monkeypatch.setattr(choices, "_LOGITS_ON_A_CPU", WORDS * tokens)
    found = _results(HeadLoss(), half, head_is_trained, mode := Largest())
    assert found.keys() == expected.keys()
    near = 1e-2 if half else 2e-6
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        torch.testing.assert_close(value, expected[name], rtol=near, atol=near)
    assert whole == TOKENS * WORDS
    assert mode.elements <= max(tokens, WIDTH) * WORDS


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Words]:
    """All words, on the only rank of a group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield Words(dist.group.WORLD, 0)
    dist.destroy_process_group()


@pytest.mark.parametrize("head_is_trained", [True, False], ids=["full", "lora"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tokens", [TOKENS, 16, 36, 1])
@pytest.mark.parametrize("shared", [False, True], ids=["", "words of a group"])
def test_positions_without_a_label_need_no_logits(
    monkeypatch: pytest.MonkeyPatch, alone: Words, tokens: int, half: bool, head_is_trained: bool, shared: bool
) -> None:
    """56 of 96 positions have a label; 60 are computed."""
    expected = _results(HeadLoss(), half, head_is_trained)
    monkeypatch.setattr(choices, "_LOGITS_ON_A_CPU", WORDS * tokens)
    chosen = torch.arange(36, TOKENS)
    found = _results(HeadLoss(alone if shared else None), half, head_is_trained, mode := Largest(), chosen)
    assert found.keys() == expected.keys()
    near = 1e-2 if half else 2e-6
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        torch.testing.assert_close(value, expected[name], rtol=near, atol=near)
    assert not found["hidden"][0, :36].any()
    assert mode.elements <= max(min(tokens, len(chosen)), WIDTH) * WORDS


@pytest.mark.parametrize("tokens", [TOKENS, 16])
def test_one_compilation_does_for_all_numbers_of_positions(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr(choices, "_LOGITS_ON_A_CPU", WORDS * tokens)
    torch._dynamo.reset()
    how, graphs = HeadLoss(), CompileCounterWithBackend("eager")
    parts = ("whole",) if tokens == TOKENS else ("partial", "gradient")
    for part in parts:
        setattr(how, part, torch.compile(getattr(how, part), fullgraph=True, backend=graphs))
    hidden, table, labels = _inputs(head_is_trained=False)
    for first in (36, 24, 12, 6):
        chosen = torch.arange(first, TOKENS)
        how(hidden, table, labels, chosen).backward()
        assert graphs.frame_count == len(parts)


@pytest.mark.long
@pytest.mark.longest
def test_compiled_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _results(HeadLoss(), half=False, head_is_trained=True)
    monkeypatch.setattr(choices, "_LOGITS_ON_A_CPU", WORDS * 16)
    how = HeadLoss()
    how.compile()
    for name, value in _results(how, half=False, head_is_trained=True).items():
        torch.testing.assert_close(value, expected[name], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "words", "card", "size"),
    [
        (2048, 2048, False, 2048),  # a small vocabulary: all at once
        (16384, 128256, False, 256),
        (16384, 128256, True, 4096),
        (16381, 128256, True, 4185),  # a prime: the last chunk is smaller
        (8, 1 << 40, True, 1),
    ],
)
def test_size_of_a_chunk(tokens: int, words: int, card: bool, size: int) -> None:
    assert choices.loss_chunk(tokens, words, card) == size
