"""How `yard` prints: results on standard output, errors and progress on standard error.

Nothing else in tools/ prints. The text of a log, a pod, a manifest or a file may hold characters that control
a terminal, or that hide or reorder other text. They are shown, as \\x1b or \\u202e, and never sent. Secrets
are masked, except in data that the user asks for as it is (`raw`), such as a manifest.

A person at a terminal gets colours, tables that fold, a bar for what takes time, and pages that are painted again.
Pipes, CI, NO_COLOR, TERM=dumb and narrow terminals get plain lines.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import select
import shutil
import signal
import sys
import threading
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from tools.core.secret_patterns import mask, masked
from tools.core.timestamps import duration
from tools.core.verdict import State, Verdict

if TYPE_CHECKING:
    from tools.core.terminal import Bar, Page

LINE = 90  # characters of a value in a message
LONGEST_ERROR, ERROR_HEAD = 4000, 1000  # characters of an error, and of what is left at each end of a longer one
LONGEST_SECRET = 4096  # characters that are searched behind the end of a shortened text
TAB = 8  # columns
NARROWEST = 60  # columns that a bar and a table need
COLOURS = {State.PASS: "green", State.WARN: "yellow", State.FAIL: "red", State.CANNOT_TELL: "magenta"}
TICK, PATIENCE = 0.5, 3.0  # seconds between two looks at what is done, and of silence before a bar appears
ENDS = (b"q", b"Q", b"\x1b", b"\x04")  # keys that end a page
LINE_SECONDS = 10.0  # between two lines of progress where no terminal is
NUMBER = r"(\d[\d,]{0,20}(?:\.\d{1,9})?)"
# How far a line of progress says to be: 3/4, 1.5 of 2 MB; not a version, an address or a path.
FRACTION = re.compile(rf"(?<![\w./,:-]){NUMBER}(?:/| of ){NUMBER}(?![\d/-]|\.\d)")
BRACKETS = re.compile(r"\[(?:[\w.-]{1,40} )?(\d{1,4})/(\d{1,4})\]")  # how a builder says it: [2/5] or [base 2/5]
# All but the printable characters of ASCII and Latin-1, to be looked at one by one.
_SPECIAL = re.compile(r"[^ -~\xa0-\xac\xae-\xff]")
_VERDICT = re.compile(r"(?:error: |left:? )?(PASS|WARN|FAIL|CANNOT TELL)\b")
_lock = threading.RLock()
_stack: list[Activity | Repainted] = []  # the last one is on the terminal


def visible(text: str, keep: str = "") -> str:
    """Return `text` with its control and format characters shown, except those in `keep`."""
    if text.isprintable():
        return text
    return _SPECIAL.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def watched() -> bool:
    """Return whether a person looks at a terminal that can be painted: at both streams, and wide enough."""
    named = os.environ.get
    if named("NO_COLOR") or named("CI") or named("TERM", "") in ("", "dumb", "unknown"):
        return False
    streams = (sys.stdout, sys.stderr)
    painted = all(one.isatty() and (one.encoding or "").lower().startswith("utf") for one in streams)
    return painted and shutil.get_terminal_size().columns >= NARROWEST


def _put(text: str, err: bool = False, state: State | None = None) -> None:
    """Print text that is safe, with the word of `state` in its colour where a person looks."""
    with _lock:
        top = _stack[-1] if _stack else None
        if top is not None:
            top.touched = time.monotonic()
        if top is None or top.painter is None:
            if state is not None and watched():
                word = click.style(state.value, fg=COLOURS[state], bold=True)
                text = text.replace(state.value, word, 1)
            click.echo(text, err=err)
            return
        from rich.text import Text

        shown = Text(text)
        if state is not None:
            at = text.index(state.value)
            shown.stylize(f"bold {COLOURS[state]}", at, at + len(state.value))
        top.painter.line(shown)


def line(text: str = "", raw: bool = False, state: State | None = None) -> None:
    """Print one line of a result at once, also into a pipe. The word of `state`, which it holds, is in its colour."""
    _put(_safe(text if raw else mask(text)), state=state)


def note(text: str) -> None:
    """Print one line of progress on standard error. A verdict at its beginning is in its colour."""
    shown = _safe(mask(text))
    found = _VERDICT.match(shown)
    _put(shown, err=True, state=State(found[1]) if found else None)


def notes(text: str) -> None:
    """Print the lines of a text as progress."""
    for one in mask(text).splitlines():  # before the split: a private key has several lines
        _put(_safe(one), err=True)


def _safe(text: str) -> str:
    return visible(text.expandtabs(TAB))


def block(text: str, raw: bool = False) -> None:
    """Print a text of several lines, such as a manifest or a diff."""
    told = text if raw else mask(text)
    # a diff of a file with Windows' line ends has to keep them
    shown = "\r\n".join(visible(part, keep="\n\t") for part in told.split("\r\n"))
    if shown:
        _put(shown.removesuffix("\n"))
    if told != text:
        note("secrets are shown as ***, so this text differs")
    if shown != told:
        note("characters that control a terminal or hide text are shown as escapes, so this text differs")


def data(value: Any, indent: int | None = 2, raw: bool = False) -> None:
    """Print `value` as JSON; `indent=None` prints it as one line."""
    told = value if raw else masked(value)
    text = json.dumps(told, indent=indent, sort_keys=False, default=lambda one: mask(str(one)))
    _put(text.replace("\x7f", "\\u007f"))  # JSON itself escapes all other characters beyond ASCII


def answer(value: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print an answer: `value` as JSON, or else the lines that say the same."""
    if as_json:
        data(value)
        return
    for one in lines:
        line(one)


def csv_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print columns of rows as CSV, without texts of which a spreadsheet makes formulas."""
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    block(table.getvalue())


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value and value[0] in "=+-@\t" else value


def ask(question: str, hidden: bool = False) -> str:
    """Return the user's answer to a question on standard error. Raises click.Abort at the end of input."""
    asked = visible(mask(question))
    with _lock:
        _hide()
        answer: str = click.prompt(asked, hide_input=hidden, err=True, default="", show_default=False)
    return answer


def agree(question: str, unasked: Exception, refused: Exception) -> None:
    """Return if the user answers a question with yes. Raises `unasked` without a terminal, else `refused`."""
    if not sys.stdin.isatty():
        raise unasked
    if ask(f"{question}? yes/no") != "yes":
        raise refused


def error(message: str, hint: str | None = None) -> None:
    """Print an error as one line, without the middle of a long one. It may quote another program's message."""
    text = mask(message)
    note(f"error: {text if len(text) <= LONGEST_ERROR else f'{text[:ERROR_HEAD]} … {text[-ERROR_HEAD:]}'}")
    if hint:
        note(f"  hint: {hint}")


def exception(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected exception: sys.excepthook, which would send its text as it is."""
    notes("".join(traceback.format_exception(kind, problem, trace)))


def count(number: int, name: str, plural: str | None = None) -> str:
    """Return `1 pod` or `2 pods`. `plural` is for names that need more than an s."""
    return f"{number:,} {name if number == 1 else plural or name + 's'}"


def size(nbytes: float) -> str:
    """Return bytes in the largest binary unit that they fill, such as `1.5 GiB`; less than a KiB as `12 bytes`."""
    unit = next((power for power in (4, 3, 2, 1) if nbytes >= 1 << 10 * power), 0)
    return f"{nbytes / (1 << 10 * unit):,.1f} {' KMGT'[unit]}iB" if unit else count(int(nbytes), "byte")


def short(value: Any, limit: int = LINE) -> str:
    """Return a value as one line of at most `limit` characters, with secrets masked before it is cut."""
    text = mask(" ".join(str(value).split())[: limit + LONGEST_SECRET])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def verdict(result: Verdict, as_json: bool = False) -> None:
    """Print a verdict with its evidence and remedy. The caller exits with `result.state.exit_code`."""
    if as_json:
        data(result.as_dict())
        return
    line(f"{result.state.value}: {result.summary}", state=result.state)
    for item in result.evidence:
        line(f"  {item}")
    for number, text in enumerate((result.remedy or "").splitlines()):
        line(f"       {text}" if number else f"  fix: {text}")


def verdicts(results: Iterable[Verdict], as_json: bool = False) -> None:
    """Print verdicts, with `as_json` as one list."""
    if as_json:
        data([one.as_dict() for one in results])
        return
    for one in results:
        verdict(one)


def rule_verdict(result: Verdict, reason: str) -> None:
    """Print the verdict of a rule: its evidence and, unless it is a PASS, the rule's reason and the fix."""
    line(f"  {result.state.value} {result.details['rule']}: {result.summary}", state=result.state)
    for item in result.evidence:
        line(f"    {item}")
    if result.state is not State.PASS:
        line(f"    why: {reason}")
        if result.remedy:
            line(f"    fix: {result.remedy}")


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return ["  ".join(row).rstrip() for row in padded]


def table(
    rows: Iterable[Sequence[str]], indent: str = "  ", head: bool = False, states: Sequence[State | None] = ()
) -> None:
    """Print rows of cells as aligned columns.

    If the first row is a `head`, a terminal shows a table whose cells fold, and each row in the colour of its state.
    """
    cells = [[_safe(mask(cell)) for cell in row] for row in rows]
    if not head or not watched():
        for text in columns(cells):
            line(f"{indent}{text}")
        return
    from tools.core import terminal

    made = terminal.table(cells, indent, [COLOURS.get(one) if one else None for one in states])
    with _lock:
        painter = _stack[-1].painter if _stack else None
        (painter.line if painter else terminal.show)(made)


class Activity:
    """Something that takes time: a bar in a terminal, elsewhere a line now and then."""

    def __init__(
        self, title: str, look: Callable[[], str] | None = None, patience: float = 0.0, every: float = LINE_SECONDS,
        fraction: re.Pattern[str] = FRACTION,
    ) -> None:  # fmt: skip
        self._title, self._look, self._patience, self._every = title, look, patience, every
        self._fraction = fraction
        self._detail, self._done = "", 0.0
        self._total: float | None = None
        self._begun = self.touched = time.monotonic()
        self._told = -every
        self._live, self._over, self._thread = watched(), threading.Event(), threading.Thread(target=self._watch)
        self._bar: Bar | None = None
        self.painter: Bar | None = None  # the bar while it is on the terminal

    def at(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show where the work is. Without `total`, the first fraction in `text` tells it, if there is one."""
        now, found = time.monotonic(), self._fraction.search(text)
        with _lock:
            self._detail = _safe(mask(text))
            if total is None and found:
                done, total = (float(part.replace(",", "")) for part in found.groups())
            if done is not None and total:
                self._done, self._total = min(done, total), total
            if not self._live and now - self._told >= self._every:
                self._told = now
                note(text)

    def hide(self) -> None:
        """Take the bar from the terminal. It comes back after some silence."""
        self.touched = time.monotonic()
        if self.painter is not None:
            self.painter.stop()
            self.painter = None

    def _start(self) -> None:
        with _uninterrupted(), _lock:
            _hide()
            _stack.append(self)
            self._show()
        self._thread.daemon = True
        self._thread.start()

    def _end(self) -> None:
        self._over.set()
        with _lock:
            self.hide()
            _stack[:] = [one for one in _stack if one is not self]
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(TICK):
            with _lock:
                if _stack and _stack[-1] is self and not self._over.is_set():
                    self._show()

    def _show(self) -> None:
        now = time.monotonic()
        silent, title = now - self.touched, _safe(mask(self._look() if self._look else self._title))
        if not self._live:
            if silent >= LINE_SECONDS:
                note(f"{title}: {duration(now - self._begun)}")
            return
        if self.painter is None and silent >= self._patience:
            from tools.core.terminal import Bar

            self._bar = self.painter = self._bar or Bar(title)
            self.painter.start()
        if self.painter is not None:
            self.painter.move(title, self._detail, self._done, self._total)


class Repainted:
    """What is shown again and again: in a terminal over what is there, elsewhere below it."""

    touched = 0.0

    def __init__(self, painter: Page | None) -> None:
        self.painter = painter

    def show(self, paint: Callable[[], None]) -> None:
        """Call `paint`, which prints."""
        with _lock:
            if self.painter is not None:
                self.painter.begin()
            paint()
            if self.painter is not None:
                self.painter.paint()

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds`; return whether to continue: at a terminal, the key q or Escape ends it."""
        if self.painter is None or not sys.stdin.isatty():
            time.sleep(seconds)
            return True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0] and os.read(sys.stdin.fileno(), 16) in ENDS:
                return False
        return True

    def hide(self) -> None:
        """Leave what is there on the terminal."""
        if self.painter is not None:
            self.painter.stop()
            self.painter = None


def _hide() -> None:
    for one in _stack:
        one.hide()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Raise a Ctrl-C of the block at its end: Python drops the exception in a finalizer, as imports have them."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    typed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: typed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if typed:
        raise KeyboardInterrupt


@contextlib.contextmanager
def activity(title: str, **options: Any) -> Iterator[Activity]:
    """Show that something takes time, from now to the end of the block. `look` returns what it is called now.

    Without a terminal one line appears in `every` seconds, and also when nothing else was printed for a while.
    """
    made = Activity(title, **options)
    try:
        made._start()
        yield made
    finally:
        made._end()


@contextlib.contextmanager
def attended(title: str) -> Iterator[None]:
    """Show a person at a terminal a bar whenever the block has been silent for some seconds."""
    if not watched():
        yield
        return
    made = Activity(title, patience=PATIENCE)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the cursor comes back then too
    try:
        made._start()
        yield
    finally:
        made._end()
        signal.signal(signal.SIGTERM, before)


def release() -> None:
    """Leave the terminal to another program for good."""
    with _lock:
        _hide()
        _stack.clear()


@contextlib.contextmanager
def repainted(wanted: bool = True) -> Iterator[Repainted]:
    """Yield what shows a page again and again, over itself if that is `wanted` and a person looks."""
    if not (wanted and watched()):
        yield Repainted(None)
        return
    with _uninterrupted():
        from tools.core.terminal import Page

        made = Repainted(Page())
    try:
        with _lock:
            _hide()
            _stack.append(made)
        with _keys():
            yield made
    finally:
        with _lock:
            made.hide()
            _stack[:] = [one for one in _stack if one is not made]


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Let single keys be read from the terminal, without showing them."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
