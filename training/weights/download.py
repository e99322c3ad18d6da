"""Downloads a pinned revision of the Hugging Face hub with huggingface_hub; its errors become one line.

The library finds the token: HF_TOKEN, else the file in HF_TOKEN_PATH. With HF_HUB_OFFLINE=1 only the cache is
used. Interrupted downloads continue where they stopped.
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
from training.data.hub import MODEL_FILES, OTHER_FORMATS
from training.weights.errors import WeightsError

Say = Callable[[str], None]
_ATTEMPTS = 3  # for the whole download; the library itself retries each request and each file
_EVERY_S = 5.0


def cache_directory(run: Path) -> Path:
    """The directory of downloads: from HF_HOME or HF_HUB_CACHE, else below the run."""
    told = any(os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    return Path(constants.HF_HUB_CACHE) if told else run / "hub"


def prepared(repository: str, revision: str) -> Path | None:
    """The directory of a revision that was downloaded for all runs, None if it is not complete there.

    It is below TRAINYARD_DATA, where a trainer writes nothing.
    """
    cache = Path(os.environ.get("TRAINYARD_DATA", "local/data")) / "hub"
    if not cache.is_dir():
        return None
    try:
        return _snapshot(repository, revision, cache, local_files_only=True)
    except (HFValidationError, IncompleteSnapshotError, LocalEntryNotFoundError, OSError):
        return None


def _snapshot(repository: str, revision: str, cache: Path, **options: Any) -> Path:
    """Return the directory with the wanted files of one revision, as snapshot_download does."""
    wanted: dict[str, Any] = {"allow_patterns": list(MODEL_FILES), "ignore_patterns": list(OTHER_FORMATS)}
    return Path(snapshot_download(repository, revision=revision, cache_dir=cache, **wanted, **options))


def download(repository: str, revision: str, cache: Path, say: Say, *, offline: bool = False) -> Path:
    """Return the directory with the files of one revision; download files that are not in the cache.

    With `offline` only the cache is used.

    Raises:
        WeightsError: no access, no such repository or revision, or offline and not in the cache.
        CheckpointError: the hub is not reachable, or the disk cannot be written; another attempt may help.
    """
    where = f"weights {repository}@{revision}"
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            options = {"local_files_only": offline, "tqdm_class": _lines(say, where)}
            return _snapshot(repository, revision, cache, **options)
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
    raise CheckpointError(f"{where}: cannot be downloaded from {constants.ENDPOINT}: {_line(trouble)}") from trouble


def _refusal(error: Exception, repository: str, revision: str, where: str, cache: Path) -> WeightsError | None:
    """The error for what a person must fix; None for what may go away."""
    if isinstance(error, HFValidationError):
        return WeightsError(f"{where}: not a valid name on the hub: {_line(error)}")
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
            f"{where}: not completely in {cache}, and HF_HUB_OFFLINE is set; "
            "download it on a machine with network access"
        )
    return None


def _access(repository: str, error: Any) -> str:
    token = get_token()
    if token is None:
        return (
            "no token was sent; give one in HF_TOKEN or in the file that HF_TOKEN_PATH names"
            f", and request access at {_page(repository)}"
        )
    if isinstance(error, GatedRepoError):
        return f"the token was sent, but its owner has no access yet; request it at {_page(repository)}"
    return f"the token was sent and refused; check it, and that its owner may read {_page(repository)}"


def _page(repository: str) -> str:
    return f"{constants.ENDPOINT}/{repository}"


def _line(error: Exception) -> str:
    """The first line of an error that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _lines(say: Say, where: str) -> type[Any]:
    """huggingface_hub's progress bars as a line every few seconds with the number of bytes."""

    class Lines(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "mininterval": _EVERY_S, "delay": _EVERY_S, "disable": False})

        def display(self, *_: object, **__: object) -> None:
            if self.unit == "B" and self.total and self.n:
                say(f"{where}: {self.n / 2**20:,.0f} of {self.total / 2**20:,.0f} MiB downloaded")

        def refresh(self, *_: object, **__: object) -> None:
            """Only `update` prints, and only every few seconds."""

    return Lines
