"""Requests to the Hugging Face hub: the files of a data set's split, tokenizers, retries."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from training.data.errors import DataError, reason
from training.data.readers import ROWS, is_rows
from training.data.retries import Retries, describe
from training.run.files import read_bounded

COMMIT = re.compile(r"[0-9a-f]{40}")
_PINNED = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)@(?P<revision>[\w.-]+)")
# The files of a model that are used, and other formats of the same weights.
MODEL_FILES = (
    "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*",
    "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja",
)  # fmt: skip
OTHER_FORMATS = ("*/*", "consolidated*")
LARGEST = 64 * 2**20  # bytes of a tokenizer's file; the largest published ones have half of it
_Answer = TypeVar("_Answer")


def asked(name: str, question: Callable[[], _Answer], refused: tuple[type[Exception], ...] = ()) -> _Answer:
    """Call `question`, which asks the hub. A busy hub is asked again; every other failure is a DataError.

    Errors of the types `refused` are the caller's.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    retries = Retries(name, lambda line: None, threading.Event())
    while True:
        try:
            return question()
        except refused:
            raise
        except OfflineModeIsEnabled:
            raise DataError(f"{name}: needs the hub, but HF_HUB_OFFLINE is set") from None
        except HfHubHTTPError as error:
            retries.answered(error.response.status_code, error.response.headers)
        except LocalEntryNotFoundError as error:  # the hub is not reachable and the file is not cached
            if isinstance(error.__cause__, HfHubHTTPError):
                retries.answered(error.__cause__.response.status_code, error.__cause__.response.headers)
            else:
                retries.failed(describe(error))
        except (httpx2.TransportError, ConnectionError) as error:
            retries.failed(describe(error))


def files_of_split(part: str, name: str, commit: str, split: str = "train") -> list[str]:
    """Return the paths of a split's files in a data set's repository, from its own configuration.

    `part` names the source in messages. Raises DataError.
    """
    import datasets

    try:
        builder = datasets.load_dataset_builder(name, revision=commit)
    except Exception as error:  # the hub, configurations and their readers have no common error type
        first = str(error).strip().partition("\n")[0]
        raise DataError(f"data source {part}: {type(error).__name__}: {first}") from error
    splits: dict[str, Iterable[str]] = builder.config.data_files or {}
    if split not in splits:
        raise DataError(f"data source {part}: no split '{split}' (there: {', '.join(splits) or 'none'})")
    paths = sorted(str(file).partition(f"@{commit}/")[2] for file in splits[split])
    if others := [path for path in paths if not is_rows(PurePosixPath(path))]:
        raise DataError(f"data source {part}: {others[0]} cannot be read as rows; supported are {ROWS}")
    return paths


def is_pinned(name: str) -> bool:
    """Return whether a tokenizer's name is `<organisation>/<name>@<revision>` and not an existing path."""
    return _PINNED.fullmatch(name) is not None and not Path(name).exists()


def fetch(name: str, files: Iterable[str], needed: str) -> dict[str, bytes]:
    """Return those of `files` that a repository has at a commit; DataError if `needed` is not among them.

    `name` is `<organisation>/<name>@<commit>`. Cached files are not requested again.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    if not COMMIT.fullmatch(revision):
        raise DataError(
            f"tokenizer {name}: the revision {revision} is not a commit of 40 hex digits; "
            "a branch or tag may change below a run"
        )

    def content(file: str) -> bytes | None:
        try:
            path = Path(hf_hub_download(repository, file, revision=revision))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            return None
        try:
            return read_bounded(path, LARGEST, follow=True)
        except OSError as error:
            raise DataError(f"tokenizer {name}: cannot read {file}: {reason(error)}") from None

    found = {file: asked(f"tokenizer {name}", functools.partial(content, file)) for file in files}
    if found.get(needed) is None:
        raise DataError(f"tokenizer {name}: {repository} has no {needed} at this commit")
    return {file: data for file, data in found.items() if data is not None}
