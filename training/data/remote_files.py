"""Files read over HTTP: the URLs that a source stands for, and each of them as a place to read from.

https://host/c4-train.{00000..01023}-of-01024.json.gz   a range of URLs; {en,de} names alternatives
hf://datasets/<organisation>/<name>@<commit>/<pattern>  files of a data set of the hub, at a pinned commit
hf://datasets/<organisation>/<name>@<commit>            the files of its train split, by its configuration
"""

from __future__ import annotations

import fnmatch
import itertools
import re
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, cast

from training.data import hub
from training.data.errors import DataError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_HUB = re.compile(r"hf://datasets/(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]*))?(?:/(?P<path>.+))?")
_MAGIC = re.compile(r"[*?\[]")
_MOST_URLS = 1_000_000


@dataclass(frozen=True)
class RemotePlace:
    """A file behind a URL. `tell` gets a line for each failed attempt; setting `stop` ends all waiting."""

    url: str
    tell: Callable[[str], None] = field(default=lambda line: None, compare=False)
    stop: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def name(self) -> str:
        """The file's name, which gives readers its kind."""
        return PurePosixPath(urllib.parse.urlsplit(self.url).path).name

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str) -> IO[bytes]:
        """Open it for reading; bytes are requested over the network when they are read."""
        import io

        from training.data.http import RemoteFile

        assert mode == "rb"
        return cast(IO[bytes], io.BufferedReader(RemoteFile(self.url, self.tell, self.stop), 1 << 17))


def is_remote(part: str) -> bool:
    """Return whether a part of a source is read over the network."""
    return part.startswith(("http://", "https://", "hf://"))


def title_of(part: str) -> str:
    """Return a short name of a remote part, for messages and directories."""
    if hub := _HUB.fullmatch(part):
        return hub["id"]
    stem = re.split(r"[{*?\[]", PurePosixPath(urllib.parse.urlsplit(part).path).name)[0]
    return stem.strip("-_.") or urllib.parse.urlsplit(part).netloc


def urls_of(part: str) -> list[str]:
    """Return the URLs that a remote part stands for, in order; asks the hub to list files if necessary.

    Raises DataError.
    """
    if part.startswith("hf://"):
        return _hub_urls(part)
    split = urllib.parse.urlsplit(part)
    if not split.netloc:
        raise DataError(f"data source {part}: the URL names no host")
    if _MAGIC.search(split.path):
        raise DataError(
            f"data source {part}: a web server cannot list its files; write a range such as part-{{00..07}}"
        )
    return expand(part)


def expand(text: str) -> list[str]:
    """Expand the braces in `text` as a shell does; text without braces is its own value. Raises DataError."""
    pieces = _BRACES.split(text)
    choices = [_choices(text, piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_URLS:
        raise DataError(f"data source {text} stands for {count:,} files, more than {_MOST_URLS:,}")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(text: str, inside: str) -> list[str]:
    if "," in inside:
        return inside.split(",")
    found = _RANGE.fullmatch(inside)
    if found is None:
        raise DataError(f"data source {text}: {{{inside}}} is neither a range {{00..07}} nor a list {{a,b}}")
    first, last = found[1], found[2]
    if int(last) < int(first) or int(last) - int(first) >= _MOST_URLS:
        raise DataError(f"data source {text}: {{{inside}}} is not a range of at most {_MOST_URLS:,} numbers")
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1)]


def _hub_urls(part: str) -> list[str]:
    from huggingface_hub import constants

    found = _HUB.fullmatch(part)
    if found is None:
        raise DataError(f"data source {part} is not hf://datasets/<organisation>/<name>@<commit>[/<path or pattern>]")
    revision = found["revision"] or ""
    if not hub.COMMIT.fullmatch(revision):
        raise DataError(
            f"data source {part}: the revision {revision or '(none)'} is not a commit of 40 hex digits; "
            "a branch or tag may change below a run"
        )
    if found["path"] is None:
        paths = hub.files_of_split(part, found["id"], revision)
    else:
        paths = [path for pattern in expand(found["path"]) for path in _matching(part, found, pattern)]
    base = f"{constants.ENDPOINT}/datasets/{found['id']}/resolve/{revision}"
    return [f"{base}/{urllib.parse.quote(path)}" for path in paths]


def _matching(part: str, found: re.Match[str], pattern: str) -> list[str]:
    if not _MAGIC.search(pattern):
        return [pattern]
    import huggingface_hub
    from huggingface_hub import constants

    folder = "/".join(itertools.takewhile(lambda piece: not _MAGIC.search(piece), pattern.split("/")[:-1]))
    listed = hub.asked(
        f"data set {found['id']}",
        lambda: list(
            huggingface_hub.HfApi(constants.ENDPOINT).list_repo_tree(
                found["id"], folder or None, recursive=True, revision=found["revision"], repo_type="dataset"
            )
        ),
    )
    names = sorted(entry.path for entry in listed if hasattr(entry, "size"))
    paths = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not paths:
        raise DataError(f"data source {part}: no file of {found['id']} matches {pattern}")
    return paths
