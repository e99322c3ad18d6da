"""Rows of `.json` files (an array, or one object per line) and of CSV files, read piece by piece."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from training.data.errors import DataError, not_utf8, reason
from training.data.examples.formats import BadRow
from training.data.readers import MOST_ROW, Named, Place, json_lines, json_object, kind_of

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON = ".json"
TABLES = ".json, .csv and .tsv"  # what `table_rows` reads, in words
# Beside data sets of the hub, and in those that the library `datasets` has saved.
_ABOUT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_CHUNK = 2**16  # characters
_SPACE = " \t\r\n"


class Row(NamedTuple):
    """One row: its place in words, and its fields."""

    where: str
    fields: dict[str, Any]


def is_table(path: Named) -> bool:
    """Return whether `table_rows` reads the file, by its name."""
    name = path.name.lower()
    return name.endswith((_JSON, *_DELIMITERS)) and name not in _ABOUT_DATA


def table_rows(path: Place, wanted: str) -> Iterator[Row | BadRow]:
    """Yield the rows of a file in order, a BadRow in a bad one's place.

    Raises DataError with file and line if the rest cannot be read. Memory holds one row, of 64 MiB at most.
    """
    try:
        if path.name.lower().endswith(_JSON):
            yield from _json(path, wanted)
        else:
            yield from _csv(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error


def json_row(where: str, data: bytes, wanted: str) -> Row | BadRow:
    """Return the row in a line of JSON, or why there is none."""
    try:
        return Row(where, json_object(where, data, wanted))
    except DataError as error:
        return BadRow(str(error))


def _json(path: Place, wanted: str) -> Iterator[Row | BadRow]:
    with path.open("rb") as file:
        start = file.read(_CHUNK).removeprefix(codecs.BOM_UTF8).lstrip()
        if not start.startswith(b"["):
            yield from (json_row(where, data, wanted) for where, data in json_lines(path))
            return
        file.seek(0)
        yield from _Array(path, file, wanted).rows()


class _Array:
    """Reads the elements of a JSON array one by one."""

    def __init__(self, path: Place, file: IO[bytes], wanted: str) -> None:
        self._path, self._file, self._wanted = path, file, wanted
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")()
        self._decode = json.JSONDecoder().raw_decode
        self._text, self._at, self._line, self._ended = "", 0, 1, False

    def rows(self) -> Iterator[Row | BadRow]:
        self._next()
        self._at += 1  # the opening bracket
        number, mark = 0, self._next()
        while mark != "]":
            number += 1
            where = f"{self._path}, line {self._line}, row {number}"
            value = self._element(where)
            if isinstance(value, dict):
                yield Row(where, value)
            else:
                yield BadRow(f"{where}: a row must be an object with {self._wanted}, not {kind_of(value)}")
            mark = self._next()
            if mark not in (",", "]"):
                found = f"{mark!r}" if mark else "the end of the file"
                raise self._damaged(f"',' or ']' expected after row {number}, not {found}")
            if mark == ",":
                self._at += 1
                self._next()
        self._at += 1
        if rest := self._next():
            raise self._damaged(f"{rest!r} after the array's end")

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self._path}, line {self._line}: not JSON ({why}); the rest cannot be read")

    def _read(self, size: int) -> bool:
        """Append text; return False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(size)
        self._ended = not data
        try:
            more = self._bytes.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._damaged(f"not UTF-8 text: {error.reason}, in this line or later") from None
        self._text = self._text[self._at :] + more
        self._at = 0
        return True

    def _next(self) -> str:
        """Move to the next character that is not white space, and return it, or "" at the end."""
        while True:
            begin, end = self._at, len(self._text)
            while self._at < end and self._text[self._at] in _SPACE:
                self._at += 1
            self._line += self._text.count("\n", begin, self._at)
            if self._at < end:
                return self._text[self._at]
            if not self._read(_CHUNK):
                return ""

    def _element(self, where: str) -> Any:
        """Return the value at the current place. A longer text is read in doubled pieces, so once over."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or self._ended:
                    self._line += self._text.count("\n", self._at, end)
                    self._at = end
                    return value
            except RecursionError:
                raise DataError(f"{where}: nested too deeply; the rest cannot be read") from None
            except json.JSONDecodeError as error:
                if self._ended:
                    line = self._line + self._text.count("\n", self._at, error.pos)
                    why = f"not JSON ({error.msg} in line {line})"
                    raise DataError(f"{where}: {why}; the rest cannot be read") from None
            except ValueError as error:  # a number of thousands of digits
                raise DataError(f"{where}: not JSON ({error}); the rest cannot be read") from None
            if len(self._text) - self._at > MOST_ROW:
                raise DataError(f"{where}: not JSON, or more than {MOST_ROW >> 20} MiB")
            self._read(max(_CHUNK, len(self._text) - self._at))


def _csv(path: Place) -> Iterator[Row | BadRow]:
    delimiter = next(mark for name, mark in _DELIMITERS.items() if path.name.lower().endswith(name))
    csv.field_size_limit(MOST_ROW)
    with path.open("rb") as file:
        lines = _Lines(path, file)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            _check_header(path, header)
            while True:
                first = reader.line_num + 1
                lines.size = 0
                cells = next(reader, None)
                if cells is None:
                    return
                if not cells:
                    continue  # a blank line
                where = f"{path}, line {first}"
                if len(cells) == len(header):
                    yield Row(where, dict(zip(header, cells, strict=True)))
                else:
                    yield BadRow(f"{where}: {len(cells)} cells, the header has {len(header)}")
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _check_header(path: Place, header: list[str]) -> None:
    names = [name.strip() for name in header]
    nameless = "" in names[1:] or names in ([], [""])  # the first column of pandas, its index, has no name
    if nameless or len(set(names)) < len(names):
        raise DataError(f"{path}, line 1: the first line must name each column once")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t,"):
        raise DataError(f"{path}, line 1: one column {names[0][:60]!r}; .csv needs commas, .tsv needs tabs")


class _Lines:
    """The lines of a file as text; DataError if those of one row are longer than a row may be."""

    def __init__(self, path: Place, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._line = self.size = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        data = self._file.readline(MOST_ROW + 1)
        if not data:
            raise StopIteration
        self._line += 1
        self.size += len(data)
        where = f"{self._path}, line {self._line}"
        if self.size > MOST_ROW:
            raise DataError(f"{where}: a row of more than {MOST_ROW >> 20} MiB; is a quote not closed?")
        try:
            return data.decode("utf-8-sig" if self._line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: {not_utf8(data, error)}") from None
