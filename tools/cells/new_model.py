"""Writes the Component of a model from its config.json, with a recipe for its size, and its cell."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells import matrix, memory
from tools.cells.matrix_file import Cell, text_of
from tools.cells.published import Published
from tools.core.errors import UserError
from training.config import Config, ConfigError, load_texts
from training.config.families import FAMILIES
from training.models.counting import active_parameters, adapter_parameters, parameters

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
PLAIN_TEXT = re.compile(r"[a-zA-Z/][\w/.@-]{0,999}")
LONGEST = 4096  # tokens: longer sequences are a choice of their own
# (parameters, peak learning rate, tokens a step): Brown et al. 2020 (arXiv 2005.14165), table 2.1.
RECIPES = (
    (125e6, 6.0e-4, 2**19), (350e6, 3.0e-4, 2**19), (760e6, 2.5e-4, 2**19), (1.3e9, 2.0e-4, 2**20),
    (2.7e9, 1.6e-4, 2**20), (6.7e9, 1.2e-4, 2**21), (13e9, 1.0e-4, 2**21), (175e9, 0.6e-4, 2**22),
)  # fmt: skip
BROWN = "Brown et al. 2020 (arXiv 2005.14165)"
DETTMERS = "Dettmers et al. 2023 (arXiv 2305.14314)"
WARMUP_TOKENS = 375e6  # appendix B
PATCH = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/args/1"
KUSTOMIZATION = """\
# A model is its trainer configuration, and with LoRA the entry point that trains it.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
configMapGenerator:
  - name: model
    files: [model.yaml]
"""
FINETUNE = f"""\
patches:
  - target: {{group: kubeflow.org, kind: PyTorchJob, name: train}}
    patch: |-
      - {{op: test, path: {PATCH}, value: training.pretrain}}
      - {{op: replace, path: {PATCH}, value: training.finetune}}
"""

TEXT = """\
# {name}: {count}.
# Architecture: config.json of {where}.
# Recipe: {recipe}.
# Steps and sequence length are a start.{warmed}
# This file is the trainer's own configuration: the pod reads it as /etc/trainyard/model.yaml.

model:
{model}

sequence_length: {length}  # tokens; config.json: max_position_embeddings {longest}
{lora}
data:
  source: {data}
  tokenizer: {tokenizer}

train:
  seed: 1234
  steps: {steps}
  global_batch_size: {batch}  # sequences a step
  learning_rate: {rate:.1e}
  warmup_steps: {warmup}
  weight_decay: {decay}
  eval_every: 100
  eval_sequences: 128
"""
ADAPTERS = """
lora:
  rank: 16
  alpha: 32
  target_modules: [{linears}]
"""
# Without and with LoRA.
PLAIN: dict[bool, dict[str, Any]] = {
    False: {"data": "/shared/text", "decay": 0.1, "steps": 10000},
    True: {"data": "/shared/finetune", "decay": 0.0, "steps": 1000},
}


@dataclass(frozen=True)
class Made:
    """A Component that is ready to be written."""

    name: str
    files: dict[str, str]
    said: tuple[str, ...]  # what was chosen, and why, one line each


def make(name: str, source: Published, lora: bool) -> Made:
    """Return the Component. Raises UserError for a name or a model that cannot be used."""
    if not NAME.fullmatch(name):
        hint = "lower-case letters, digits and dashes, at most 40"
        raise UserError(f"{name!r} cannot be a model's name", hint)
    if source.model["architecture"] == "bert":
        raise UserError(f"{source.where}: BERT needs masking", "copy overlays/model/bert-large")
    linears = ", ".join(FAMILIES[source.model["architecture"]].linears)
    section = {**source.model, **({"weights": source.weights} if lora else {})}
    length = min(source.longest, LONGEST)
    values: dict[str, Any] = {
        "name": name, "count": "", "recipe": "", "warmed": "", "model": _keys(section),
        "where": source.where.encode("unicode_escape").decode(),
        "length": length, "longest": source.longest, "lora": ADAPTERS.format(linears=linears) if lora else "",
        "tokenizer": "base" if lora else f"/shared/models/{name}", **PLAIN[lora],
        "batch": 64, "rate": 2.0e-4, "warmup": 30,
    }  # fmt: skip
    config = _load(TEXT.format(**values), source)
    active, count = active_parameters(config.model), f"{parameters(config.model):,} parameters"
    if active != parameters(config.model):
        count += f", of which {active:,} process a token"
    if config.lora is not None:
        count += f"; LoRA trains {adapter_parameters(config.model, config.lora):,} more"
        recipe = f"{DETTMERS}: adapters on every linear layer, and the learning rate"
    else:
        near, values["rate"], tokens = min(RECIPES, key=lambda row: abs(math.log(row[0] / active)))
        values["batch"] = max(1, tokens // 2 ** round(math.log2(length)))
        warmup = round(WARMUP_TOKENS / (values["batch"] * length))
        values["warmup"] = min(warmup, values["steps"] // 10)
        values["warmed"] = " Warm-up: 375 million tokens (appendix B), at most a tenth of the steps."
        recipe = (
            f"{BROWN}, table 2.1: the nearest size, {near / 1e9:g} billion, for {active / 1e9:.2f} billion"
        )
    text = TEXT.format(**{**values, "count": count, "recipe": recipe})
    _load(text, source)
    files = {"kustomization.yaml": KUSTOMIZATION + (FINETUNE if lora else "")}
    return Made(name, {**files, "model.yaml": text}, (count, f"recipe: {recipe}"))


def _load(text: str, source: Published) -> Config:
    cell = json.dumps({"parallel": {"micro_batch_size": 1}, "checkpoint": {"every": 1}})
    try:
        return load_texts(
            {"model": ("model.yaml", text), "hardware": ("hardware.yaml", ""), "cell": ("cell.yaml", cell)}
        )
    except ConfigError as error:
        raise UserError(f"{source.where}: {str(error).partition(': ')[2] or error}") from None


def _keys(section: Mapping[str, Any]) -> str:
    plain = {
        key: v if isinstance(v, str) and PLAIN_TEXT.fullmatch(v) else json.dumps(v)
        for key, v in section.items()
    }
    return "\n".join(f"  {key}: {value}" for key, value in plain.items())


def write(root: Path, made: Made, hardware: str | None) -> list[str]:
    """Write the Component and, with `hardware`, its cell. Return lines that say where the cell runs.

    Raises UserError, after which all is as before.
    """
    directory = root / "overlays/model" / made.name
    if directory.exists():
        raise UserError(f"overlays/model/{made.name} exists", "choose another name, or remove it")
    before = text_of(root / matrix.MATRIX, root)
    if hardware is not None and hardware not in (known := matrix.read(root).machines):
        raise UserError(f"no such hardware: {hardware}", f"known: {', '.join(known)}")
    try:
        directory.mkdir(parents=True)
        for file, text in made.files.items():
            (directory / file).write_text(text, encoding="utf-8")
        return _place(root, made.name, hardware, before) if hardware else []
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if hardware:
            (root / matrix.MATRIX).write_text(before, encoding="utf-8")
            matrix.sync(root)
        if isinstance(error, OSError):
            raise UserError(f"{directory}: cannot be written: {error.strerror}") from None
        raise


def _place(root: Path, name: str, hardware: str, before: str) -> list[str]:
    """Add the model's cell on the fewest nodes to the matrix."""
    found = matrix.read(root)
    cell = memory.fitting(root, found, hardware, name)
    (root / matrix.MATRIX).write_text(_with(before, hardware, cell, found), encoding="utf-8")
    matrix.sync(root)
    placed = next(one for one in matrix.load(root) if one.name == cell.name)
    return [f"cell overlays/{cell.name}: {memory.where(placed)}, {memory.of_cell(root, placed).summary()}"]


def _with(text: str, hardware: str, cell: Cell, found: matrix.Matrix) -> str:
    """The matrix's text with the cell first below its hardware, or below a new one at the end."""
    default = found.machines[hardware]
    sections = {**cell.sections, "checkpoint": {"every": 100, "keep": 2}}
    rows = [f"    {cell.model}:", f"      nodes: {cell.nodes}"]
    if cell.instance and cell.instance != default:
        rows.append(f"      instance: {cell.instance.name}")
    for section, values in sections.items():
        rows += [f"      {section}:", *(f"        {key}: {value}" for key, value in values.items())]
    lines = text.rstrip("\n").split("\n")
    if f"  {hardware}:" not in lines:
        lines += ["", f"  {hardware}:"]
    place = lines.index(f"  {hardware}:") + 1
    return "\n".join([*lines[:place], *rows, *lines[place:]]) + "\n"
