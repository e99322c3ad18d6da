"""Writes the Component of a model from its config.json, with a recipe for its size, and its cell."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells import memory
from tools.cells.published import Published
from tools.core import UserError, tables
from tools.new import component
from training.config import Config, ConfigError, load_texts
from training.config.counting import active_parameters, adapter_parameters, parameters
from training.config.families import FAMILIES

PLAIN_TEXT = re.compile(r"[a-zA-Z/][\w/.@-]{0,999}")
LONGEST = 4096  # tokens: longer sequences are a choice of their own
BROWN = "Brown et al. 2020 (arXiv 2005.14165)"
DETTMERS = "Dettmers et al. 2023 (arXiv 2305.14314)"
WARMUP_TOKENS = 375e6  # appendix B
_TEXTS: dict[str, Any] = tables.load("new/texts.yaml")


@dataclass(frozen=True)
class Made:
    """A Component that is ready to be written."""

    name: str
    files: dict[str, str]
    said: tuple[str, ...]  # what was chosen, and why, one line each


def make(name: str, source: Published, lora: bool) -> Made:
    """Return the Component. Raises UserError for a name or a model that cannot be used."""
    if source.model["architecture"] == "bert":
        raise UserError(f"{source.where}: BERT needs masking", "copy overlays/model/bert-large")
    linears = ", ".join(FAMILIES[source.model["architecture"]].linears)
    shared = f"/shared/models/{name}"
    section = {**source.model, **({"weights": source.weights or shared} if lora else {})}
    length = min(source.longest, LONGEST)
    values: dict[str, Any] = {
        "name": name, "count": "", "recipe": "", "warmed": "", "model": _keys(section),
        "where": source.origin.encode("unicode_escape").decode(),
        "lora": _TEXTS["model adapters"].format(linears=linears) if lora else "",
        "length": length, "longest": source.longest,
        "tokenizer": "base" if lora else shared, **_TEXTS["with LoRA" if lora else "without LoRA"],
        "batch": 64, "rate": 2.0e-4, "warmup": 30,
    }  # fmt: skip
    config = _load(_TEXTS["model text"].format(**values), source)
    active, count = active_parameters(config.model), f"{parameters(config.model):,} parameters"
    if active != parameters(config.model):
        count += f", of which {active:,} process a token"
    if config.lora is not None:
        count += f"; LoRA trains {adapter_parameters(config.model, config.lora):,} more"
        recipe = f"{DETTMERS}: adapters on every linear layer, and the learning rate"
    else:
        near, values["rate"], tokens = min(_TEXTS["recipes"], key=lambda row: abs(math.log(row[0] / active)))
        values["batch"] = max(1, tokens // 2 ** round(math.log2(length)))
        warmup = round(WARMUP_TOKENS / (values["batch"] * length))
        values["warmup"] = min(warmup, values["steps"] // 10)
        values["warmed"] = " Warm-up: 375 million tokens (appendix B), at most a tenth of the steps."
        recipe = f"{BROWN}, table 2.1: the nearest size, {near / 1e9:g} billion, for {active / 1e9:.2f} billion"
    text = _TEXTS["model text"].format(**{**values, "count": count, "recipe": recipe})
    _load(text, source)
    files = {"kustomization.yaml": _TEXTS["model kustomization"] + (_TEXTS["model finetune"] if lora else "")}
    said = [count, f"recipe: {recipe}"]
    if lora and not source.weights:
        brings = shlex.join(["yard", "stage", str(source.directory), "--to", f"trainyard:models/{name}"])
        said.append(f"weights: {shared}; {brings} brings them there")
    return Made(name, {**files, "model.yaml": text}, tuple(said))


def _load(text: str, source: Published) -> Config:
    cell = json.dumps({"parallel": {"micro_batch_size": 1}, "checkpoint": {"every": 1}})
    try:
        return load_texts(
            {"model": ("model.yaml", text), "hardware": ("hardware.yaml", ""), "cell": ("cell.yaml", cell)}
        )
    except ConfigError as error:
        raise UserError(f"{source.where}: {str(error).partition(': ')[2] or error}") from None


def _keys(section: Mapping[str, Any]) -> str:
    plain = {key: v if isinstance(v, str) and PLAIN_TEXT.fullmatch(v) else json.dumps(v) for key, v in section.items()}
    return "\n".join(f"  {key}: {value}" for key, value in plain.items())


def write(root: Path, made: Made, hardware: str | None) -> list[str]:
    """Write the Component and, with `hardware`, its cell. Return lines that say where the cell runs.

    Raises UserError, after which all is as before.
    """
    if hardware is None:
        component.write(root, made.name, made.files, {})
        return []
    rows = {hardware: lambda found: component.entry_of(memory.fitting(root, found, hardware, made.name), found)}
    (placed,) = component.write(root, made.name, made.files, rows)
    return [f"cell overlays/{placed.name}: {memory.where(placed)}, {memory.of_cell(root, placed).summary()}"]
