"""Formats of rows: which one a row has, by its fields or by name, and what cannot be learned from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training.data.errors import DataError
from training.data.readers import no_field

MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
INSTRUCTION, INPUT, OUTPUT, HISTORY = "instruction", "input", "output", "history"
CONVERSATIONS, SYSTEM, TOOLS = "conversations", "system", "tools"
PAIR, ALPACA, SHAREGPT, TEXT = "prompt-completion", "alpaca", "sharegpt", "text"
TURN_FIELDS = ("role", "content", "from", "value")
# Two answers to one prompt, the better one first.
_PREFERENCES = (("chosen", "rejected"), ("preferred_output", "non_preferred_output"))


class BadRow(DataError):
    """A row that is not a usable example; `data.bad_rows` says whether that ends the preparation."""


@dataclass(frozen=True)
class Shape:
    """How rows are read: the format or None, the fields' names in the rows, and the field of plain text."""

    text_field: str
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def needed(self) -> dict[str, tuple[str, ...]]:
        """Return the fields that a row of each format must have."""
        return {
            MESSAGES: (MESSAGES,),
            PAIR: (PROMPT, COMPLETION),
            SHAREGPT: (CONVERSATIONS,),
            ALPACA: (INSTRUCTION, OUTPUT),
            TEXT: (self.text_field,),
        }

    def renamed(self, where: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row with the names of `columns`; BadRow if it lacks one of these columns."""
        return _renamed(where, row, {k: v for k, v in self.columns.items() if k not in TURN_FIELDS})

    def turn(self, where: str, turn: dict[str, Any]) -> dict[str, Any]:
        """Return one turn of a conversation with the names of `columns`."""
        return _renamed(where, turn, {k: v for k, v in self.columns.items() if k in TURN_FIELDS})

    def recognise(self, where: str, row: dict[str, Any]) -> tuple[str, str]:
        """Return the format of a row and the evidence for it in words.

        A field that is null counts as missing, because Parquet adds such fields when other rows have them.
        Raises BadRow if the row lacks fields, DataError if it is a preference or could be of two formats.
        """
        needed = self.needed()
        if self.format is not None:
            for name in needed[self.format]:
                if name not in row:
                    raise BadRow(f"{where}: data.format is {self.format}, but {no_field(name, list(row))}")
            return self.format, "named by data.format"
        given = {name: value for name, value in row.items() if value is not None}
        found = [name for name, fields in needed.items() if all(each in given for each in fields)]
        if MESSAGES not in found:
            _refuse_preference(where, given if found else row)
        if not found:  # the reader of the first format whose fields are there says which one is null
            found = [name for name, fields in needed.items() if all(each in row for each in fields)][:1]
        if not found:
            raise _incomplete(where, row, self.text_field)
        if len(found) > 1 and (ALPACA in found or SHAREGPT in found):
            choices = " or ".join(f"{name} (fields {', '.join(needed[name])})" for name in found)
            raise DataError(f"{where}: ambiguous, {choices}; name one in data.format")
        fields = needed[found[0]]
        plural = "s" if len(fields) > 1 else ""
        return found[0], f"recognised by the field{plural} {' and '.join(fields)}"


def _renamed(where: str, row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    for name, column in columns.items():
        if column not in row:
            raise BadRow(f"{where}: data.columns.{name}: {no_field(column, list(row))}")
    taken = {*columns.values(), *columns}
    rest = {key: value for key, value in row.items() if key not in taken}
    return {**rest, **{name: row[column] for name, column in columns.items()}}


def _refuse_preference(where: str, row: dict[str, Any]) -> None:
    """Raise DataError for rows of DPO, KTO and reward models: they also hold answers not to learn."""
    for better, worse in _PREFERENCES:
        if better in row and worse in row:
            names = [name for kind, name in ((str, COMPLETION), (list, MESSAGES)) if isinstance(row[better], kind)]
            kept = "".join(f"; data.columns: {{{name}: {better}}} learns the better answers alone" for name in names)
            raise DataError(
                f"{where}: a preference ({better}, {worse}) is for DPO or a reward model, and fine-tuning learns "
                f"one answer{kept}"
            )
    if PROMPT in row and COMPLETION in row and str(row.get("label")).lower() in ("true", "false"):  # text in CSV
        raise DataError(
            f"{where}: a rated answer ({COMPLETION}, label) is for KTO, and fine-tuning would also learn the "
            f"answers rated false; leave these out, then name data.format: {PAIR}"
        )


def _incomplete(where: str, row: dict[str, Any], text_field: str) -> BadRow:
    for name, other in ((PROMPT, COMPLETION), (COMPLETION, PROMPT), (INSTRUCTION, OUTPUT)):
        if row.get(name) is not None:
            article = "an" if name == INSTRUCTION else "a"
            return BadRow(f"{where}: has {article} {name}, but {no_field(other, list(row))}")
    return BadRow(
        f"{where}: neither {MESSAGES}, nor {PROMPT} and {COMPLETION}, nor {INSTRUCTION} and {OUTPUT}, nor "
        f"{CONVERSATIONS}; {no_field(text_field, list(row))}"
    )
