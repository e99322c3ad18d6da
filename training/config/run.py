"""Where it is trained: the device, how ranks share the work, checkpoints, where the model goes."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from training.config.base import Count, Section, not_bool

# Names of buckets as S3 has them; of a key only that it has no blanks and no empty part at its ends.
S3_PREFIX = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([^\s/](?:\S*[^\s/])?)")


class Device(Section):
    """What the machine is. `auto` is resolved at start, on every rank alike.

    `cacheset` names the directory of compiled graphs that jobs on neuron share one after the other; `auto` is
    one for all configurations with equal graphs.
    """

    type: Literal["auto", "cpu", "cuda", "neuron"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    attention: Literal["auto", "eager", "sdpa", "flex_attention"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    cacheset: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "auto"
    log_every: Count = 1


class Parallel(Section):
    """What only the pair of hardware and model can know."""

    micro_batch_size: Count
    sharding: Literal["ddp", "fsdp"] = "ddp"
    activation_checkpointing: Literal["none", "full"] = "none"


class Checkpoint(Section):
    """How often the run commits its state (in steps) and how many it keeps."""

    every: Count
    keep: Annotated[int, BeforeValidator(not_bool), Field(strict=True, ge=2)] = 2


class Upload(Section):
    """Where the finished model goes: `to` is a prefix in a bucket, for this run alone.

    Of a run with adapters it is the adapter or, with `merge`, the base with it. `dtype` is of the weights;
    fp32, in which they were trained, loses nothing.
    """

    to: str
    merge: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"

    @field_validator("to")
    @classmethod
    def _place(cls, value: str) -> str:
        if not S3_PREFIX.fullmatch(value):
            raise ValueError(f"{value!r} is no prefix in a bucket: write s3://bucket/prefix")
        return value
