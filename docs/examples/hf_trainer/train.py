"""A language model with the Trainer of transformers, whose checkpoints become those of the run.

The Trainer writes to a directory of its own. The callback copies each of its checkpoints into the run, where
it is committed whole and verified before use. Run it with `torchrun train.py` below the agent.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trainyard
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)


class Trainyard(TrainerCallback):
    """Tells steps and losses, and saves on request. All ranks call it at the same places."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trainyard.report(state.global_step, steps=state.max_steps)
        if trainyard.stopping():
            control.should_save = control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            names = {"learning_rate": "lr", "grad_norm": "grad_norm", "epoch": "epoch"}
            values = {names[name]: float(value) for name, value in logs.items() if name in names}
            trainyard.report(state.global_step, steps=state.max_steps, loss=float(logs["loss"]), **values)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"

        def copy(target: Path) -> None:
            if args.local_process_index == 0:  # one rank of each node has the files of its node
                shutil.copytree(written, target, dirs_exist_ok=True)

        trainyard.save(None, state.global_step, write=copy)


class Pause(TrainerCallback):
    """Waits after each step, to watch a run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        time.sleep(self.seconds)


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences of 32 tokens, each of which counts up from a random token."""
    starts = torch.randint(64, (count, 1), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in (starts + torch.arange(32)) % 64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after a step")
    given = parser.parse_args()
    own = Path(tempfile.gettempdir()) / f"trainer-{os.environ.get('TORCHELASTIC_RUN_ID', 'alone')}"
    args = TrainingArguments(
        output_dir=str(own),
        max_steps=given.steps,
        save_steps=given.save_every,
        save_total_limit=1,
        logging_steps=1,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
    )
    set_seed(1)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    trainer = Trainer(model, args, train_dataset=rows(512), callbacks=[Pause(given.pause), Trainyard()])
    found = trainyard.latest()
    if found is not None:
        print(f"continuing after step {found.step}", flush=True)
    trainer.train(resume_from_checkpoint=None if found is None else str(found.files))


if __name__ == "__main__":
    main()
