"""The points of a sweep: their order, their names, and what is refused."""

from __future__ import annotations

import pytest

from tools.cells.knobs import Knobs
from tools.core.errors import UserError
from tools.job import sweep

RATE, STEPS = "train.learning_rate", "train.steps"


@pytest.mark.parametrize(
    ("knobs", "sweeps", "made"),
    [
        (Knobs(name="a"), (), {"a": ()}),
        (
            Knobs(),
            (f"{RATE}=1e-4, 3.0e-4",),
            {"lr-1e-4": (f"{RATE}=1e-4",), "lr-3-0e-4": (f"{RATE}=3.0e-4",)},
        ),
        (
            Knobs(name="b", settings=("train.seed=1",)),
            (f"{RATE}=1e-4", f"{STEPS}=10,20"),
            {
                "b-lr-1e-4-steps-10": ("train.seed=1", f"{RATE}=1e-4", f"{STEPS}=10"),
                "b-lr-1e-4-steps-20": ("train.seed=1", f"{RATE}=1e-4", f"{STEPS}=20"),
            },
        ),
        (
            Knobs(),
            ("train.warmup_steps=1", "train.weight_sum=2"),  # the same initials
            {"train-warmup-steps-1-train-weight-sum-2": ("train.warmup_steps=1", "train.weight_sum=2")},
        ),
    ],
)
def test_each_point_has_a_name_and_its_values(
    knobs: Knobs, sweeps: tuple[str, ...], made: dict[str, tuple[str, ...]]
) -> None:
    assert {str(one.name): one.settings for one in sweep.points(knobs, sweeps)} == made


@pytest.mark.parametrize(
    ("sweeps", "message"),
    [
        ((RATE,), "KEY=VALUE,VALUE is needed"),
        ((f"{RATE}=",), "KEY=VALUE,VALUE is needed"),
        ((f"{RATE}=1,,2",), "KEY=VALUE,VALUE is needed"),
        ((f"{RATE}=1,1",), "a value is given twice"),
        ((f"{RATE}=1", f"{RATE}=2"), "a key is given twice"),
        (("train.seed=1",), "given with --sweep and with --set"),
        ((f"{RATE}=0.1,0-1",), "two jobs would have the name lr-0-1"),
        (
            (f"{RATE}={','.join(map(str, range(9)))}", f"{STEPS}={','.join(map(str, range(9)))}"),
            "more than 64",
        ),
        (tuple(f"a.k{n}={','.join(map(str, range(60)))}" for n in range(60)), "more than 64"),
    ],
)
def test_what_names_no_jobs_is_refused(sweeps: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sweep.points(Knobs(settings=("train.seed=7",)), sweeps)
