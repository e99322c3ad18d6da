"""A pinned revision of the Hugging Face hub: huggingface_hub downloads it, its errors become one line.

The token is the library's own business: HF_TOKEN, else the file HF_TOKEN_PATH names. With HF_HUB_OFFLINE=1
only what is in the cache is used. Interrupted downloads go on where they stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_token, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is its HTTP client's
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import tqdm

from training.checkpoint.errors import CheckpointError
from training.weights.errors import WeightsError

Say = Callable[[str], None]
WANTED = (
    "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*",
    "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja",
)  # fmt: skip
UNWANTED = ("*/*", "consolidated*")  # other formats of the same weights
_ATTEMPTS = 3  # of the whole; the library itself tries each request and each file several times
_EVERY_S = 5.0


def cache_directory(shared: Path) -> Path:
    """Where downloads are kept: where HF_HOME or HF_HUB_CACHE says, else on the volume with the runs."""
    told = any(os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    return Path(constants.HF_HUB_CACHE) if told else shared / "hub"


def download(repository: str, revision: str, cache: Path, say: Say, *, offline: bool = False) -> Path:
    """The directory with the files of one revision, fetched when they are not in the cache yet.

    `offline` looks in the cache only. Files whose bytes are there already are not fetched again.

    Raises:
        WeightsError: no access, no such repository or revision, or not in the cache and offline.
        CheckpointError: the hub cannot be reached, or the disk cannot be written; trying again may help.
    """
    where = f"weights {repository}@{revision}"
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return Path(
                snapshot_download(
                    repository,
                    revision=revision,
                    cache_dir=cache,
                    allow_patterns=list(WANTED),
                    ignore_patterns=list(UNWANTED),
                    local_files_only=offline,
                    tqdm_class=_lines(say, where),
                )
            )
        except (HfHubHTTPError, LocalEntryNotFoundError, IncompleteSnapshotError, HFValidationError) as error:
            refusal = _refusal(error, repository, revision, where, cache)
            if refusal is not None:
                raise refusal from None
            trouble: Exception = error
        except (HTTPError, OSError) as error:
            trouble = error
        if attempt < _ATTEMPTS:
            say(f"{where}: {_line(trouble)}; trying again")
            time.sleep(2.0**attempt)
    raise CheckpointError(
        f"{where}: cannot be downloaded from {constants.ENDPOINT}: {_line(trouble)}"
    ) from trouble


def _refusal(
    error: Exception, repository: str, revision: str, where: str, cache: Path
) -> WeightsError | None:
    """What a person must put right, in words; None for what may pass by itself."""
    if isinstance(error, HFValidationError):
        return WeightsError(f"{where}: is no name on the hub: {_line(error)}")
    if isinstance(error, RevisionNotFoundError):
        return WeightsError(
            f"{where}: {repository} has no revision {revision}; its commits: {_page(repository)}/commits/main"
        )
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError | IncompleteSnapshotError) else error
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
    if isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError):
        return WeightsError(f"{where}: no such repository, or a private one: {_access(repository, cause)}")
    if isinstance(cause, GatedRepoError) or status in (401, 403):
        return WeightsError(f"{where}: no access: {_access(repository, cause)}")
    if constants.is_offline_mode():
        return WeightsError(
            f"{where}: is not wholly in {cache}, and HF_HUB_OFFLINE is set; "
            "download it where there is a network"
        )
    return None


def _access(repository: str, error: Any) -> str:
    token = get_token()
    if token is None:
        return (
            "no token was sent; give one in HF_TOKEN or in the file that HF_TOKEN_PATH names"
            f", and ask for access at {_page(repository)}"
        )
    if isinstance(error, GatedRepoError):
        return f"the token was sent, but its owner has no access yet; ask for it at {_page(repository)}"
    return f"the token was sent and refused; is it right, and may its owner read {_page(repository)}?"


def _page(repository: str) -> str:
    return f"{constants.ENDPOINT}/{repository}"


def _line(error: Exception) -> str:
    """The first line of an error that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _lines(say: Say, where: str) -> type[Any]:
    """huggingface_hub's progress bars as a line every few seconds: how many bytes are there."""

    class Lines(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(
                *args, **{**kwargs, "mininterval": _EVERY_S, "delay": _EVERY_S, "disable": False}
            )

        def display(self, *_: object, **__: object) -> None:
            if self.unit == "B" and self.total and self.n:
                say(f"{where}: {self.n / 2**20:,.0f} of {self.total / 2**20:,.0f} MiB are here")

        def refresh(self, *_: object, **__: object) -> None:
            """Only `update` prints, and only every few seconds."""

    return Lines
