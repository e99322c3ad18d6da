"""One peer of the benchmark in its own process and environment: python tests/bench/peers.py SETTINGS.json

A peer starts from the weights that ours starts from and reads the samples that ours reads, in the same order. It writes
a line for each step, as ours does: the time at its end, its tokens, its loss.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from training.config import Config, load
from training.data.examples.example_dataset import ExampleDataset
from training.data.sampler import heldout_batches, samples_at
from training.device import Device, resolve
from training.distributed.ranks import join
from training.models import lora
from training.models.causal import build_on_meta
from training.run.directory import RunDir

Row = dict[str, Any]


@dataclass
class Setup:
    """What ours trains: the configuration, its device, the samples, and transformers' model with the first weights."""

    config: Config
    device: Device
    feed: Any
    model: Any
    flags: Row
    batch: int
    run: Path

    @property
    def steps(self) -> int:
        return self.config.train.steps

    @property
    def accumulated(self) -> int:
        return self.config.accumulation(1) if "gradient_accumulation_steps" in self.flags else 1

    def rows(self) -> list[Row]:
        """The samples in the order of ours; labels are the inputs, which transformers shifts."""
        count, train = self.steps * self.batch * self.accumulated, self.feed.train
        places = samples_at(np.arange(count), self.config.train.seed, len(train))
        return [_row(train.batch([place]).input_ids[0]) for place in places.tolist()]

    def documents(self) -> list[Row]:
        """The examples in the order in which ours packs them into samples."""
        train = self.feed.train
        assert isinstance(train, ExampleDataset)
        places = samples_at(np.arange(len(train)), self.config.train.seed, len(train))
        found = (tokens for place in places.tolist() for tokens, _ in train.examples(place))
        return [_row(tokens) for tokens in islice(found, self.steps * self.batch * 2)]

    def heldout(self) -> list[Row]:
        """The held-out samples that ours reads."""
        split = self.feed._heldout
        wanted = self.config.train.eval_sequences
        places = np.concatenate(heldout_batches(wanted, self.batch, 0, 1, len(split)))
        return [_row(split.batch([place]).input_ids[0]) for place in places.tolist() if place >= 0]


def _row(tokens: Any) -> Row:
    ids = [int(token) for token in tokens]
    return {"input_ids": ids, "labels": list(ids), "attention_mask": [1] * len(ids)}


class Rows(Dataset):
    """Samples in memory."""

    def __init__(self, rows: list[Row], keys: Iterable[str]) -> None:
        self.rows = [{key: torch.tensor(row[key]) for key in keys} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


class Watch(TrainerCallback):
    """Notes each step: the tokens of its batch, which `counting` has counted, its loss and its end."""

    def __init__(self, say: Callable[[Row], None], accumulated: int = 1) -> None:
        self.say, self.accumulated, self.counts, self.done = say, accumulated, list[int](), 0

    def counting(self, collate: Callable[[Any], Row]) -> Callable[[Any], Row]:
        def counted(rows: Any) -> Row:
            batch = collate(rows)
            mask = batch.get("attention_mask")
            self.counts.append(int(mask.sum()) if mask is not None else batch["input_ids"].numel())
            return batch

        return counted

    def on_step_end(self, _arguments: Any, _state: Any, _control: Any, **_more: Any) -> None:
        batches = self.counts[self.done : self.done + self.accumulated]
        self.say({"time": time.time(), "tokens": sum(batches)})
        self.done += self.accumulated

    def on_log(self, _arguments: Any, _state: Any, _control: Any, logs: Row | None = None, **_more: Any) -> None:
        if logs and "loss" in logs:
            self.say({"loss": float(logs["loss"])})


def arguments(setup: Setup, kind: type = TrainingArguments, **more: Any) -> Any:
    """The arguments that make a peer compute what ours computes, and its own flags."""
    recipe = setup.config.train
    given = {
        "output_dir": str(setup.run / "trainer"), "max_steps": setup.steps, "per_device_train_batch_size": setup.batch,
        "per_device_eval_batch_size": setup.batch, "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": recipe.weight_decay, "adam_beta1": recipe.beta1, "adam_beta2": recipe.beta2,
        "max_grad_norm": recipe.gradient_clip, "logging_steps": setup.config.device.log_every, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "use_cpu": not setup.device.is_cuda, "seed": recipe.seed,
        "train_sampling_strategy": "sequential", "bf16": False,
    }  # fmt: skip
    as_ours = {"bf16": setup.device.precision == "bf16", "gradient_accumulation_steps": setup.accumulated}
    flags = {key: as_ours[key] if value == "as ours" else value for key, value in setup.flags.items()}
    return kind(**{**given, **more, **flags})


def _train(trainer: Any, watch: Watch) -> None:
    trainer.data_collator = watch.counting(trainer.data_collator)
    trainer.add_callback(watch)
    trainer.train()


def trainer(setup: Setup, say: Callable[[Row], None]) -> None:
    """HF Trainer on whole samples."""
    watch = Watch(say, setup.accumulated)
    _train(Trainer(setup.model, arguments(setup), train_dataset=Rows(setup.rows(), ("input_ids", "labels"))), watch)


def evaluation(setup: Setup, say: Callable[[Row], None]) -> None:
    """HF Trainer's evaluation, the first of which warms up."""
    heldout = Rows(setup.heldout(), ("input_ids", "labels"))
    tokens = sum(len(row["input_ids"]) for row in heldout.rows)
    made = Trainer(setup.model, arguments(setup, prediction_loss_only=True), eval_dataset=heldout)
    for _ in range(setup.steps):
        began = time.time()
        loss = made.evaluate()["eval_loss"]
        say({"evaluated": tokens, "seconds": time.time() - began, "time": time.time(), "heldout": loss})


def padded(setup: Setup, say: Callable[[Row], None]) -> None:
    """PEFT and HF Trainer, each batch padded to its longest document."""
    from peft import get_peft_model
    from transformers import DataCollatorForSeq2Seq

    adapters = setup.config.lora
    assert adapters is not None
    model = get_peft_model(setup.model, lora.peft_config(adapters))
    collate = DataCollatorForSeq2Seq(_tokenizer(setup), padding="longest")
    rows = Rows(setup.documents(), ("input_ids", "labels", "attention_mask"))
    _train(Trainer(model, arguments(setup), train_dataset=rows, data_collator=collate), Watch(say))


def packed(setup: Setup, say: Callable[[Row], None]) -> None:
    """TRL's SFTTrainer with PEFT, documents packed."""
    from datasets import Dataset as Table
    from trl import SFTConfig, SFTTrainer

    adapters = setup.config.lora
    assert adapters is not None
    rows = Table.from_list([{"input_ids": row["input_ids"]} for row in setup.documents() * 2])
    given = arguments(
        setup, SFTConfig, packing=True, max_length=setup.config.sequence_length, gradient_checkpointing=False
    )
    made = SFTTrainer(
        setup.model, given, train_dataset=rows, processing_class=_tokenizer(setup),
        peft_config=lora.peft_config(adapters),
    )  # fmt: skip
    _train(made, Watch(say))


def accelerate(setup: Setup, say: Callable[[Row], None]) -> None:
    """A plain loop with accelerate, compiled."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    recipe = setup.config.train
    precision = "bf16" if setup.device.precision == "bf16" else "no"
    accelerator = Accelerator(cpu=not setup.device.is_cuda, mixed_precision=precision)
    optimizer = torch.optim.AdamW(
        setup.model.parameters(), recipe.learning_rate, (recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay,
        fused=True,
    )  # fmt: skip
    loader = DataLoader(Rows(setup.rows(), ("input_ids", "labels")), setup.batch)
    model, optimizer, loader = accelerator.prepare(
        torch.compile(setup.model) if setup.device.compile else setup.model, optimizer, loader
    )
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        say({"loss": loss.item(), "time": time.time(), "tokens": batch["input_ids"].numel()})


def _tokenizer(setup: Setup) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(setup.feed.directory / "tokenizer" / "tokenizer.json"))
    tokenizer.pad_token = tokenizer.eos_token = tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def main(path: Path) -> None:
    settings = json.loads(path.read_text())
    config = load(settings["config"])
    device = resolve(config)
    ranks = join(device, timedelta(minutes=5))
    task = importlib.import_module(settings["module"]).TASK
    feed = task.open(config, ranks, Path(settings["data"]), RunDir(settings["run"]), lambda line: None)
    # Without a document mask, ours has attention that transformers does not choose by itself.
    masked = config.model_copy(update={"data": config.data.model_copy(update={"document_mask": True})})
    model = build_on_meta(masked, settings["attention"])
    task.initialise(model, config, device.torch_device, ranks)
    model.hf.requires_grad_(True)
    batch = settings["batch"] or config.parallel.micro_batch_size
    with Path(settings["out"]).open("a", encoding="utf-8") as out:

        def say(row: Row) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()

        setup = Setup(config, device, feed, model.hf, settings["flags"], batch, Path(settings["run"]))
        globals()[settings["peer"]](setup, say)
        say({"memory_gib": device.memory_gib()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
