"""Sources of examples: files of rows, texts, a data set of the hub, or Python's own help."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from training.data.errors import DataError
from training.data.examples import python_help
from training.data.examples.formats import BadRow
from training.data.examples.tables import TABLES, Row, is_table, json_row, table_rows
from training.data.readers import (
    NOT_UNPACKED,
    OTHER_TABLES,
    ROWS,
    Place,
    is_packed,
    is_parquet,
    is_rows,
    json_lines,
    parquet_rows,
    pieces_of,
    read_file_as_document,
)
from training.data.sources import Source, SourceFile, open_source

PYTHON_HELP = "python-help"
_HUB = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)@(?P<revision>[\w.-]+)(?::(?P<split>[\w.\[\]%:-]+))?")
_SHOWN = 3  # names of files that are left out
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SLICE = re.compile(r"(?P<split>[^\[]+)\[(?P<first>\d{0,12}):(?P<end>\d{0,12})\]")
_WANTED = "messages, or prompt and completion, or text"
_UNNAMED_ROWS = "looks like rows of JSON; name it .jsonl"


@dataclass(frozen=True)
class Rows:
    """A source of rows that was found; nothing is read yet.

    `fingerprint` changes with the content. `read` yields rows in a fixed order, or a BadRow in a row's place;
    it raises DataError if it cannot continue.
    """

    name: str
    about: str
    fingerprint: Callable[[], object]
    read: Callable[[], Iterator[Row | BadRow]]


def open_rows(source: str, text_field: str) -> Rows:
    """Find `source`: `python-help`, a file, a directory, a glob, or `<organisation>/<name>@<commit>[:split]`.

    Raises DataError if there is nothing to read.
    """
    if source == PYTHON_HELP:
        return Rows(source, source, python_help.fingerprint, _python_help)
    if found := _HUB.fullmatch(source):
        return _hub(source, found["name"], found["revision"], found["split"] or "train")
    files, left_out = _with_rows(open_source(source, text_field))
    return Rows(
        files.name,
        files.describe() + left_out,
        lambda: _with_rows(open_source(source, text_field))[0].fingerprint(),
        lambda: _file_rows(files),
    )


def _with_rows(source: Source) -> tuple[Source, str]:
    """Keep only the files of rows, if there are any: the files beside them describe them. Else keep all.

    Also returns in words what was left out. Raises DataError for tables in another format, which are not text.
    """
    for reads, kinds in ((is_rows, ROWS), (is_table, TABLES)):
        rows = tuple(file for file in source.files if reads(file.path))
        if rows:
            others = [file for file in (*source.about, *source.files) if not reads(file.path)]
            return replace(source, files=rows, about=()), _left_out(others, kinds)
    for file in source.data:
        if file.name.lower().endswith(OTHER_TABLES):
            raise DataError(f"{file.path}: cannot be read as rows; convert it to .jsonl, .json, .csv or .parquet")
    return source, ""


def _left_out(files: list[SourceFile], kinds: str) -> str:
    """Return which files are left out and why; empty if none is. Tables come first, because they have rows."""
    if not files:
        return ""
    names = [file.name for file in sorted(files, key=lambda file: not is_table(file.path))]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"; left out: {', '.join(names[:_SHOWN])}{more} (beside {kinds} no other file is read)"


def _python_help() -> Iterator[Row]:
    for where, messages in python_help.chats():
        yield Row(where, {"messages": messages})


def _file_rows(source: Source) -> Iterator[Row | BadRow]:
    for file in source.files:
        if is_parquet(file.path):
            yield from (Row(where, _without_nulls(fields)) for where, fields in parquet_rows(file.path))
        elif is_rows(file.path):
            yield from (json_row(where, data, _WANTED) for where, data in json_lines(file.path))
        elif is_table(file.path):
            yield from table_rows(file.path, _WANTED)
        elif source.single:
            for number, piece in enumerate(pieces_of(file.path), start=1):
                if number == 1 and _begins_with_a_row(piece.text):
                    raise DataError(f"{file.path}: {_UNNAMED_ROWS}")
                yield Row(f"{file.path}, piece {number}", {source.text_field: piece.text})
        else:
            yield _text_row(file.path, source.text_field)


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Arrow's types without the null keys inside its fields.

    There all objects of a column have the same keys: a tool or a call gets those of the others as null, and a
    template would write them.
    """
    return {name: _kept(value) for name, value in fields.items()}


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kept(part) for key, part in value.items() if part is not None}
    return [_kept(part) for part in value] if isinstance(value, list) else value


def _text_row(path: Place, text_field: str) -> Row | BadRow:
    """Return a file of text as one row, or why it is none."""
    if is_packed(path):
        return BadRow(f"{path}: {NOT_UNPACKED}")
    document = read_file_as_document(path)
    if document is None:
        return BadRow(f"{path}: not UTF-8 text")
    if _begins_with_a_row(document.text):
        return BadRow(f"{path}: {_UNNAMED_ROWS}")
    return Row(str(path), {text_field: document.text})


def _begins_with_a_row(text: str) -> bool:
    """Return whether the first line that is not blank is a JSON object: as text, roles and braces would be learned."""
    line = text.lstrip().partition("\n")[0]
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _hub(source: str, name: str, revision: str, split: str) -> Rows:
    if not _COMMIT.fullmatch(revision):
        raise DataError(
            f"data source {source}: {revision!r} is a branch or a tag, which can move; "
            f"name a commit of {name} with at least seven hexadecimal digits"
        )

    def read() -> Iterator[Row]:
        for number, fields in enumerate(_hub_rows(source, name, revision, split), start=1):
            yield Row(f"{source}, row {number}", _without_nulls(fields))

    return Rows(name.partition("/")[2], source, lambda: [name, revision, split], read)


def _hub_rows(source: str, name: str, revision: str, split: str) -> Iterator[dict[str, Any]]:
    """Read a split, or its rows `split[first:end]`, one by one; the library's errors become a DataError."""
    import datasets

    first = end = None
    if found := _SLICE.fullmatch(split):  # the library does not stream slices
        split, first, end = found["split"], int(found["first"] or 0), found["end"]
    try:
        rows = datasets.load_dataset(name, revision=revision, split=split, streaming=True)
        yield from islice(rows, first, int(end) if end else None)
    except Exception as error:  # the hub, its files and their readers have no common error type
        why = str(error).strip().partition("\n")[0]
        raise DataError(f"data source {source}: {type(error).__name__}: {why}") from error
