"""The whole configuration, and the checks between its sections."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from training.config.base import ConfigError, Count, Section, divisor_near, wrong
from training.config.data import Data, Masking
from training.config.families import OUTSIDE
from training.config.job import Nodes, Retry
from training.config.model import Lora, Model
from training.config.run import Checkpoint, Device, Parallel, Upload
from training.config.track import Track
from training.config.train import Sample, Train

PRETRAIN, FINETUNE, BERT = "training.pretrain", "training.finetune", "training.bert"

MASK = "[MASK]"  # a word for BERT to fill in
TENSOR_FAMILIES = ("llama", "mistral", "qwen2")  # whose products split by heads and rows without further sums


class Config(Section):
    """A whole, checked configuration."""

    model: Model
    """The model's architecture and initial weights."""

    sequence_length: Count
    """Number of tokens in one sample."""

    lora: Lora | None = None
    """Low-rank adapters; without this section all weights are trained."""

    masking: Masking | None = None
    """Which tokens BERT has to predict; required for BERT, and an error for the others."""

    data: Data
    """The documents and how they become tokens."""

    train: Train
    """The recipe: steps, batch, optimizer, learning rate, evaluation."""

    sample: Sample = Sample()
    """Texts that the trained model writes when training ends."""

    device: Device = Device()
    """The kind of machine a rank runs on."""

    parallel: Parallel
    """How ranks share the model and the batch."""

    checkpoint: Checkpoint
    """When the run commits its state."""

    nodes: Nodes | None = None
    """Bounds of a job that may shrink and grow; without this section its size is fixed."""

    retry: Retry | None = None
    """Which failures are tried again; without this section the manifest's limits alone decide."""

    upload: Upload | None = None
    """The destination of the finished model; without this section it stays in the run directory."""

    track: Track | None = None
    """Trackers that get the run's metrics; without this section they stay in the run directory."""

    @model_validator(mode="after")
    def _micro_batch(self) -> Self:
        batch, micro = self.train.global_batch_size, self.parallel.micro_batch_size
        if batch % micro:
            raise wrong(
                "parallel.micro_batch_size",
                f"train.global_batch_size {batch} is not a multiple of parallel.micro_batch_size {micro}; "
                f"nearest value: {divisor_near(batch, micro)}",
            )
        return self

    @model_validator(mode="after")
    def _best_checkpoints(self) -> Self:
        evaluates = self.train.eval_every
        for kept in (self.checkpoint, self.checkpoint.tiers.s3):
            if kept is not None and kept.keep_best and evaluates % kept.every and kept.every % evaluates:
                near = max(1, round(evaluates / kept.every)) * kept.every
                raise wrong(
                    f"{kept.key}.keep_best",
                    f"{kept.key}.keep_best needs the held-out loss of saved steps, but train.eval_every {evaluates} "
                    f"and {kept.key}.every {kept.every} rarely meet; nearest value of train.eval_every: {near}",
                )
        return self

    @property
    def plainly_causal(self) -> bool:
        """Whether every token attends to all earlier tokens of its sample, so that attention needs no mask."""
        return not self.data.document_mask and not any(self.model.windows)

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        bert = self.model.bert
        if (bert is None) != (self.masking is None):
            if bert is None:
                raise wrong("masking", "masking is for architecture bert only")
            raise wrong("model.architecture", "architecture bert needs the section masking")
        if bert is not None and self.sequence_length > bert.max_position_embeddings:
            raise wrong(
                "sequence_length",
                f"sequence_length {self.sequence_length} is above model.bert.max_position_embeddings "
                f"{bert.max_position_embeddings}",
            )
        unmasked = [] if bert is None else [one for one in self.sample.prompts if MASK not in one]
        if unmasked:
            raise wrong("sample.prompts", f"sample.prompts: BERT fills in words, but {unmasked[0]!r} has no {MASK}")
        if bert is not None and not self.data.document_mask:
            raise wrong(
                "data.document_mask", "data.document_mask false is not for architecture bert; nearest value: true"
            )
        if bert is not None and self.device.attention in ("flex_attention", "blocks"):
            near, why = ("eager", "it is causal") if self.device.attention == "blocks" else ("sdpa", "no dropout")
            raise wrong(
                "device.attention",
                f"device.attention {self.device.attention} is not for architecture bert: {why}; nearest value: {near}",
            )
        if self.device.float8 != "off" and (bert is not None or self.lora is not None or self.parallel.tensor > 1):
            key = "architecture bert" if bert is not None else "lora" if self.lora is not None else "parallel.tensor"
            raise wrong("device.float8", f"device.float8 does not work with {key}; nearest value: off")
        if self.masking is not None and self.masking.most > self.sequence_length:
            raise wrong(
                "masking.most",
                f"masking.most {self.masking.most} is above sequence_length {self.sequence_length}",
            )
        if self.upload is not None and self.upload.merge and self.lora is None:
            raise wrong("upload.merge", "upload.merge adds adapters to their base, but lora is missing")
        if self.lora is None:
            return self
        if bert is not None:
            raise wrong("lora", "lora is for causal models only: architecture is bert")
        if self.model.weights is None:
            raise wrong("lora", "lora adapts a trained model: model.weights is missing")
        self._modules_of_the_architecture(self.lora)
        for name in ("embed_tokens", "lm_head"):
            if self.model.tie_word_embeddings and name in self.lora.modules_to_save:
                raise wrong(
                    "lora.modules_to_save",
                    f"lora.modules_to_save names {name}, but tie_word_embeddings makes embed_tokens and "
                    "lm_head one table, and an adapter cannot hold it twice",
                )
        return self

    def _modules_of_the_architecture(self, lora: Lora) -> None:
        family, name = self.model.family, self.model.architecture
        allowed = {
            "target_modules": tuple(family.linears),
            "modules_to_save": (*OUTSIDE, *family.norms, *family.linears),
        }
        for key, known in allowed.items():
            for module in getattr(lora, key):
                if module not in known:
                    text = f"lora.{key} names {module}, which {name} does not have; it has {', '.join(known)}"
                    raise wrong(f"lora.{key}", text)

    @model_validator(mode="after")
    def _keys_of_examples(self) -> Self:
        if self.task == FINETUNE:
            return self
        for key in ("packing", "overlong", "bad_rows", "chat_template"):
            if getattr(self.data, key) != Data.model_fields[key].default:
                raise wrong(f"data.{key}", f"data.{key} is for fine-tuning only, but this is for {self.task}")
        return self

    @model_validator(mode="after")
    def _stream(self) -> Self:
        stream, batch = self.data.stream, self.train.global_batch_size
        if stream is None:
            return self
        if self.task != PRETRAIN:
            raise wrong("data.stream", f"data.stream is for {PRETRAIN} only, but this is for {self.task}")
        if stream.lanes is not None and batch % stream.lanes:
            near = divisor_near(batch, stream.lanes)
            raise wrong(
                "data.stream.lanes",
                f"data.stream.lanes {stream.lanes} does not divide train.global_batch_size {batch}; nearest: {near}",
            )
        return self

    @model_validator(mode="after")
    def _tensor(self) -> Self:
        ranks, model = self.parallel.tensor, self.model
        if ranks == 1:
            return self
        for reason, key in (
            (model.architecture not in TENSOR_FAMILIES, f"model.architecture {model.architecture}"),
            (model.tie_word_embeddings, "model.tie_word_embeddings"),
            (self.lora is not None, "lora"),
            (self.data.stream is not None, "data.stream"),
            (self.train.optimizer == "lamb", "train.optimizer lamb"),
        ):
            if reason:
                raise wrong("parallel.tensor", f"parallel.tensor {ranks} does not work with {key}; nearest value: 1")
        for key in ("num_key_value_heads", "intermediate_size", "vocab_size"):
            size = getattr(model, key)
            if size % ranks:
                near = divisor_near(size, ranks)
                text = f"parallel.tensor {ranks} does not divide model.{key} {size}; nearest value: {near}"
                raise wrong("parallel.tensor", text)
        return self

    @model_validator(mode="after")
    def _device(self) -> Self:
        for key, message in self.refused_on(self.device.type):
            raise wrong(key, message)
        return self

    def refused_on(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield keys whose values a kind of device cannot carry out, each with the reason and the nearest value."""
        device, parallel, neuron = self.device, self.parallel, kind == "neuron"
        policy, experts = parallel.activation_checkpointing, self.model.num_local_experts is not None
        plain = neuron or experts or device.compile == "off"
        whole, kept = "but Neuron compiles whole graphs itself", "parallel.activation_checkpointing"
        for key, near, refused, reason in (
            ("device.attention", "eager", neuron and device.attention not in ("auto", "eager"),
             "but Neuron's compiler fuses plain attention only"),
            ("device.attention", "sdpa", device.attention == "flex_attention" and self.model.attention_dropout > 0,
             "which has no dropout, but model.attention_dropout is above 0"),
            ("device.compile", "off", neuron and device.compile == "on", whole),
            ("model.num_local_experts", "none", neuron and experts, "but Neuron has no layers with experts"),
            ("parallel.sharding", "ddp", neuron and parallel.sharded, "but Neuron has whole replicas only"),
            (kept, "full", neuron and policy not in ("none", "full"), whole),
            (kept, "selective", plain and parallel.activation_budget is not None,
             "which the compiler carries out, but blocks are not compiled"),
            ("device.float8", "off", device.float8 != "off" and (plain or kind == "cpu" or device.precision == "fp32"),
             "which is for compiled blocks in bf16 on a card"),
        ):  # fmt: skip
            section, _, name = key.partition(".")
            if refused:
                yield key, f"{key} is {getattr(getattr(self, section), name)}, {reason}; nearest value: {near}"

    @property
    def task(self) -> str:
        """The module that trains this: training.pretrain, training.finetune or training.bert."""
        if self.model.architecture == "bert":
            return BERT
        return PRETRAIN if self.model.weights is None else FINETUNE

    def require_task(self, module: str) -> None:
        """Refuse a configuration of another entry point.

        Raises:
            ConfigError: names the module that this configuration is for, and the key that decides it.
        """
        if self.task == module:
            return
        reason = {
            BERT: "model.architecture is bert",
            FINETUNE: "model.weights is set",
            PRETRAIN: "model.weights is missing",
        }[self.task]
        raise ConfigError(f"{module} does not train this configuration, {self.task} does: {reason}")

    def accumulation(self, world_size: int) -> int:
        """Micro batches per rank and step: global batch / (micro batch x ranks with own samples), without a rest.

        In an elastic job some ranks may have an empty one, because each size trains the same global batch. A stream has
        no empty ones.

        Raises:
            ConfigError: the global batch cannot be divided this way.
        """
        world_size //= self.parallel.tensor  # ranks that read samples of their own
        count = self.train.global_batch_size // self.parallel.micro_batch_size
        if self.nodes is not None and self.data.stream is None and count >= world_size:
            return -(-count // world_size)
        per_pass = self.parallel.micro_batch_size * world_size
        steps, rest = divmod(self.train.global_batch_size, per_pass)
        if rest or not steps:
            raise ConfigError(
                f"train.global_batch_size {self.train.global_batch_size} cannot be divided into micro batches"
                f" of {self.parallel.micro_batch_size} on {world_size} ranks "
                f"({self.parallel.micro_batch_size} x {world_size} = {per_pass}); "
                f"{self._nearest_batch(world_size)}"
            )
        return steps

    def _nearest_batch(self, world_size: int) -> str:
        per_rank, rest = divmod(self.train.global_batch_size, world_size)
        wanted = self.parallel.micro_batch_size
        if not rest:
            return f"nearest parallel.micro_batch_size: {divisor_near(per_rank, wanted)}"
        passes = max(1, round(self.train.global_batch_size / (wanted * world_size)))
        return f"nearest train.global_batch_size: {passes * wanted * world_size}"

    def digest(self) -> str:
        """SHA-256 (hex) of the whole configuration in canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
