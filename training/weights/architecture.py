"""Checks that a config.json describes the same model as the configuration's section `model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.config import ConfigError, Model
from training.models.published import differences, read_published
from training.weights.errors import WeightsError
from training.weights.tensors import read_object

CONFIG = "config.json"


def check_architecture(directory: Path, model: Model) -> None:
    """Compare config.json in `directory` with the section `model`, key by key.

    Keys about training (dropout, initial deviation) may differ. Code named in the file is never run.

    Raises:
        WeightsError: lists every key that differs, with both values.
    """
    path = directory / CONFIG
    if not path.exists():
        raise WeightsError(f"{path} is missing; it describes the weights' architecture")
    values = read_object(path)
    kind = values.get("model_type")
    if kind != model.architecture:
        raise WeightsError(f"{path}: model_type is {kind!r}, model.architecture is {model.architecture}")
    try:
        found = differences(read_published(values), model)
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from None
    if found:
        raise WeightsError(f"{path}: {'; '.join(found)}")


def check_same_model(theirs: dict[str, Any], ours: Model, where: str) -> None:
    """Compare the section `model` in another run's checkpoint with this one's.

    Raises:
        WeightsError: lists every key that differs, with both values.
    """
    if found := differences(theirs, ours):
        raise WeightsError(f"{where}: {'; '.join(found)}")
