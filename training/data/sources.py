"""Sources of documents: the files that a `data.source` stands for, and the documents in them.

The name of a file gives its kind: `.jsonl`, `.ndjson`, these with `.gz`, `.json.gz` (JSON lines) and `.parquet`
hold one document per row, in `text_field`; every other file is UTF-8 text. A source may have several lines: paths,
globs, URLs with ranges, files of the hub (`training.data.remote_files`).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from training.data.errors import DataError, nearest, reason
from training.data.readers import (
    OTHER_TABLES,
    Document,
    Place,
    holds_rows,
    is_rows,
    pieces_of,
    read_file_as_document,
    rows_of,
    why_unread,
)
from training.data.remote_files import RemotePlace, is_remote, title_of, urls_of

STDLIB = "python-stdlib"
# Some distributions leave out the library's own tests, which are larger than the library.
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
_MAGIC = re.compile(r"[*?\[]")
# Files beside data: what people, the library `datasets` and MosaicML's streaming write about it.
_ABOUT = re.compile(
    r"(?i)(?:readme|licen[cs]e)(?:\..*)?|dataset_infos?\.json|dataset_dict\.json|state\.json|index\.json"
)
_CACHE = ("blobs", "refs", "snapshots")  # directories of a repository in the cache of the hub
_ON_HUB = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}(?:@[\w.-]{1,96})?")
# Words in the names of files that say which split they are, as the library `datasets` reads them.
_TRAIN = frozenset({"train", "training"})
_TEST = frozenset({"test", "testing", "eval", "evaluation", "validation", "valid", "val", "dev"})
_RENAME = "name it .jsonl, or its braces would be text"
_SHOWN = 3  # names of files that are left out


@dataclass(frozen=True)
class SourceFile:
    """One file of a source: its place, its name inside the source, its size in bytes, its time of change.

    The name of a remote file is its URL. It has no size or time: a URL always stands for the same bytes.
    """

    path: Place
    name: str
    size: int
    mtime_ns: int


@dataclass
class Counts:
    """Counts of one pass over a source. `bytes` are the UTF-8 bytes of the documents that were kept."""

    documents: int = 0
    bytes: int = 0
    duplicates: int = 0
    empty: int = 0
    not_text: int = 0

    def skipped(self) -> str:
        """Return what was left out and why, in words; empty if nothing was."""
        parts = [(self.duplicates, "duplicate"), (self.empty, "empty"), (self.not_text, "not UTF-8 text")]
        return ", ".join(f"{count:,} {what}" for count, what in parts if count)


@dataclass(frozen=True)
class Source:
    """A source whose files were found, in a fixed order; nothing is read yet.

    `single` means that the source is one file: its defects are errors instead of reasons to skip it, and
    plain text in it is cut into documents. `distinct` means that identical documents are dropped. Two kinds of files
    are not read: `tests`, of other splits than the one to train on, and `about`, which describe rows beside them.
    """

    name: str
    files: tuple[SourceFile, ...]
    text_field: str
    single: bool = False
    distinct: bool = False
    tests: tuple[SourceFile, ...] = ()
    about: tuple[SourceFile, ...] = ()

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def data(self) -> tuple[SourceFile, ...]:
        """The files without those about them; all files if there are no others."""
        return tuple(file for file in self.files if not _is_about(file)) or self.files

    @property
    def remote(self) -> bool:
        """Whether some file is read over the network."""
        return any(isinstance(file.path, RemotePlace) for file in self.files)

    def describe(self) -> str:
        """Return the source's name, number of files and size in words, and the splits that are left out."""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        tests = f"; left out, because there is a split train: {_names(self.tests)}" if self.tests else ""
        about = f"; left out, because rows are beside them: {_names(self.about)}" if self.about else ""
        return f"{self.name}: {files}, {'over HTTP' if self.remote else f'{self.size / 2**20:,.1f} MiB'}{tests}{about}"

    def fingerprint(self) -> list[list[object]]:
        """Return name, size and time of change of each file, which differ if the data changed."""
        return [[file.name, file.size, file.mtime_ns] for file in self.files]

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        """Yield the documents in a fixed order; each file is read when its turn comes.

        Updates `counts`. Raises DataError at the first row or file that cannot be used.
        """
        counts = Counts() if counts is None else counts
        seen: set[bytes] = set()
        for document in self._raw_documents(counts):
            if not document.data.strip():
                counts.empty += 1
                continue
            if self.distinct:
                digest = hashlib.sha256(document.data).digest()
                if digest in seen:
                    counts.duplicates += 1
                    continue
                seen.add(digest)
            counts.documents += 1
            counts.bytes += len(document.data)
            yield document

    def _raw_documents(self, counts: Counts) -> Iterator[Document]:
        for file in self.files:
            if is_rows(file.path):
                yield from rows_of(file.path, self.text_field)
            elif self.single:
                for number, piece in enumerate(pieces_of(file.path)):
                    if number == 0 and holds_rows(piece.text, self.text_field):
                        raise DataError(f"{file.path}: rows of JSON with the field '{self.text_field}'; {_RENAME}")
                    yield piece
            else:
                document = read_file_as_document(file.path)
                if document is None:
                    counts.not_text += 1
                else:
                    yield document


def open_source(source: str, text_field: str = "text") -> Source:
    """Find the files of `source`: `python-stdlib`, a directory, a glob, one file, URLs, or several of them.

    Only names, sizes and times are read here. Raises DataError if there is nothing to read, also because every
    file of a part has a compression or a format that is not read.
    """
    parts = [part for part in source.split("\n") if part]
    if len(parts) > 1:
        each = [open_source(part, text_field) for part in parts]
        files = tuple(_with_origin(file, part) for one, part in zip(each, parts, strict=True) for file in one.files)
        tests, about = (tuple(file for one in each for file in getattr(one, key)) for key in ("tests", "about"))
        return Source(each[0].name, files, text_field, tests=tests, about=about)
    found = _from_urls(source, text_field) if is_remote(source) else _from_disk(source, text_field)
    if all(why_unread(file.path) for file in found.data):
        raise DataError(f"data source {found.data[0].path}: {why_unread(found.data[0].path)}")
    return found


def _from_disk(source: str, text_field: str) -> Source:
    if source == STDLIB:
        root = Path(sysconfig.get_path("stdlib"))
        return Source(STDLIB, _walk(root, ".py", _NOT_LIBRARY), text_field, distinct=True)
    if not source or "\0" in source:
        raise DataError(f"data source {source!r} is not a path")
    path = path_of(source)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if _MAGIC.search(source):
            return _from_glob(path, text_field)
        raise DataError(_missing(source, path)) from None
    except OSError as error:
        raise DataError(f"data source {source}: {reason(error)}") from error
    if stat.S_ISDIR(mode):
        if all((path / name).is_dir() for name in _CACHE):
            commit = next((path / "snapshots").iterdir(), Path("COMMIT")).name
            raise DataError(
                f"data source {source} is a cache of the hub; name a commit in it: {path}/snapshots/{commit}"
            )
        files, tests = _to_train_on(_walk(path))
        return _without_about(Source(path.resolve().name, files, text_field, tests=tests))
    if not stat.S_ISREG(mode):
        raise DataError(f"data source {source} is neither a file nor a directory")
    return _from_file(path, text_field)


def _to_train_on(files: tuple[SourceFile, ...]) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...]]:
    """Divide a directory's files into those to read and those of splits to test with.

    Only tables have splits, and only beside one that is named as the split to train on: train-00000-of-00002.parquet.
    """
    words = {
        file.name: set(re.split(r"[-._ /]", file.name.lower()))
        for file in files if is_rows(file.path) or file.name.lower().endswith(OTHER_TABLES)
    }  # fmt: skip
    if not any(_TRAIN & found for found in words.values()):
        return files, ()
    tests = {name for name, found in words.items() if _TEST & found and not _TRAIN & found}
    return tuple(f for f in files if f.name not in tests), tuple(f for f in files if f.name in tests)


def _without_about(source: Source) -> Source:
    """Leave out what describes the data, if there are rows: a text beside them is not one of their documents."""
    if not any(is_rows(file.path) for file in source.files):
        return source
    return replace(source, files=source.data, about=tuple(filter(_is_about, source.files)))


def _is_about(file: SourceFile) -> bool:
    return _ABOUT.fullmatch(file.path.name) is not None


def _names(files: tuple[SourceFile, ...]) -> str:
    """Return the first names, and how many there are more."""
    more = f" and {len(files) - _SHOWN:,} more" if len(files) > _SHOWN else ""
    return ", ".join(file.name for file in files[:_SHOWN]) + more


def _with_origin(file: SourceFile, part: str) -> SourceFile:
    """Return the file with a name that includes which of several sources it is from."""
    return file if is_remote(part) else replace(file, name=f"{Path(part).name}:{file.name}")


def _from_urls(source: str, text_field: str) -> Source:
    files = tuple(SourceFile(RemotePlace(url), url, 0, 0) for url in urls_of(source))
    return Source(title_of(source), files, text_field, single=len(files) == 1)


def path_of(source: str) -> Path:
    """Return the path in a source or tokenizer key; `~` is the home directory."""
    return Path(os.path.expanduser(source))


def _missing(source: str, path: Path) -> str:
    if "://" in source:
        how = f"yard stage {source} brings it to the volume" if source.startswith("s3://") else "copy it to the volume"
        return f"data source {source} is not read directly; {how}"
    try:
        siblings = [] if path.parent == Path("/") else os.listdir(path.parent)
    except OSError:
        siblings = []
    if len(path.parts) == 1 and (hint := nearest(source, [STDLIB])):
        return f"data source {source} does not exist{hint}"
    hint = nearest(path.name, siblings)
    if not hint and _ON_HUB.fullmatch(source) and not path.parent.exists():
        hint = f"; of the hub it is hf://datasets/{source.partition('@')[0]}@<commit>"
    return f"data source {source} does not exist{hint}"


def _from_file(path: Path, text_field: str) -> Source:
    file = _stat_file(path, path.name)
    if file is None or file.size == 0:
        raise DataError(f"data source {path} is empty")
    return Source(path.name, (file,), text_field, single=True)


def _from_glob(pattern: Path, text_field: str) -> Source:
    root = Path(*pattern.parts[: _first_magic(pattern)])
    found = (Path(name) for name in glob.glob(str(pattern), recursive=True))
    files = [_stat_file(path, path.relative_to(root).as_posix()) for path in found]
    kept = _in_order([file for file in files if file is not None])
    if not kept:
        raise DataError(f"data source {pattern} matches no file")
    return _without_about(Source(root.resolve().name, kept, text_field))


def _first_magic(pattern: Path) -> int:
    return next(index for index, part in enumerate(pattern.parts) if _MAGIC.search(part))


def _walk(root: Path, suffix: str = "", without: frozenset[str] = frozenset()) -> tuple[SourceFile, ...]:
    """Return the regular files below `root`, without hidden ones, sorted by relative path.

    Links are followed, those to directories only where they lead out of `root` and not to one that was read.
    """
    files: list[SourceFile] = []
    read = [root.resolve()]

    def refuse(error: OSError) -> None:
        raise DataError(f"data source: cannot read directory {error.filename}: {reason(error)}") from error

    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in without)
        folders[:] = [name for name in folders if leads_on(Path(folder, name), read)]
        wanted = (name for name in names if not name.startswith(".") and name.endswith(suffix))
        paths = (Path(folder, name) for name in wanted)
        files += (file for path in paths if (file := _stat_file(path, path.relative_to(root).as_posix())))
    if not files:
        raise DataError(f"data source {root} contains no {suffix or 'readable'} files")
    return _in_order(files)


def leads_on(folder: Path, read: list[Path]) -> bool:
    """Return whether a directory is to be entered; a link adds its target to the directories that were `read`."""
    if not folder.is_symlink():
        return True
    target = folder.resolve()
    if any(target.is_relative_to(one) or one.is_relative_to(target) for one in read):
        return False
    read.append(target)
    return True


def _in_order(files: list[SourceFile]) -> tuple[SourceFile, ...]:
    return tuple(sorted(files, key=lambda file: PurePosixPath(file.name).parts))


def _stat_file(path: Path, name: str) -> SourceFile | None:
    """Return the file at `path`, or None if it is not a regular file (a pipe, a dangling link)."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"data source: cannot read {path}: {reason(error)}") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return SourceFile(path, name, status.st_size, status.st_mtime_ns)
