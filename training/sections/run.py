"""Where it is trained: the device, how ranks share the work, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from training.sections.base import Count, Section, not_bool


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
