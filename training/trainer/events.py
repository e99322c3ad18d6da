"""A run in TensorBoard: curves with descriptions, settings as hyperparameters, configuration and samples as text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from training.run.directory import RunDir, flat, read_json

TRAIN_LOSS, HELDOUT_LOSS = "loss/train", "loss/heldout"  # on one chart of the tab "custom scalars"
_PART = "One of the losses that `loss/train` is the sum of, in nats for each of its predictions."
DESCRIPTIONS = {
    TRAIN_LOSS: "Loss of the step's global batch, in nats for each prediction, before its update.",
    HELDOUT_LOSS: "Loss on the documents that are kept out of training, in nats for each prediction.",
    "train/lr": "Learning rate of the step.",
    "train/grad_norm": "Norm of all gradients before they are clipped to train.gradient_clip.",
    "train/tokens_per_s": "Tokens of the global batch without padding, divided by the time of the step.",
    "train/mfu": "Model FLOP utilisation: the FLOPs that the model needs for these tokens, divided by the peak.",
    "train/memory_gib": "The most memory that rank 0 has used, in GiB.",
    "train/step_s": "Time of the step on rank 0, in seconds.",
}
_SECTIONS = ("sequence_length", "train", "parallel", "lora", "device", "data", "masking")  # what runs differ in


class Events:
    """The event files of rank 0; after a resume, what follows the checkpoint is left out."""

    def __init__(self, run: RunDir, resumed_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes 0.3 s, which the other ranks save

        self._writer = SummaryWriter(str(run.tensorboard), purge_step=resumed_at + 1 if resumed_at else None)
        self._writer.add_custom_scalars({"loss": {"loss": ["Multiline", [TRAIN_LOSS, HELDOUT_LOSS]]}})
        info: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            info = read_json(run.run)
        self._begin_session(info.get("config"))
        if info and not resumed_at:
            self._writer.add_text("run", f"~~~json\n{json.dumps(info, indent=2)}\n~~~", 0)

    def _begin_session(self, config: Any) -> None:
        """Tell the tab "hparams" the settings of this run, and which curves to compare."""
        from torch.utils.tensorboard.summary import hparams

        chosen = {key: config[key] for key in _SECTIONS if key in config} if isinstance(config, dict) else {}
        settings = {
            key: value for key, value in flat(chosen).items() if key and isinstance(value, bool | float | str | int)
        }
        experiment, begin, self._end = hparams(settings, dict.fromkeys((TRAIN_LOSS, HELDOUT_LOSS), 0.0))
        for summary in (experiment, begin):
            self._writer._get_file_writer().add_summary(summary)

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a point to each curve; a value of None is left out."""
        from torch.utils.tensorboard.summary import scalar

        for tag, value in values.items():
            if value is not None:
                summary = scalar(tag, value)
                summary.value[0].metadata.summary_description = DESCRIPTIONS.get(tag, _PART)
                self._writer._get_file_writer().add_summary(summary, step)

    def conclude(self, step: int, samples: Iterable[Mapping[str, str]]) -> None:
        """Add the texts that the trained model has written, and that the run is complete."""
        for number, sample in enumerate(samples):
            lines = "\n".join(f"    {line}" for line in f"{sample['prompt']}{sample['text']}".splitlines())
            self._writer.add_text(f"samples/{number}", lines, step)
        self._writer._get_file_writer().add_summary(self._end)

    def close(self) -> None:
        self._writer.close()
