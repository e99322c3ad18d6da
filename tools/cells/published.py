"""Finds a published config.json: a file, a directory, or a pinned revision of the Hugging Face hub."""

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.core.errors import UserError
from training.config import ConfigError
from training.models.published import read_published
from training.run.files import read_bounded

CONFIG = "config.json"
SHARED = "/shared"  # where pods mount the claim
LARGEST = 1 << 20  # bytes; published ones have a few thousand
HUB = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}(?:@[\w.-]{1,96})?")


@dataclass(frozen=True)
class Published:
    """What a config.json says."""

    where: str  # for messages and comments: a path, or a repository with its commit
    weights: str | None  # the value of model.weights that names its revision or directory in a pod, if one does
    model: dict[str, Any]  # the keys of the section `model`
    longest: int  # the longest sequence that it was trained with, in tokens

    @property
    def origin(self) -> str:
        """The source, without the directories of this machine."""
        return self.where if self.weights else self.directory.name

    @property
    def directory(self) -> Path:
        """The directory of a config.json on this machine."""
        return Path(self.where).absolute().parent


def read(source: str) -> Published:
    """Return what the config.json of `source` says. Raises UserError where it cannot be used."""
    path = Path(source).expanduser()
    if path.exists():
        path = path / CONFIG if path.is_dir() else path
        there = path.absolute().parent
        return _parsed(_bytes(path), str(path), str(there) if there.is_relative_to(SHARED) else None)
    if not HUB.fullmatch(source):
        raise UserError(
            f"{source}: no such file or directory",
            "name a config.json, its directory, or <organisation>/<name>@<revision>",
        )
    repository, _, revision = source.partition("@")
    if not revision:
        raise UserError(f"{source}: without a revision", f"pin one: {repository}@<commit>")
    data, commit = _from_hub(repository, revision)
    return _parsed(data, f"{repository} on the Hugging Face hub, revision {commit}", f"{repository}@{commit}")


def _from_hub(repository: str, revision: str) -> tuple[bytes, str]:
    """Return the file's bytes and the commit that the revision names."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]
    except ImportError:
        raise UserError("reading from the hub needs huggingface_hub", "make setup installs it") from None
    with tempfile.TemporaryDirectory() as cache:
        try:
            path = Path(hf_hub_download(repository, CONFIG, revision=revision, cache_dir=cache))
        except (HTTPError, HFValidationError, OSError, ValueError) as error:
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            hint = "check name, revision and HF_TOKEN, or download config.json and name the file"
            raise UserError(f"{repository}@{revision}: {CONFIG} cannot be read: {line}", hint) from None
        return _bytes(path), path.parent.name  # the library names snapshots by their commit


def _bytes(path: Path) -> bytes:
    try:
        return read_bounded(path, LARGEST, follow=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _parsed(data: bytes, where: str, weights: str | None) -> Published:
    try:
        values = json.loads(data)
        if not isinstance(values, dict):
            raise ValueError("not a mapping")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    try:
        model = read_published(values)
    except ConfigError as error:
        raise UserError(f"{where}: {error}") from None
    model |= {key: values[key] for key in ("attention_dropout", "initializer_range") if values.get(key)}
    longest = values.get("max_position_embeddings")
    return Published(where, weights, model, longest if isinstance(longest, int) and longest > 0 else 2048)
