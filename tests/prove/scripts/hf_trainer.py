"""Train a small causal language model with the Trainer of transformers: torchrun --nproc-per-node 2 hf_trainer.py"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

SYMBOLS = 32
GLOBAL_BATCH = 12


class Texts(Dataset[dict[str, Any]]):
    """Texts in which each symbol follows from the two before it."""

    def __init__(self, count: int, length: int = 16) -> None:
        generator = torch.Generator().manual_seed(17)
        self.tokens = torch.randint(SYMBOLS, (count, length), generator=generator)
        for place in range(2, length):
            self.tokens[:, place] = (self.tokens[:, place - 1] + self.tokens[:, place - 2]) % SYMBOLS

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class SaveOnTerminate(TrainerCallback):
    """Save and stop after the step in which a rank has got SIGTERM."""

    def __init__(self) -> None:
        self.stopping = False
        signal.signal(signal.SIGTERM, self.on_terminate)

    def on_terminate(self, signum: int, frame: object) -> None:
        self.stopping = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        stop = torch.tensor(int(self.stopping))
        if dist.is_initialized():
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            control.should_save = control.should_training_stop = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=108)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--out", default="checkpoints")
    args = parser.parse_args()

    set_seed(args.seed)
    config = LlamaConfig(
        vocab_size=SYMBOLS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.1,
        bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(
        output_dir=args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        learning_rate=args.lr,
        seed=args.seed,
        save_strategy="steps",
        save_steps=args.save_every,
        save_total_limit=3,
        ddp_timeout=300,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Texts(args.samples),
        data_collator=default_data_collator,
        callbacks=[SaveOnTerminate()],
    )
    last = get_last_checkpoint(args.out) if os.path.isdir(args.out) else None
    trainer.train(resume_from_checkpoint=last)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
