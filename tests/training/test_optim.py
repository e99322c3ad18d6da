"""LAMB against its paper, step by step; the values of schedules; inconsistent keys."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from training.config import Config, ConfigError, Train, apply_override, load_texts
from training.trainer.lamb import Lamb
from training.trainer.optimizer import build_optimizer, learning_rate_factor


def recipe(config: Config, **changes: object) -> Train:
    return Train.model_validate({**config.train.model_dump(), **changes})


class Two(nn.Module):
    """A matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)


def by_the_paper(
    weight: torch.Tensor, gradients: list[torch.Tensor], rate: float, decay: float, adapt: bool
) -> torch.Tensor:
    """Algorithm 2 of You et al. 2019 in float64, line by line; without the scaling if not `adapt`."""
    x, m, v = weight.double(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6)
        u = r + decay * x
        x = x - rate * (x.norm() / u.norm() if adapt else 1.0) * u
    return x


def test_lamb_follows_the_paper(config: Config) -> None:
    torch.manual_seed(0)
    model = Two()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    wanted = recipe(config, optimizer="lamb", learning_rate=0.01, weight_decay=0.1, beta2=0.999, epsilon=1e-6)
    optimizer = build_optimizer(model, wanted)
    assert isinstance(optimizer, Lamb)
    gradients: dict[str, list[torch.Tensor]] = {name: [] for name in start}
    for _ in range(7):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[name].append(parameter.grad.clone())
        optimizer.step()
    weight = by_the_paper(start["linear.weight"], gradients["linear.weight"], 0.01, 0.1, True)
    bias = by_the_paper(start["linear.bias"], gradients["linear.bias"], 0.01, 0.0, False)
    torch.testing.assert_close(model.linear.weight.detach().double(), weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.linear.bias.detach().double(), bias, rtol=1e-5, atol=1e-6)


def test_lamb_moves_each_matrix_by_the_rate_times_its_norm(config: Config) -> None:
    """However large the gradients are; AdamW (control) does not."""
    moved = {}
    for name in ("lamb", "adamw"):
        torch.manual_seed(0)
        model = Two()
        before = model.linear.weight.detach().clone()
        optimizer = build_optimizer(model, recipe(config, optimizer=name, learning_rate=0.02))
        for parameter in model.parameters():
            parameter.grad = 1000 * torch.randn_like(parameter)
        optimizer.step()
        moved[name] = ((model.linear.weight - before).norm() / before.norm()).item()
    assert moved["lamb"] == pytest.approx(0.02, rel=1e-4)
    assert moved["adamw"] != pytest.approx(0.02, rel=0.1)


def test_lamb_does_not_scale_a_zero_matrix_or_move_a_frozen_one() -> None:
    zero, frozen = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([{"params": [zero, frozen]}], 0.1, (0.9, 0.999), 1e-6)
    zero.grad = torch.ones(2, 2)
    optimizer.step()
    torch.testing.assert_close(zero.detach(), torch.full((2, 2), -0.1), rtol=1e-4, atol=0)
    assert torch.equal(frozen, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("schedule", "power", "half"),
    [
        ("cosine", None, 0.5),
        ("linear", None, 0.5),
        ("polynomial", 0.5, math.sqrt(0.5)),
        ("polynomial", 2.0, 0.25),
    ],
)
def test_schedules_rise_to_the_peak_and_fall_to_the_minimum(
    config: Config, schedule: str, power: float | None, half: float
) -> None:
    wanted = recipe(
        config,
        steps=110,
        warmup_steps=10,
        schedule=schedule,
        schedule_power=power,
        min_learning_rate_ratio=0.0,
    )
    rates = [learning_rate_factor(step, wanted) for step in range(111)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(half)
    assert rates[110] == 0.0
    assert all(a > b for a, b in pairwise(rates[10:]))
    floor = wanted.model_copy(update={"min_learning_rate_ratio": 0.2})
    assert learning_rate_factor(110, floor) == pytest.approx(0.2)
    assert learning_rate_factor(60, floor) == pytest.approx(0.2 + 0.8 * half)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("train.schedule=polynomial",),
            r"train\.schedule polynomial needs train\.schedule_power; 1\.0 is linear",
        ),
        (
            ("train.schedule_power=0.5",),
            r"schedule_power is for schedule polynomial only, schedule is cosine",
        ),
        (("train.schedule=linaer",), r"did you mean linear\?"),
        (("train.optimizer=lam",), r"did you mean lamb\?"),
    ],
)
def test_inconsistent_keys_are_one_error(
    texts: dict[str, tuple[str, str]], overrides: tuple[str, ...], said: str
) -> None:
    for override in overrides:
        texts = apply_override(texts, override)
    with pytest.raises(ConfigError, match=said):
        load_texts(texts)
