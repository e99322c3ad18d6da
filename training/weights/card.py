"""The model card of an exported model: README.md, as the hub reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from training.config import Config
from training.run.directory import RunDir, last_records
from training.weights.source import pinned

_LARGEST_LOG = 64 << 20  # bytes at the end of a log of steps
_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)  # how the hub names a model
_RECIPE = (
    "steps", "global_batch_size", "optimizer", "learning_rate", "schedule", "warmup_steps", "weight_decay", "seed",
)  # fmt: skip


def card(
    run: RunDir, step: int, meta: Mapping[str, Any], config: Config, kind: str, dtype: str, has_base: bool = False
) -> str:
    """Return the card of a checkpoint's model; `kind` is model, merged model or adapter, `meta` the checkpoint's.

    `has_base` says that the base of an adapter is in the same directory.
    """
    adapter, masked = kind == "adapter", config.model.bert is not None
    head: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "fill-mask" if masked else "text-generation",
        "tags": ["trainyard", config.model.architecture],
    }
    base, _ = pinned(config.model.weights or "")
    if _ON_HUB.fullmatch(base):
        head["base_model"] = base
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in head.items())  # JSON is YAML
    what = {"adapter": f"A LoRA adapter of {_code(base)}", "merged model": f"{_code(base)}, fine-tuned with LoRA"}
    origin = {"commit": meta.get("commit"), "configuration": meta.get("config_digest"), "data": meta.get("dataset")}
    made = {
        "run": run.name, "step": step, "weights": dtype, **origin, "ranks": meta.get("world_size"),
        "precision": meta.get("precision"), **(meta.get("versions") or {}),
    }  # fmt: skip
    recipe = {"sequence_length": config.sequence_length, **{key: getattr(config.train, key) for key in _RECIPE}}
    parts = [
        f"---\n{front}\n---\n",
        f"# {_plain(run.name)}\n",
        f"{what.get(kind, f'A {config.model.architecture} model')}, trained with trainyard.\n",
        "## Use\n",
        *([_base(base, has_base)] if adapter else []),
        f"```python\n{_use('fill-mask' if masked else 'text-generation', adapter)}\n```\n",
        "## Losses\n",
        _table(dict(_losses(run, step))),
        "## Recipe\n",
        _table({"data": config.data.source, **recipe}),
        "## Origin\n",
        _table(made),
    ]
    return "\n".join(parts)


def _losses(run: RunDir, step: int) -> Iterator[tuple[str, str]]:
    for name, path in (("training loss", run.metrics), ("held-out loss", run.heldout)):
        rows = [row for row in last_records(path, _LARGEST_LOG) if type(row.get("step")) is int and row["step"] <= step]
        if rows and isinstance(rows[-1].get("loss"), float):
            yield name, f"{rows[-1]['loss']:.4f} nats a prediction after step {rows[-1]['step']}"


def _base(base: str, has_base: bool) -> str:
    """Say where the base of an adapter is."""
    if has_base:
        return f"The base, {_code(base)}, is in this directory: `config.json` and `model*.safetensors`.\n"
    if _ON_HUB.fullmatch(base):
        return f"The base, {_code(base)}, is loaded from the Hugging Face hub.\n"
    return (
        f"The base, {_code(base)}, is not in this directory. Where it has another path, write that path into "
        "`adapter_config.json`, or export both as one model with `yard checkpoint export --merge`.\n"
    )


def _use(task: str, adapter: bool) -> str:
    needs = "  # needs peft" if adapter else ""
    prompt = "The [MASK] runs." if task == "fill-mask" else "import "
    return f'from transformers import pipeline{needs}\n\nprint(pipeline("{task}", ".")("{prompt}")[0])'


def _table(rows: Mapping[str, Any]) -> str:
    """Return a table of the values that are known."""
    lines = [f"| {_plain(name)} | {_code(value)} |" for name, value in rows.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *lines, ""]) if lines else "None was logged.\n"


def _code(value: Any) -> str:
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    """Return a value as one line without Markdown's own characters."""
    return " ".join(str(value).split()).replace("`", "'").replace("|", "/").replace("<", "[")
