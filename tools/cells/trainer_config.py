"""The trainer's configuration as the ConfigMaps of a manifest hold it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tools.core import UserError, repo
from tools.core.nested import mapping
from tools.kube.manifests import Manifests, name_of
from tools.workload import kinds

if TYPE_CHECKING:
    from training.config import Config

TRAINER = re.compile(r"(?:^|\s)training\.[a-z]")  # a word of a command, or a part of a shell's text
Texts = dict[str, tuple[str, str]]


def load_config(manifests: Manifests, checkout: Path) -> Config | None:
    """Return the trainer's configuration that the ConfigMaps hold, or None when they hold none. Raises ConfigError."""
    texts = config_texts(manifests, checkout)
    if not texts:
        return None
    from training.config import load_texts

    return load_texts(texts)


def config_texts(manifests: Manifests, checkout: Path) -> Texts:
    """Return `{layer: (file name for messages, text)}` of the files, or nothing when none is there.

    Files of other programs may have these names: only of a job that starts the trainer all three are needed.
    A text that stands unchanged in a file below overlays/ has that file's name, so that lines match.
    """
    from training.config import DATA, FILES

    found: Texts = {}
    for layer in (*FILES, DATA):
        for item in manifests.of_kind("ConfigMap"):
            text = mapping(item.get("data")).get(f"{layer}.yaml")
            if isinstance(text, str):
                labels = {str(value) for value in (item["metadata"].get("labels") or {}).values()}
                found[layer] = (_origin(layer, text, labels, checkout) or f"{name_of(item)}/{layer}.yaml", text)
    missing = next((layer for layer in FILES if layer not in found), None)
    if found and missing:
        if not _starts_trainer(manifests):
            return {}
        raise UserError(
            f"{manifests.source}: no ConfigMap holds {missing}.yaml, but one holds {next(iter(found))}.yaml"
        )
    return found


def inputs(config: Config) -> dict[tuple[str, str], str]:
    """Return what the configuration reads, as {(kind, path): key}; a kind is data, weights, run or tokenizer."""
    weights = config.model.weights or ""
    named = {("data", part): "data.source" for part in config.data.source.split("\n")}
    named[("weights", weights)] = "model.weights"
    if config.data.tokenizer != weights:
        named[("tokenizer", config.data.tokenizer)] = "data.tokenizer"
    if weights.startswith("run:"):
        named[("run", f"/shared/runs/{weights.removeprefix('run:')}")] = "model.weights"
    return {(kind, value): key for (kind, value), key in named.items() if value.startswith("/")}


def _starts_trainer(manifests: Manifests) -> bool:
    """Return whether a job of the manifests starts a module of trainyard's trainer."""
    jobs = kinds.find(manifests).workloads
    containers = [one for job in jobs for one in job.training_containers()]
    words = [word for one in containers for key in ("command", "args") for word in one.get(key) or []]
    return any(TRAINER.search(str(word)) for word in words)


def write_settings(manifests: Manifests, settings: Iterable[str]) -> None:
    """Write `key=value` settings into the ConfigMaps that own the keys. Raises UserError and ConfigError."""
    from training.config import apply_override, load_texts

    texts = config_texts(manifests, repo.root())
    if not texts:
        raise UserError(
            f"{manifests.source}: holds no trainer configuration for --set to change",
            "a script of your own takes its values from its command and its variables",
        )
    for setting in settings:
        texts = apply_override(texts, setting)
    load_texts(texts)
    for item in manifests.of_kind("ConfigMap"):
        data = mapping(item.get("data"))
        data.update({f"{layer}.yaml": text for layer, (_, text) in texts.items() if f"{layer}.yaml" in data})


def _origin(layer: str, text: str, labels: set[str], checkout: Path) -> str | None:
    """Return the file that holds a text: of several the one whose directories the labels name."""

    def named(path: Path) -> int:
        return len(labels.intersection(path.parent.parts[-2:]))

    paths = sorted((checkout / "overlays").glob(f"*/*/{layer}.yaml"))
    same = [path for path in paths if path.read_text(encoding="utf-8", errors="replace") == text]
    best = max(same, key=named, default=None)
    return repo.shown(best) if best is not None and (len(same) == 1 or named(best)) else None
