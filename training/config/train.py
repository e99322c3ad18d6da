"""How it is trained: the recipe, and the samples at its end."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from training.config.base import (
    Count,
    Fraction,
    NotNegative,
    Positive,
    Section,
    Share,
    Whole,
    with_tuple,
    wrong,
)


class Train(Section):
    """The recipe. Batch sizes are in samples (sequences), steps are optimizer steps.

    The learning rate rises linearly over `warmup_steps` and then falls by `schedule` to its minimum;
    `schedule_power` is the exponent of a polynomial one.
    """

    seed: Whole
    steps: Count
    global_batch_size: Count
    optimizer: Literal["adamw", "lamb"] = "adamw"
    learning_rate: Positive
    schedule: Literal["cosine", "linear", "polynomial"] = "cosine"
    schedule_power: Positive | None = None
    min_learning_rate_ratio: Share = 0.1
    warmup_steps: Whole = 0
    weight_decay: NotNegative = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: Positive = 1e-8
    gradient_clip: Positive = 1.0
    eval_every: Count
    eval_sequences: Count

    @model_validator(mode="after")
    def _power(self) -> Self:
        if (self.schedule == "polynomial") != (self.schedule_power is not None):
            given = self.schedule_power is not None
            raise wrong(
                "train.schedule_power" if given else "train.schedule",
                f"train.schedule_power is for schedule polynomial only, schedule is {self.schedule}"
                if given
                else "train.schedule polynomial needs train.schedule_power; 1.0 is linear",
            )
        return self

    @model_validator(mode="after")
    def _warmup(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below steps {self.steps}")
        return self


class Sample(Section):
    """Continuations printed when training ends; no prompts, no samples. BERT fills in each [MASK]."""

    prompts: tuple[str, ...] = ()
    max_new_tokens: Count = 48
    temperature: NotNegative = 0.8

    @model_validator(mode="before")
    @classmethod
    def _prompts(cls, value: Any) -> Any:
        return with_tuple(value, "prompts")
