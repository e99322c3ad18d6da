"""What a source consists of: the items of a web server, the Hugging Face hub, S3, or a directory."""

from __future__ import annotations

import itertools
import os
import re
import stat
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from training.data.errors import DataError, reason
from training.data.hub import MODEL_FILES, OTHER_FORMATS
from training.data.remote_files import expand, urls_of
from training.stage.item import Body, Item, Say, chosen, is_hidden, safe_name

_HUB = re.compile(r"hf://(?P<kind>datasets/)?(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/@]+))?(?:/(?P<path>.+))?")
# What data sets hold beside their data.
_ABOUT = ("*.md", "*.py", "LICENSE*", "*.png", "*.jpg")
_AT_ONCE = 8


def items_of(source: str, include: tuple[str, ...], anonymous: bool, say: Say) -> tuple[str, list[Item]]:
    """Return the source with its exact revision, and its items sorted by name.

    `include` are patterns for names; `anonymous` asks S3 without credentials. Raises DataError.
    """
    if source.startswith("hf://"):
        exact, found = _hub(source, include, say)
    elif source.startswith("s3://"):
        from training.stage import s3

        exact, found = source, s3.items(source, include, anonymous, say)
    elif source.startswith(("http://", "https://")):
        exact, found = source, _web(source, include, say)
    else:
        exact, found = source, _directory(Path(source), include, say)
    if not found:
        only = f" that matches {', '.join(include)}" if include else ""
        raise DataError(f"{source}: there is no file{only}")
    found.sort(key=lambda item: item.name)
    for one, other in itertools.pairwise(found):
        if one.name == other.name:
            raise DataError(f"{source}: two files have the name {one.name}")
    return exact, found


def _web(source: str, include: tuple[str, ...], say: Say) -> list[Item]:
    """Return the items of a URL with ranges; each server is asked for size and version."""
    urls = [(safe_name(_file_of(url), source), url) for url in urls_of(source)]
    wanted = chosen((name for name, _ in urls), include)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        jobs = [pool.submit(_web_item, name, url, say) for name, url in urls if name in wanted]
        return [job.result() for job in jobs]


def _file_of(url: str) -> str:
    return urllib.parse.unquote(PurePosixPath(urllib.parse.urlsplit(url).path).name) or "index"


def _web_item(name: str, url: str, say: Say) -> Item:
    from training.data.http import RemoteFile

    with RemoteFile(url, say) as remote:
        return Item(name, remote.size, remote.version, _web_body(url, say))


def _web_body(url: str, say: Say) -> Callable[[int, threading.Event], Body]:
    def opened(offset: int, stop: threading.Event) -> Body:
        from training.data.http import RemoteFile

        remote = RemoteFile(url, say, stop)
        remote.seek(offset)
        return remote

    return opened


def _hub(source: str, include: tuple[str, ...], say: Say) -> tuple[str, list[Item]]:
    """Return the items of a model or data set at one commit, with the hub's digests of large files."""
    from huggingface_hub import constants
    from huggingface_hub.utils._paths import filter_repo_objects

    found = _HUB.fullmatch(source)
    if found is None:
        raise DataError(
            f"{source} is not hf://<organisation>/<name>[@<revision>] or hf://datasets/<organisation>/<name>..."
        )
    kind, path = "dataset" if found["kind"] else "model", found["path"]
    commit, files = _hub_files(found["id"], kind, found["revision"])
    paths = expand(path.rstrip("/")) if path else []
    wanted = chosen(chosen(files, tuple(p for each in paths for p in (each, f"{each}/*"))), include)
    if not path and not include:
        kept, other = (list(MODEL_FILES), OTHER_FORMATS) if kind == "model" else (None, _ABOUT)
        wanted = set(filter_repo_objects(wanted, allow_patterns=kept, ignore_patterns=list(other)))
    base = f"{constants.ENDPOINT}/{'datasets/' if found['kind'] else ''}{found['id']}/resolve/{commit}"
    items = []
    for name in sorted(wanted):
        size, sha256 = files[name]
        if not is_hidden(safe_name(name, source)):
            url = f"{base}/{urllib.parse.quote(name)}"
            items.append(Item(name, size, commit, _web_body(url, say), sha256))
    exact = f"hf://{found['kind'] or ''}{found['id']}@{commit}" + (f"/{path}" if path else "")
    return exact, items


def _hub_files(name: str, kind: str, revision: str | None) -> tuple[str, dict[str, tuple[int, str | None]]]:
    """Return the commit that a revision names, and its files with size and published SHA-256."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    from training.data import hub

    def asked() -> Any:
        api = HfApi(constants.ENDPOINT)
        return api.repo_info(name, revision=revision, repo_type=kind, files_metadata=True)

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
    try:
        info = hub.asked(f"{kind} {name}", asked, refused=(RepositoryNotFoundError, RevisionNotFoundError))
    except RevisionNotFoundError:
        raise DataError(f"{name} has no revision {revision}; its commits: {page}/commits/main") from None
    except GatedRepoError:
        raise DataError(f"{name} is gated: request access at {page}, and give a token (HF_TOKEN)") from None
    except RepositoryNotFoundError:
        raise DataError(f"the hub has no {kind} {name}, or it is private and needs a token (HF_TOKEN)") from None
    files = {one.rfilename: (int(one.size or 0), one.lfs.sha256 if one.lfs else None) for one in info.siblings or []}
    return str(info.sha), files


def _directory(root: Path, include: tuple[str, ...], say: Say) -> list[Item]:
    """Return the items of a file, or of the regular files below a directory; hidden ones are left out."""
    try:
        if stat.S_ISREG(root.stat().st_mode):
            return [_file_item(root, root.name)]
    except OSError as error:
        raise DataError(f"{root}: {reason(error)}") from None
    paths = {path.relative_to(root).as_posix(): path for path in _regular(root, say)}
    return [_file_item(paths[name], safe_name(name, str(root))) for name in chosen(paths, include)]


def _regular(root: Path, say: Say) -> Iterator[Path]:
    """Yield the regular files. Links are not followed: on a shared volume they may lead out of it."""
    left = 0
    for folder, folders, names in os.walk(root):
        hidden = [name for name in (*folders, *names) if is_hidden(name)]
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        left += len(hidden)
        for name in sorted(set(names) - set(hidden)):
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path
            else:
                left += 1
    if left:
        say(f"{root}: {left:,} hidden files, links and special files are left out")


def _file_item(path: Path, name: str) -> Item:
    status = path.stat()

    def opened(offset: int, _stop: threading.Event) -> Body:
        file = path.open("rb")
        file.seek(offset)
        return file

    return Item(name, status.st_size, str(status.st_mtime_ns), opened)
