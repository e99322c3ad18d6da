"""Whether a start continues the run that its directory holds: the same model, on the same data."""

from __future__ import annotations

import logging
import platform
from typing import Any

import torch
import transformers
from pydantic import BaseModel

from training.checkpoint.read import Checkpoint
from training.config import Config, ConfigError
from training.device import Device
from training.distributed.ranks import Ranks
from training.run.commit import commit
from training.run.directory import RunDir, flat, read_json, write_json
from training.task import Feed, Task

log = logging.getLogger("trainyard")

# What may change when a run continues. A change of anything else would make it another run.
MAY_CHANGE = ("train.steps", "train.learning_rate", "train.min_learning_rate_ratio", "train.warmup_steps",
              "train.schedule", "train.schedule_power",
              "train.weight_decay", "train.gradient_clip", "train.eval_every", "train.eval_sequences",
              "train.on_nan", "train.on_spike", "train.check_replicas_every",
              "sample", "device", "parallel", "checkpoint", "nodes", "retry", "upload", "track",
              "data.source")  # fmt: skip


def described(task: Task, config: Config, device: Device, ranks: Ranks, feed: Feed) -> dict[str, Any]:
    """What run.json and every checkpoint say about a run."""
    return {
        "config": config.model_dump(mode="json"),
        "config_digest": config.digest(),
        "commit": commit() if ranks.first else None,
        "dataset": feed.digest,
        "dataset_directory": str(feed.directory),
        **task.origin(config),
        "world_size": ranks.world_size,
        "sharding": config.parallel.sharding,
        "precision": device.precision,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def claim(directory: RunDir, config: Config, meta: dict[str, Any], ranks: Ranks) -> None:
    """Write run.json at the first start; later, refuse to continue with another model or other data."""
    path = directory.run
    if path.exists():
        first = read_json(path)
        changed = check_same_run(first["config"], config, meta["dataset"], first["dataset"], str(directory.path))
        for line in changed if ranks.first else []:
            log.info("changed since this run began: %s", line)
    ranks.barrier()
    if ranks.first and not path.exists():
        write_json(path, meta)


def check_same_run(first: dict[str, Any], config: Config, dataset: str, first_dataset: str, where: str) -> list[str]:
    """Refuse to continue with another model or other data; return the allowed changes as lines to print.

    Raises:
        ConfigError: lists the keys that must not change, with both values.
    """
    now = flat(config.model_dump(mode="json"))
    changed: list[str] = []
    refused: list[str] = []
    before = flat(first)
    before |= {key: default for key in now if key not in before for default in _default(config, key, before)}
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) == now.get(key):
            continue
        line = f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        allowed = any(key == k or key.startswith(f"{k}.") for k in MAY_CHANGE)
        (changed if allowed else refused).append(line)
    if dataset != first_dataset:
        refused.append(f"the dataset was {first_dataset[:12]}, is {dataset[:12]} (the source's content changed)")
    if refused:
        raise ConfigError(
            f"{where} holds another run: {'; '.join(refused)}. "
            "Undo the change, or start from scratch with --fresh or another name"
        )
    return changed


def _default(config: Config, key: str, before: dict[str, Any]) -> list[Any]:
    """The default, if any, of a key of a section that the run's first configuration has.

    A key that this trainyard knows and the one that began the run did not: the run has trained with its default.
    """
    path, _, name = key.rpartition(".")
    if path and not any(known.startswith(f"{path}.") for known in before):
        return []
    section: Any = config
    for part in filter(None, path.split(".")):
        section = getattr(section, part, None)
    field = type(section).model_fields.get(name) if isinstance(section, BaseModel) else None
    if field is None or field.is_required():
        return []
    default = field.get_default(call_default_factory=True)
    return [None if isinstance(default, BaseModel) else default]


def check_continues(checkpoint: Checkpoint, meta: dict[str, Any]) -> None:
    """Refuse a checkpoint of other data or another base than this run has; the checkpoint may be signed."""
    for key in ("dataset", "weights"):
        saved, ours = (str(each.get(key)) for each in (checkpoint.meta, meta))
        if saved != ours:
            raise ConfigError(
                f"{checkpoint.directory}: the digest of {key} was {saved[:12]}, is {ours[:12]}. "
                "Undo the change, or start from scratch with --fresh or another name"
            )
