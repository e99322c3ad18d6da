"""The builtin commands of a shell whose script is followed."""

import contextlib
import fnmatch
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

from tools.simulator import shell
from tools.simulator.expansion import MARK, Scope
from tools.simulator.shell import Body
from tools.simulator.shell_lexer import ASSIGNMENT, NAME, Unreadable
from tools.simulator.shell_run import DEEPEST, MAYBE, Break, Exit, Return, Run

# These files set no variable that a launcher reads.
ACTIVATION = re.compile(r".*(?:/activate|/conda\.sh|/setvars\.sh|\.bashrc|/\.profile|/etc/profile.*|/nvm\.sh)")
DECLARE = frozenset(("export", "declare", "typeset", "local", "readonly"))
_FILE_TESTS = frozenset("abcdefghkprstuwxLOGSN")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_TEST_WORDS = frozenset(("&&", "||", "!", "=", "==", "!=", "-a", "-o"))
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
    def run_body(self, body: Body) -> int | None:
        """Run commands in this shell, and return their status."""

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

    def declare(self, raw: list[str]) -> int | None:
        exports = raw[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in raw[1:])
        for word in raw[1:]:
            match = ASSIGNMENT.match(word)
            if match:
                self.scope.assign(match[1], word[match.end() :], bool(match[2]))
            names = [match[1]] if match else [name for name in self.scope.words(word) if re.fullmatch(NAME, name)]
            self.scope.exported |= set(names) if exports else set()
        return 0

    def double(self, raw: list[str]) -> int | None:
        if raw[0] == "((":
            value = self.scope.arithmetic(raw[1])
            for name in re.findall(rf"\b({NAME})\s*+(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*+({NAME})", raw[1]):
                self.scope.values[name[0] or name[1]] = self.scope.mark("((", "it is calculated")
            return MAYBE if value is None else int(value == 0)
        return self._logical(
            [word if word in _TEST_WORDS else self.scope.text(word) for word in raw[1:-1]], patterns=True
        )

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
            return self.run_body(shell.parse(" ".join(words[1:])))

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
            return self.run_body(shell.parse(text))
        except Return as end:
            return end.status
        finally:
            self.calls -= 1

    def _do_test(self, words: list[str]) -> int | None:
        return self._logical(words[1:-1] if words[0] == "[" else words[1:], patterns=False)

    def _logical(self, words: list[str], patterns: bool) -> int:
        """Return 0 if a test is true, 1 if it is false, and MAYBE if only the pod knows."""
        for joint, decisive in (("||", 0), ("-o", 0), ("&&", 1), ("-a", 1)):
            if joint in words[1:-1]:
                at = words.index(joint, 1)
                both = [self._logical(part, patterns) for part in (words[:at], words[at + 1 :])]
                return decisive if decisive in both else MAYBE if MAYBE in both else 1 - decisive
        if words[:1] == ["!"]:
            inner = self._logical(words[1:], patterns)
            return MAYBE if inner == MAYBE else 1 - inner
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
                holds = self.scope.arithmetic(f"({left}) {_NUMBERS[kind]} ({right})")
                return MAYBE if holds is None else 1 - holds
            case []:
                return 1
        return MAYBE
