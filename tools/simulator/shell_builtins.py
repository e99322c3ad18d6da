"""The builtin commands of a shell whose script is followed."""

import contextlib
import fnmatch
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from tools.simulator import shell
from tools.simulator.expansion import MARK, Scope
from tools.simulator.shell import NAME, Node, Unreadable
from tools.simulator.shell_run import DEEPEST, MAYBE, Break, Exit, Return, Run

# These files set no variable that a launcher reads.
ACTIVATION = re.compile(r".*(?:/activate|/conda\.sh|/setvars\.sh|\.bashrc|/\.profile|/etc/profile.*|/nvm\.sh)")
_FILE_TESTS = frozenset("abcdefghkprstuwxLOGSN")
_NUMBERS = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_BUILTINS = {
    **{name: name for name in ("true", "false", "exit", "set", "shift", "unset", "read", "trap", "wait")},
    **{name: name for name in ("eval", "test", "source", "break")},
    ":": "true", "return": "exit", "continue": "break", "[": "test", ".": "source",
    "mapfile": "read", "readarray": "read", "getopts": "read",
}  # fmt: skip


class Builtins(ABC):
    """The state of one shell process, and the builtins that read and change it."""

    def __init__(self, run: Run, scope: Scope) -> None:
        self.run, self.scope = run, scope
        self.traps: dict[str, str] = {}
        self.options: set[str] = set()
        self.where: list[str] = []  # the compounds around the command
        self.in_background: int | None = None  # the status of the last background command
        self.calls = 0  # functions and sourced files inside each other

    @abstractmethod
    def run_body(self, body: Sequence[Node]) -> int | None:
        """Run statements in this shell, and return their status."""

    @contextlib.contextmanager
    def inside(self, what: str) -> Iterator[None]:
        if what:
            self.where.append(what)
        try:
            yield
        finally:
            if what:
                self.where.pop()

    def builtin(self, words: list[str]) -> tuple[bool, int | None]:
        """Return whether a command is a builtin, and its status."""
        found = getattr(self, f"_do_{_BUILTINS.get(words[0], '')}", None)
        return found is not None, found(words) if found else None

    def declare(self, command: Node) -> int | None:
        parts = command.get("Args", [])
        options = [word for one in parts if "Name" not in one for word in self.scope.words(one["Value"])]
        exports = command["Variant"]["Value"] == "export" or any(re.fullmatch(r"-\w*x\w*", one) for one in options)
        names = {one for one in options if re.fullmatch(NAME, one)}
        for one in (one for one in parts if "Name" in one):
            names.add(one["Name"]["Value"])
            if not one.get("Naked"):
                self.scope.assign(one)
        self.scope.exported |= names if exports else set()
        return 0

    def calculated(self, expressions: Sequence[Node]) -> int | None:
        """Return the status of `((` and of `let`: that of the last expression."""
        value = [self.scope.arithmetic(one) for one in expressions][-1]
        return MAYBE if value is None else int(value == 0)

    def _do_true(self, words: list[str]) -> int | None:
        return 0

    def _do_false(self, words: list[str]) -> int | None:
        return 1

    def _do_exit(self, words: list[str]) -> int | None:
        status = self.scope.status
        if len(words) > 1:
            status = int(words[1]) % 256 if words[1].isdigit() and len(words[1]) < 6 else None
        raise (Return if words[0] == "return" else Exit)(status)

    def _do_break(self, words: list[str]) -> int | None:
        raise Break

    def _do_set(self, words: list[str]) -> int | None:
        letters = {"e": "errexit", "a": "allexport"}
        index = 1
        while index < len(words) and words[index][:1] in "-+" and words[index] not in ("--", "-", ""):
            change = self.options.add if words[index].startswith("-") else self.options.discard
            for letter in words[index][1:]:
                change(letters.get(letter, letter))
            if "o" in words[index] and index + 1 < len(words):
                index += 1
                change(words[index])
            index += 1
        if index < len(words):
            self.scope.arguments = words[index + (words[index] == "--") :]
        return 0

    def _do_shift(self, words: list[str]) -> int | None:
        count = int(words[1]) if len(words) > 1 and words[1].isdigit() and len(words[1]) < 6 else 1
        self.scope.arguments = self.scope.arguments[count:]
        return 0

    def _do_unset(self, words: list[str]) -> int | None:
        for name in words[1:]:
            self.scope.values.pop(name, None)
            self.scope.arrays.pop(name, None)
            self.scope.unset.add(name)
        return 0

    def _do_read(self, words: list[str]) -> int | None:
        for name in words[1:]:
            if re.fullmatch(NAME, name):
                self.scope.values[name] = self.scope.mark(f"${name}", f"{words[0]} sets it in the pod")
        return None

    def _do_trap(self, words: list[str]) -> int | None:
        rest = words[2:] if words[1:2] == ["--"] else words[1:]
        for name in rest[1:]:
            action = "" if rest[0] == "-" else rest[0]
            self.traps[name.upper().removeprefix("SIG").replace("15", "TERM")] = action
        return 0

    def _do_wait(self, words: list[str]) -> int | None:
        for started in self.run.programs:
            started.waited = started.waited or started.background
        return self.in_background if len(words) > 1 else 0

    def _do_eval(self, words: list[str]) -> int | None:
        with self.inside("eval"):
            return self.run_body(shell.statements(shell.parse(" ".join(words[1:]))))

    def _do_source(self, words: list[str]) -> int | None:
        path = words[1] if len(words) > 1 else ""
        text = self.run.files.get(path)
        if text is None:
            if not ACTIVATION.fullmatch(path):
                self.scope.sourced = self.scope.sourced or self.scope.shown(path)
            return None
        self.calls += 1
        if self.calls > DEEPEST:
            raise Unreadable(f"{path} reads itself")
        try:
            return self.run_body(shell.statements(shell.parse(text)))
        except Return as end:
            return end.status
        finally:
            self.calls -= 1

    def _do_test(self, words: list[str]) -> int | None:
        return self._logical(words[1:-1] if words[0] == "[" else words[1:])

    def _logical(self, words: list[str]) -> int:
        """Return 0 if a test is true, 1 if it is false, and MAYBE if only the pod knows."""
        for joint, decisive in (("-o", 0), ("-a", 1)):
            if joint in words[1:-1]:
                at = words.index(joint, 1)
                return _both(self._logical(words[:at]), self._logical(words[at + 1 :]), decisive)
        if words[:1] == ["!"]:
            return _opposite(self._logical(words[1:]))
        return self._compared(words, patterns=False)

    def double(self, node: Node, negated: bool = False) -> int:
        """Return the status of what stands in `[[ ]]`. shfmt reads `! a && b` as `! (a && b)`; shells do not."""
        match node:
            case {"Type": "BinaryTest", "Op": "&&" | "||" as joint, "X": one, "Y": other}:
                return _both(self.double(one, negated), self.double(other), int(joint == "&&"))
            case {"Type": "UnaryTest", "Op": "!", "X": inner}:
                return self.double(inner, not negated)
            case {"Type": "ParenTest", "X": inner}:
                status = self.double(inner)
            case {"Type": "BinaryTest", "Op": kind, "X": one, "Y": other}:
                status = self._compared([self.scope.text(one), kind, self.scope.text(other)], patterns=True)
            case {"Type": "UnaryTest", "Op": kind, "X": one}:
                status = self._compared([kind, self.scope.text(one)], patterns=True)
            case _:
                status = self._compared([self.scope.text(node)], patterns=True)
        return _opposite(status) if negated else status

    def _compared(self, words: list[str], patterns: bool) -> int:
        if any(MARK.search(word) for word in words):
            return MAYBE
        match words:
            case ["-n" | "-z" as kind, value]:
                return int((value == "") == (kind == "-n"))
            case [kind, path] if len(kind) == 2 and kind[0] == "-" and kind[1] in _FILE_TESTS:
                return 0 if path in self.run.files and kind in ("-f", "-e", "-r", "-s") else MAYBE
            case [value]:
                return int(value == "")
            case [left, "=" | "==" | "!=" as kind, right]:
                if patterns and set(right) & set("*?["):
                    equal = right.count("*") <= 3 and len(left) <= 4096 and fnmatch.fnmatchcase(left, right)
                else:
                    equal = left == right
                return int(equal == (kind == "!="))
            case [left, kind, right] if kind in _NUMBERS:
                low, high = (self.scope.number(one) if one.strip() else None for one in (left, right))
                return MAYBE if low is None or high is None else int(not _NUMBERS[kind](low, high))
            case []:
                return 1
        return MAYBE


def _both(one: int, other: int, decisive: int) -> int:
    """Join the statuses of two tests, of which one that is `decisive` decides."""
    return decisive if decisive in (one, other) else MAYBE if MAYBE in (one, other) else 1 - decisive


def _opposite(status: int) -> int:
    return MAYBE if status == MAYBE else 1 - status
