"""The recipe, and the samples at the end of training."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, model_validator

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

MOST_BETA2_IN_BF16 = 0.99  # a change of 1/100 of the difference is above bf16's rounding of 1/512


def _reaction(value: str) -> str:
    kind, _, most = value.partition(":")
    if value in ("stop", "skip", "ignore") or (kind == "rollback" and re.fullmatch("[1-9][0-9]{0,2}", most)):
        return value
    near = difflib.get_close_matches(kind.lower(), ("stop", "skip", "ignore", "rollback"), n=1, cutoff=0.0)[0]
    times = min(max(int(most), 1), 999) if re.fullmatch("-?[0-9]{1,9}", most) else 1
    near = near.replace("rollback", f"rollback:{times}")
    raise ValueError(f"{value!r} is not stop, skip, ignore or rollback:N with N from 1 to 999; nearest value: {near}")


class Train(Section):
    """The recipe. A sample is one sequence of sequence_length tokens; a step is one optimizer step."""

    seed: Whole
    """Seed of the initial weights, the order of the data and every other random choice."""

    steps: Count
    """Number of optimizer steps of the whole run."""

    global_batch_size: Count
    """Number of samples per step over all ranks; a multiple of parallel.micro_batch_size times the number of
    ranks."""

    optimizer: Literal["adamw", "lamb"] = "adamw"
    """The optimizer; lamb is for very large batches."""

    moment_precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of adamw's two moments; bf16 halves their memory and rounds every change of them, so that
    losses differ slightly and beta2 may be 0.99 at most."""

    learning_rate: Positive
    """The peak learning rate, reached after the warm-up."""

    schedule: Literal["cosine", "linear", "polynomial"] = "cosine"
    """How the learning rate falls from its peak to its minimum over the steps after the warm-up."""

    schedule_power: Positive | None = None
    """Exponent of the polynomial schedule; required for it, and an error for the others."""

    min_learning_rate_ratio: Share = 0.1
    """The last learning rate as a fraction of the peak, from 0 to 1."""

    warmup_steps: Whole = 0
    """Number of steps in which the learning rate rises linearly to its peak."""

    weight_decay: NotNegative = 0.1
    """Decoupled weight decay of matrices; norms and biases have none."""

    beta1: Fraction = 0.9
    """Decay rate of the optimizer's first moment, from 0 up to but not including 1."""

    beta2: Fraction = 0.95
    """Decay rate of the optimizer's second moment, from 0 up to but not including 1."""

    epsilon: Positive = 1e-8
    """Constant added to the denominator of the optimizer's update."""

    gradient_clip: Positive = 1.0
    """Upper limit of the gradients' global norm; larger gradients are scaled down to it."""

    on_nan: Annotated[str, AfterValidator(_reaction)] = "stop"
    """Reaction to a step whose loss or gradient norm is not finite. `stop` ends the run. `skip` leaves out the step's
    update, at most 10 times in a row, and makes each step wait for its loss. `rollback:N` loads the newest good
    checkpoint and skips the data of the steps since then, at most N times in a run."""

    on_spike: Annotated[str, AfterValidator(_reaction)] = "ignore"
    """Reaction to a loss or gradient norm more than 6 standard deviations above its mean over the last 128 steps: as
    `on_nan`, or `ignore`. The check begins after 64 steps."""

    check_replicas_every: Whole = 0
    """Number of steps between two comparisons of the parameters that several ranks hold; they are also compared before
    each save. A rank whose parameters differ ends the run, and nothing is saved. 0 for none; with `fsdp` there is
    nothing to compare, because each parameter exists once."""

    eval_every: Count
    """Number of steps between two evaluations on held-out data; one more follows the last step."""

    eval_sequences: Count
    """Number of held-out samples that an evaluation reads."""

    @model_validator(mode="after")
    def _nan_matters(self) -> Self:
        if self.on_nan == "ignore":
            raise wrong("train.on_nan", "train.on_nan ignore would train on broken weights; nearest value: skip")
        return self

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
    def _moments(self) -> Self:
        if self.moment_precision == "fp32":
            return self
        if self.optimizer != "adamw":
            text = f"train.moment_precision bf16 is for adamw only, optimizer is {self.optimizer}"
            raise wrong("train.moment_precision", text)
        if self.beta2 > MOST_BETA2_IN_BF16:
            raise wrong(
                "train.moment_precision",
                f"train.moment_precision is bf16, which loses the changes of a second moment with beta2 {self.beta2}; "
                f"nearest value of train.beta2: {MOST_BETA2_IN_BF16}",
            )
        return self

    @model_validator(mode="after")
    def _warmup(self) -> Self:
        if self.warmup_steps >= self.steps:
            text = f"train.warmup_steps {self.warmup_steps} is not below train.steps {self.steps}"
            raise wrong("train.warmup_steps", f"{text}; nearest value: {self.steps - 1}")
        return self


class Sample(Section):
    """Texts that the trained model writes when training ends."""

    prompts: tuple[str, ...] = ()
    """Beginnings of texts to continue, or texts with [MASK] for BERT to fill in; by default there are no
    samples."""

    max_new_tokens: Count = 48
    """Upper limit of the tokens that continue a prompt."""

    temperature: NotNegative = 0.8
    """Temperature of the sampling; 0 always takes the most likely token."""

    @model_validator(mode="before")
    @classmethod
    def _prompts(cls, value: Any) -> Any:
        return with_tuple(value, "prompts")
