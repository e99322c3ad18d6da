"""The machine: the device, how ranks share the work, checkpoints, the destination of the model."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from training.config.base import Count, NotNegative, Section, Several, Whole, divisor_near, wrong
from training.run.bucket import S3_PREFIX


class Device(Section):
    """The kind of machine. Every rank resolves `auto` in the same way when it starts."""

    type: Literal["auto", "cpu", "cuda", "neuron"] = "auto"
    """The kind of device; `auto` is cuda or neuron where there is one, else cpu."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Number format of the computation, while weights and the optimizer's state stay in fp32; `auto` is bf16
    where the device multiplies it faster than fp32: on cards, on Trainium, and on processors with AMX or, unless they
    are Intel's, AVX512-BF16."""

    attention: Literal["auto", "eager", "blocks", "sdpa", "flex_attention"] = "auto"
    """The implementation of attention; `auto` is flex_attention on cuda (sdpa for BERT, with attention_dropout,
    and where nothing but the order of tokens is masked), eager on neuron, and on cpu sdpa, but blocks (eager for BERT)
    where layers are compiled up to 512 tokens. `blocks` is eager without the products of queries with the blocks of
    keys that follow them."""

    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch compiles the model's layers; `auto` is on for cuda, off for neuron, which compiles whole graphs
    itself, and on for a cpu with a C++ compiler. In fp32 it is off there for a run of less than 5e13 FLOP (about eight
    minutes on two cores), which ends sooner without waiting for the compiler. Evaluation of less than 1e13 FLOP on a
    cpu is compiled only by `on`. Layers with experts are never compiled."""

    float8: Literal["off", "tensorwise", "rowwise"] = "off"
    """How torchao rounds the layers' matrix products to float8: with one scale for each tensor or each row, or not at
    all. Layers that torchao finds too small stay in bf16. It is for compiled bf16 pre-training and whole fine-tunes on
    cards that multiply float8 (Ada, Hopper and later; rowwise from Hopper on). It needs the package torchao, which
    trainyard's images do not have."""

    cacheset: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "auto"
    """Name of the directory of compiled graphs on neuron, in the run's own cache, used by one job at a time;
    `auto` gives configurations with equal graphs the same one."""

    log_every: Count = 1
    """Number of steps between two log lines."""


class Parallel(Section):
    """Settings that depend on both the hardware and the model."""

    micro_batch_size: Count
    """Number of samples that one rank computes at a time."""

    sharding: Literal["ddp", "fsdp", "hsdp"] = "ddp"
    """How ranks share the model: `ddp` keeps all of it on every rank, `fsdp` splits weights, gradients and
    the optimizer's state among all ranks, `hsdp` among those of a node, and every node keeps all of it."""

    reshard_after_forward: Literal["auto"] | bool | Count = "auto"
    """Whether a block's weights, gathered for the forward pass, are freed until the backward pass; `auto` is
    true for models of 4e9 parameters and more; a number frees all but the part that so many ranks hold
    together."""

    reduce_precision: Literal["fp32", "bf16"] = "fp32"
    """Number format in which sharded gradients are summed over ranks; bf16 halves the traffic and rounds
    each sum."""

    offload: Literal["none", "cpu"] = "none"
    """Where sharded weights, gradients and the optimizer's state are between their uses: on the device, or
    in the host's memory, where the optimizer then runs."""

    tensor: Count = 1
    """Number of ranks of a node that compute each matrix product together, a divisor of the ranks of a node;
    they read the same samples; for models of llama, mistral and qwen2 with an output head of their own."""

    activation_checkpointing: str = "none"
    """What a block keeps for its backward pass; the rest is computed again. `none` keeps everything; `selective` the
    results of attention and of every second matrix product; `full` its input only; `budget:0.5` that share of the
    memory of `none`, chosen by the compiler; `offload` everything, but in the host's memory."""

    @field_validator("activation_checkpointing")
    @classmethod
    def _policy(cls, value: str) -> str:
        if value in ("none", "selective", "full", "offload") or re.fullmatch(r"budget:0\.[0-9]{1,3}", value):
            return value
        raise ValueError(f"{value!r} is not none, selective, full, offload or a budget such as budget:0.5")

    @property
    def activation_budget(self) -> float | None:
        """The share of a block's activations that the compiler may keep, None without a budget."""
        kind, _, share = self.activation_checkpointing.partition(":")
        return float(share) if kind == "budget" else None

    @property
    def sharded(self) -> bool:
        """Whether FSDP splits the model."""
        return self.sharding != "ddp"

    @model_validator(mode="after")
    def _of_sharded_models(self) -> Self:
        for key in ("reshard_after_forward", "reduce_precision", "offload"):
            if not self.sharded and getattr(self, key) != type(self).model_fields[key].default:
                raise wrong(f"parallel.{key}", f"parallel.{key} is for sharded models, but parallel.sharding is ddp")
        if self.tensor > 1 and not self.sharded:
            raise wrong("parallel.tensor", "parallel.tensor needs parallel.sharding fsdp or hsdp, which is ddp")
        if self.tensor > 1 and self.offload == "cpu":
            raise wrong("parallel.offload", "parallel.offload cpu does not work with parallel.tensor; write none")
        return self


class Kept(Section):
    """How often a step is saved in one place, and which of them are kept there."""

    every: Count
    """Number of steps between two checkpoints; the last step always gets one."""

    keep: Several = 2
    """Number of the newest checkpoints that are kept, at least 2."""

    keep_every: Whole = 0
    """Checkpoints whose step this number divides are kept as milestones; a multiple of `every`, or 0 for none."""

    keep_best: Whole = 0
    """Number of the checkpoints with the lowest held-out loss that are also kept; 0 for none."""

    key: ClassVar[str]

    @model_validator(mode="after")
    def _milestones(self) -> Self:
        if self.keep_every % self.every:
            near = max(1, round(self.keep_every / self.every)) * self.every
            text = f"is not a multiple of {self.key}.every {self.every}; nearest value: {near}"
            raise wrong(f"{self.key}.keep_every", f"{self.key}.keep_every {self.keep_every} {text}")
        return self


class Local(Section):
    """Checkpoints in the memory or on the disk of each node, with a copy of each file on another node."""

    every: Count
    """Number of steps between two checkpoints there; a divisor of `checkpoint.every`."""

    path: str
    """An absolute path: a volume of each pod's own, in memory or on a local disk."""

    keep: Several = 2
    """Number of the newest checkpoints that are kept there, at least 2."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or not value.isprintable() or ".." in value.split("/"):
            raise ValueError(f"{value!r} is not an absolute path; nearest value: {_near(value)}")
        return value


def _near(path: str) -> str:
    """An absolute path like this text."""
    return "/" + (posixpath.normpath("/" + "".join(filter(str.isprintable, path))).strip("/") or "local")


class S3(Kept):
    """Checkpoints in a bucket: copies of those of the shared volume."""

    key = "checkpoint.tiers.s3"

    to: str
    """The place, s3://bucket/prefix; a run's checkpoints lie in a folder with its name."""

    @field_validator("to")
    @classmethod
    def _place(cls, value: str) -> str:
        return _prefix(value)


class Tiers(Section):
    """Further places: the memory of each node, and a bucket."""

    local: Local | None = None
    """Checkpoints in the memory or on the disk of each node, with a copy of each file on another node."""

    s3: S3 | None = None
    """Checkpoints in a bucket: copies of those of the shared volume."""


class Checkpoint(Kept):
    """When the run commits its state."""

    key = "checkpoint"

    asynchronous: bool = False
    """Whether a copy of the state is written while training continues; the copy takes the host's memory, and
    the last save of a run is always waited for."""

    keep_bad_days: NotNegative = 7.0
    """Days for which a checkpoint that failed verification, or was set aside, is kept as evidence; it goes earlier
    when its space is needed."""

    tiers: Tiers = Tiers()
    """Further places: the memory of each node, and a bucket."""

    @model_validator(mode="after")
    def _intervals(self) -> Self:
        local, remote = self.tiers.local, self.tiers.s3
        if local is not None and self.every % local.every:
            text = (
                f"does not divide checkpoint.every {self.every}; nearest value: {divisor_near(self.every, local.every)}"
            )
            raise wrong("checkpoint.tiers.local.every", f"checkpoint.tiers.local.every {local.every} {text}")
        if remote is not None and remote.every % self.every:
            near = max(1, round(remote.every / self.every)) * self.every
            text = f"is not a multiple of checkpoint.every {self.every}; nearest value: {near}"
            raise wrong("checkpoint.tiers.s3.every", f"checkpoint.tiers.s3.every {remote.every} {text}")
        return self


def _prefix(value: str) -> str:
    if value.isprintable() and S3_PREFIX.fullmatch(value):
        return value
    path = re.sub(r"(?i)^[a-z0-9]*:", "", "".join(filter(str.isprintable, value)))
    bucket, *prefix = [part for part in path.split("/") if part.strip(".")] or [""]
    near = f"s3://{bucket.lower().replace('_', '-')}/{'/'.join(prefix) or 'runs'}"
    hint = f"nearest value: {near}" if S3_PREFIX.fullmatch(near) else "write s3://bucket/prefix"
    raise ValueError(f"{value!r} is not a prefix in a bucket (whose name has 3 to 63 characters); {hint}")


class Upload(Section):
    """Where the finished model goes."""

    to: str
    """The destination, s3://bucket/prefix, which no other run may use."""

    merge: bool = False
    """Whether to add the adapters to their base and upload the whole model instead of the adapters alone."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the uploaded weights; float32, in which they are trained, loses nothing."""

    @field_validator("to")
    @classmethod
    def _place(cls, value: str) -> str:
        return _prefix(value)
