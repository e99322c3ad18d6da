"""Turns one file into documents: as a whole, in pieces, or by rows of JSON lines and Parquet."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any, Literal, NamedTuple, Protocol

from training.checkpoint.header import OF_GIT_LFS, POINTER
from training.data.errors import DataError, nearest, not_utf8, reason

_JSON_LINES = (".jsonl", ".ndjson")
JSON_LINES_GZIP = (".jsonl.gz", ".ndjson.gz", ".json.gz")
_PARQUET = (".parquet",)
_ROWS = _JSON_LINES + JSON_LINES_GZIP + _PARQUET
ROWS = f"{', '.join(_ROWS[:-1])} and {_ROWS[-1]}"  # the same in words
_PACKED = (".tar", ".gz", ".tgz", ".zst", ".tzst", ".bz2", ".xz", ".txz", ".zip", ".7z", ".lz4", ".br")
NOT_UNPACKED = "this compression is not read; unpack it, or use .jsonl.gz"
# Formats of rows that no reader takes, by the ends of names, and what to do.
_OTHER_ROWS = {
    ".arrow": "Arrow files are not read; write Parquet: datasets.load_from_disk(DIRECTORY).to_parquet(FILE)",
    ".mds": "shards of MosaicML's streaming are not read; write their rows to .jsonl or .parquet",
}
OTHER_TABLES = (".json", ".csv", ".tsv", ".arrow")  # not read as rows
_SHOWN_FIELDS = 8
_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_PARQUET_ROWS = 1024
MOST_ROW = 2**26  # bytes of a row
MOST_GROUP = 2**32  # bytes of a Parquet file's row group, unpacked
MOST_DOCUMENT = 2**28  # bytes of a file that is one document
_MOST_UNPACKED, _MOST_RATIO = (
    2**30,
    200,
)  # bytes that any gzip file may hold, and times its size for larger ones
_LEAST_PIECE, _MOST_PIECE, _PIECES = 2 * 1024, 64 * 1024, 128


class Place(Protocol):
    """What a reader needs of a file, such as a `Path`. Its text says where the file is."""

    @property
    def name(self) -> str: ...
    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


class Named(Protocol):
    """Anything with a file's name."""

    @property
    def name(self) -> str: ...


class Document(NamedTuple):
    """One document: its text, and the same text as UTF-8 bytes."""

    text: str
    data: bytes


def is_rows(path: Named) -> bool:
    """Return whether the file holds one document per row, by its name."""
    return path.name.lower().endswith(_ROWS)


def is_packed(path: Named) -> bool:
    """Return whether the file is compressed and no reader unpacks it, by its name."""
    return path.name.lower().endswith(_PACKED) and not is_rows(path)


def why_unread(path: Named) -> str:
    """Return why no reader takes the file, by its name; empty if one does."""
    for end, why in _OTHER_ROWS.items():
        if path.name.lower().endswith((end, f"{end}.zstd")):
            return why
    return NOT_UNPACKED if is_packed(path) else ""


def is_parquet(path: Place) -> bool:
    """Return whether the file is a Parquet table, by its name."""
    return path.name.lower().endswith(_PARQUET)


def rows_of(path: Place, text_field: str) -> Iterator[Document]:
    """Yield the documents of a JSON lines or Parquet file; DataError names the first unusable row."""
    if is_parquet(path):
        return _parquet_rows(path, text_field)
    return _json_rows(path, text_field)


def read_file_as_document(path: Place) -> Document | None:
    """Return the whole file as one document, or None if it is not UTF-8 text."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_DOCUMENT + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error
    if len(data) > MOST_DOCUMENT and b"\0" not in data:
        raise DataError(f"{path}: one document of more than {MOST_DOCUMENT >> 20} MiB; put rows into .jsonl")
    data = data.removeprefix(codecs.BOM_UTF8)
    if b"\0" in data:
        return None
    try:
        return Document(data.decode("utf-8"), data)
    except UnicodeDecodeError:
        return None


def pieces_of(path: Place) -> Iterator[Document]:
    """Yield one long text as documents, so that some of it can be held out.

    There are about 128 pieces of 2 to 64 KiB each. A piece ends at the first blank line after its target size
    or, without one, at a line's end after twice that size. All pieces together are the file, byte for byte.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            yield from _cut(path, stream, min(max(size // _PIECES, _LEAST_PIECE), _MOST_PIECE))
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error


def _cut(path: Place, stream: IO[bytes], target: int) -> Iterator[Document]:
    piece: list[bytes] = []
    size, first_line = 0, 1
    for data in _lines(stream):
        piece.append(data)
        size += len(data)
        if size >= 2 * target or (size >= target and not data.strip()):
            whole = b"".join(piece)
            yield _decode(path, whole, first_line)
            piece, size, first_line = [], 0, first_line + whole.count(b"\n")
    if piece:
        yield _decode(path, b"".join(piece), first_line)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines; lines longer than the largest piece are cut between two characters."""
    rest = b""
    while data := stream.readline(_MOST_PIECE):
        data = rest + data
        cut = len(data) if data.endswith(b"\n") else _character_border(data)
        data, rest = data[:cut], data[cut:]
        if data:
            yield data
    if rest:
        yield rest


def _character_border(data: bytes) -> int:
    """Return the length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 != 0b1000_0000:
            needed = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if needed <= back else len(data) - back
    return len(data)


def _decode(path: Place, data: bytes, first_line: int) -> Document:
    if first_line == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    if first_line == 1 and b"\0" in data:  # UTF-8 allows it, text does not have it
        raise DataError(f"{path}: not text, because it has zero bytes: an archive, a table, or UTF-16?")
    try:
        return Document(data.decode("utf-8"), data)
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise DataError(f"{path}, line {line}: {not_utf8(data, error)}") from None


def holds_rows(text: str, text_field: str) -> bool:
    """Return whether the first two lines of a text, or its only line, are JSON objects with the field."""
    lines = list(itertools.islice((line for line in text.splitlines() if line.strip()), 2))
    return bool(lines) and all(_has_field(line, text_field) for line in lines)


def _has_field(line: str, text_field: str) -> bool:
    try:
        row = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and text_field in row


def _json_rows(path: Place, text_field: str) -> Iterator[Document]:
    for where, data in json_lines(path):
        row = json_object(where, data, f"the field '{text_field}'")
        if text_field not in row:
            raise DataError(f"{where}: {no_field(text_field, list(row))}")
        yield _document(where, row[text_field], text_field)


def json_lines(path: Place) -> Iterator[tuple[str, bytes]]:
    """Yield each line that is not blank, after its place for messages."""
    line = unpacked = 0
    try:
        with path.open("rb") as file, _lines_in(path, file) as stream:
            for line, data in enumerate(iter(lambda: stream.readline(MOST_ROW + 1), b""), start=1):
                unpacked += len(data)
                if len(data) > MOST_ROW:
                    raise DataError(f"{path}, line {line}: more than {MOST_ROW >> 20} MiB")
                if unpacked > _MOST_UNPACKED and unpacked > _MOST_RATIO * file.tell():
                    raise DataError(f"{path}, line {line}: unpacks to {_MOST_RATIO} times its size")
                if data.removeprefix(codecs.BOM_UTF8).strip():
                    yield f"{path}, line {line}", data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}, after line {line}: damaged gzip data ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error


def _lines_in(path: Place, file: IO[bytes]) -> AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    zipped = path.name.lower().endswith(JSON_LINES_GZIP)
    return gzip.GzipFile(fileobj=file, mode="rb") if zipped else contextlib.nullcontext(file)


def json_object(where: str, data: bytes, wanted: str) -> dict[str, Any]:
    """Return the object in a line; a DataError names the `wanted` fields if there is none."""
    try:
        row = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {not_utf8(data, error)}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({_why_not_json(data, error)})") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: a row must be an object with {wanted}, not {kind_of(row)}")
    return row


def _why_not_json(data: bytes, error: Exception) -> str:
    if data.startswith(POINTER):
        return OF_GIT_LFS
    if isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip()):
        return "it does not end in this line; write each object into one line"
    return str(error)


def _parquet_rows(path: Place, text_field: str) -> Iterator[Document]:
    for where, row in parquet_rows(path, text_field):
        yield _document(where, row[text_field], text_field)


def parquet_rows(path: Place, text_field: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row as an object, after its place for messages; only `text_field` is read if it is given."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs pyarrow, which is not installed") from None
    row, columns = 0, None if text_field is None else [text_field]
    try:
        with path.open("rb") as file, pq.ParquetFile(file) as table:
            if text_field is not None:
                _check_column(path, table.schema_arrow, text_field)
            _check_size(path, table.metadata)
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=columns):
                for value in batch.to_pylist():
                    row += 1
                    yield f"{path}, row {row}", value
    except (pa.ArrowException, UnicodeDecodeError, MemoryError) as error:
        why = OF_GIT_LFS if row == 0 and _is_pointer(path) else str(error).partition("\n")[0]
        raise DataError(f"{path}, after row {row}: damaged Parquet data ({why})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}, after row {row}: {reason(error)}") from error


def _is_pointer(path: Place) -> bool:
    with path.open("rb") as file:
        return file.read(len(POINTER)) == POINTER


def _check_size(path: Place, metadata: Any) -> None:
    """Refuse row groups that say that they unpack to more than memory holds."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(each).total_uncompressed_size for each in range(group.num_columns))
        if size > MOST_GROUP:
            raise DataError(f"{path}, row group {number}: {size:,} bytes, more than {MOST_GROUP:,}")


def _check_column(path: Place, schema: Any, text_field: str) -> None:
    import pyarrow as pa

    if text_field not in schema.names:
        raise DataError(f"{path}: {no_field(text_field, schema.names)}")
    kind = schema.field(text_field).type
    value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(is_one(value_kind) for is_one in strings):
        raise DataError(f"{path}: field '{text_field}' holds {kind}, not strings")


def _document(where: str, value: object, text_field: str) -> Document:
    """Return the text of a row; a null, which Parquet has for a row without one, is an empty text."""
    if value is None:
        return Document("", b"")
    if not isinstance(value, str):
        raise DataError(f"{where}: field '{text_field}' is {kind_of(value)}, not a string")
    if len(value) > MOST_ROW:
        raise DataError(f"{where}: field '{text_field}' has more than {MOST_ROW >> 20} MiB")
    try:
        return Document(value, value.encode("utf-8"))
    except UnicodeEncodeError:
        raise DataError(f"{where}: field '{text_field}' holds half a surrogate pair, not text") from None


def no_field(text_field: str, known: list[str]) -> str:
    """Return a message: the row lacks the field, the fields it has, and the nearest of them."""
    shown = ", ".join(known[:_SHOWN_FIELDS]) + (", ..." if len(known) > _SHOWN_FIELDS else "")
    hint = nearest(text_field, known)
    return f"no field '{text_field}' (fields: {shown or 'none'}){hint}"


def kind_of(value: object) -> str:
    """Return JSON's name for the kind of a value, with its article."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)
