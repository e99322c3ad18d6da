"""Expand the words of a shell script as far as the variables are known.

What is not known becomes a mark in the text, `\\0<number>\\0`, or `\\0<number>*\\0` where it may be several
words. No argument of a program has a NUL character, so that a mark is never mistaken for text.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tools.simulator import shell
from tools.simulator.filters import filtered
from tools.simulator.shell import NAME, Node, Unreadable, written

LARGEST = 2_097_152  # characters of all expansions of a script; Linux starts no program with more
MARK = re.compile(r"\0([0-9]+)(\*?)\0")
# The launchers' own variables. Where neither the manifest nor the controller sets them, no image does.
LAUNCH_VARIABLES = re.compile(
    r"PET_\w+|(?:NODE_|LOCAL_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|V[CK]_\w+|JOB_COMPLETION_INDEX"
)
EXPANSIONS = ("ParamExp", "CmdSubst", "ArithmExp")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_LONGEST_PATTERN, _LONGEST_MATCHED = 64, 4096
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([\n"$`\\])')
_ASSIGNING = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"))
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda left, right: int(left / right), "%": lambda left, right: left - right * int(left / right),
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "&&": lambda left, right: bool(left and right), "||": lambda left, right: bool(left or right),
}  # fmt: skip


@dataclass
class Unknown:
    """What a mark stands for: the text in the script, and why its value is not known."""

    source: str
    reason: str


@dataclass
class Budget:
    """What all expansions of one command may produce, and the meaning of its marks."""

    left: int = LARGEST
    unknowns: list[Unknown] = field(default_factory=list)

    def spend(self, text: str) -> str:
        self.left -= len(text) + 1
        if self.left < 0:
            raise Unreadable(f"its words have more than {LARGEST:,} characters")
        return text


@dataclass
class Scope:
    """The variables of a shell. `exported` names those that programs get.

    `sourced` names a file that may have set variables. `complete`: there are no variables but those of the
    manifest, the controller and the image that are given.
    """

    budget: Budget
    values: dict[str, str]
    exported: set[str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    status: int | None = 0
    unset: set[str] = field(default_factory=set)
    sourced: str = ""
    complete: bool = False
    files: Mapping[str, str | None] = field(default_factory=dict)

    def copy(self) -> Scope:
        return replace(
            self, values=dict(self.values), exported=set(self.exported), arrays=dict(self.arrays),
            arguments=list(self.arguments), unset=set(self.unset),
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name in self.exported}

    def mark(self, source: str, reason: str) -> str:
        """Return a new mark for a value that is not known."""
        self.budget.unknowns.append(Unknown(source, reason))
        return f"\0{len(self.budget.unknowns) - 1}\0"

    def assign(self, node: Node) -> None:
        """Set the variable or the array of an assignment."""
        name, append = node["Name"]["Value"], node.get("Append")
        self.arrays, before = {key: one for key, one in self.arrays.items() if key != name}, self.arrays.get(name, [])
        if "Array" in node:
            items = [item for one in node["Array"].get("Elems", ()) for item in self.words(one["Value"])]
            self.arrays[name] = [*(before if append else []), *items]
            self.values[name] = self.arrays[name][0] if self.arrays[name] else ""
        elif "Index" in node:
            self.values[name] = self.mark(f"${name}", "one of its elements is set")
        else:
            value = (self.values.get(name, "") if append else "") + self.text(node.get("Value"))
            self.values[name] = self.budget.spend(value)

    def words(self, word: Node) -> list[str]:
        """Return the words that one word of a script becomes."""
        found: list[str] = []
        current: str | None = None
        for text, splits in self._pieces(word):
            if text is None:  # the next word of "$@"
                found.append(current or "")
                current = ""
                continue
            if not splits:
                current = (current or "") + text
                continue
            if text[:1].isspace() and current is not None:
                found.append(current)
                current = None
            for index, part in enumerate(text.split()):
                if index:
                    found.append(current or "")
                    current = None
                current = (current or "") + part
            if text[-1:].isspace() and current is not None:
                found.append(current)
                current = None
        if current is not None:
            found.append(current)
        if len(found) == 1 and (match := MARK.fullmatch(found[0])) and word["Parts"][0]["Type"] in EXPANSIONS:
            return [f"\0{match[1]}*\0"]
        return [self.budget.spend(word) for word in found]

    def text(self, word: Node | None) -> str:
        """Return the expansion of a word that is not split: of an assignment or a pattern."""
        return "".join(" " if text is None else text for text, _ in self._pieces(word or {}))

    def document(self, redirect: Node) -> str:
        """Return the expansion of a here-document. With quotes in its delimiter, the text stays as it is."""
        parts = (redirect.get("Hdoc") or {}).get("Parts", [])
        is_plain = all(part["Type"] == "Lit" and "\\" not in part["Value"] for part in redirect["Word"]["Parts"])
        pieces = self._quoted(parts) if is_plain else ((part["Value"], False) for part in parts)
        found = "".join(" " if text is None else text for text, _ in pieces)
        return re.sub(r"(?m)^\t+", "", found) if redirect["Op"] == "<<-" else found

    def _pieces(self, word: Node) -> Iterator[tuple[str | None, bool]]:
        """Yield the parts of a word, and whether blanks in them separate words."""
        for part in word.get("Parts", ()):
            match part["Type"]:
                case "Lit":
                    yield _ESCAPED.sub(r"\1", part["Value"]), False
                case "SglQuoted":
                    text = part.get("Value", "")
                    is_ansi = written(part).startswith("$")
                    yield _ESCAPED.sub(lambda one: _ANSI.get(one[1], one[0]), text) if is_ansi else text, False
                case "DblQuoted":
                    yield from self._quoted(part.get("Parts", ()))
                    if not part.get("Parts"):
                        yield "", False
                case "ProcSubst":
                    yield self.mark(written(part), "a file of a process"), False
                case "ExtGlob":
                    yield written(part), False
                case _:
                    for index, value in enumerate(self._expanded(part)):
                        if index:
                            yield " ", True
                        yield value, True

    def _quoted(self, parts: Sequence[Node]) -> Iterator[tuple[str | None, bool]]:
        for part in parts:
            if part["Type"] == "Lit":
                yield _ESCAPED_IN_QUOTES.sub(lambda one: one[1].strip("\n"), part["Value"]), False
                continue
            for index, value in enumerate(self._expanded(part)):
                if index:
                    yield None, False
                yield value, False

    def _expanded(self, part: Node) -> list[str]:
        """Return the words that an expansion stands for: one, except for `$@` and arrays."""
        if part["Type"] == "CmdSubst":
            return [self._output(part)]
        if part["Type"] == "ArithmExp":
            value = self.arithmetic(part["X"])
            return [self.mark(written(part), "it is calculated when the pod starts") if value is None else str(value)]
        return self._parameter(part)

    def _lookup(self, name: str, index: Node | None = None) -> list[str] | None:
        """Return the values of a parameter, or None if it is not set."""
        if name in ("@", "*"):
            return list(self.arguments)
        if name == "#":
            return [str(len(self.arguments))]
        if name == "?":
            return [self.mark("$?", "it is an exit status") if self.status is None else str(self.status)]
        if name in ("$", "!", "-"):
            return [self.mark(f"${name}", "it differs from start to start")]
        if name.isdigit() and name != "0":
            place = int(name[:6]) - 1
            return [self.arguments[place]] if 0 <= place < len(self.arguments) else None
        if name in self.arrays and index:
            items = self.arrays[name]
            if _is_every(index):
                return list(items)
            at = self.arithmetic(index)
            return [items[at]] if at is not None and 0 <= at < len(items) else None
        return [self.values[name]] if name in self.values else None

    def _missing(self, name: str, source: str) -> str:
        if self.sourced and name not in self.unset:
            return self.mark(source, f"{self.sourced} may set it, which is not in the manifest")
        if self.complete or name.isdigit() or name in self.unset or LAUNCH_VARIABLES.fullmatch(name):
            return ""
        return self.mark(source, "neither the manifest nor the script sets it; the image may")

    def _parameter(self, node: Node) -> list[str]:
        source, name, index = written(node), node["Param"]["Value"], node.get("Index")
        unknown = [self.mark(source, "this expansion is not followed")]
        if node.get("Excl") or node.get("Width"):
            return unknown
        found = self._lookup(name, index)
        if node.get("Length"):
            if any("\0" in value for value in found or []):
                return unknown
            return [str(len(found or []) if index and _is_every(index) else len((found or [""])[0]))]
        change = node.get("Exp") or {}
        if change and change["Op"][-1] in "-=+?":
            return self._defaulted(name, found, change, source)
        values = [self._missing(name, source)] if found is None else found
        if not (change or node.get("Slice") or node.get("Repl")):
            return values
        if any("\0" in value for value in values):
            return [self.mark(source, self.why(values[0]))]
        changed = [self._changed(value, node) for value in values]
        return unknown if None in changed else [value for value in changed if value is not None]

    def _defaulted(self, name: str, found: list[str] | None, change: Node, source: str) -> list[str]:
        kind, word = change["Op"], change.get("Word")
        empty = found is None or (kind[0] == ":" and found in ([], [""]))
        if kind[-1] == "+":
            return [""] if empty else [self.text(word)]
        if found is not None and not empty:
            return found
        if kind[-1] == "?" or (self.sourced and found is None):
            return [self._missing(name, source)]
        value = self.text(word)
        if kind[-1] == "=":
            self.values[name] = value
        return [value]

    def _changed(self, value: str, node: Node) -> str | None:
        """Return a value after `#`, `%`, `/`, `:` or a change of case, or None where that is not followed."""
        if "Repl" in node:
            old, new = (self.text(node["Repl"].get(key)) for key in ("Orig", "With"))
            if not old or set(old) & set("*?[#%\0") or "\0" in new:
                return None
            return self.budget.spend(value.replace(old, new, -1 if node["Repl"].get("All") else 1))
        if "Slice" in node:
            start, length = (self.arithmetic(node["Slice"].get(key)) for key in ("Offset", "Length"))
            if start is None or (length is None and "Length" in node["Slice"]):
                return None
            return value[start:] if length is None else value[start:][:length]
        kind, word = node["Exp"]["Op"], node["Exp"].get("Word")
        if kind in ("^^", ",,") and word is None:
            return value.upper() if kind == "^^" else value.lower()
        return _trimmed(value, kind, self.text(word)) if kind[0] in "#%" else None

    def _output(self, part: Node) -> str:
        """Return what a command substitution prints, if it is one command whose output is known."""
        commands = shell.piped(part["Stmts"][0]) if len(part.get("Stmts", ())) == 1 else []
        simple = [one for one in commands if (one.get("Cmd") or {}).keys() & {"Args", "Assigns"} == {"Args"}]
        text = self._printed(simple[0]) if simple and simple == commands else None
        for command in simple[1:]:
            words = [word for one in command["Cmd"]["Args"] for word in self.words(one)]
            text = None if text is None or command.get("Redirs") else filtered(words, text)
        if text is not None:
            return self.budget.spend(text.rstrip("\n"))
        return self.mark(written(part), "only the pod knows its output")

    def _printed(self, command: Node) -> str | None:
        """Return what a command prints, or None where that is not known."""
        words = [word for one in command["Cmd"]["Args"] for word in self.words(one)]
        match words:
            case ["hostname"] | ["hostname", "-s" | "--short"] | ["cat", "/etc/hostname"]:
                return self.values.get("HOSTNAME")
            case ["hostname", "-i" | "-I" | "--ip-address" | "--all-ip-addresses"]:
                return "127.0.0.1"  # as the other addresses of the pod itself
            case ["echo", *rest]:
                return " ".join(word for word in rest if word not in ("-n", "-e"))
            case ["printf", "%s" | "%s\\n", value]:
                return value
            case [name] if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                return ""  # a $(NAME) that Kubernetes did not replace: the shell finds no such command
            case ["cat", name] if (text := self.files.get(name)) is not None:
                return text
            case [_, *_, name] if (text := self.files.get(name)) is not None:
                return filtered(words[:-1], text)
        given = [self.text(one["Word"]) for one in command.get("Redirs", ()) if one["Op"] == "<<<"]
        return filtered(words, given[0]) if given else None

    def arithmetic(self, node: Node | None) -> int | None:
        """Return the value of an arithmetic expression, or None where it is not known."""
        match node:
            case {"Type": "Word"}:
                return self.number(self.text(node))
            case {"Type": "ParenArithm", "X": inner}:
                return self.arithmetic(inner)
            case {"Op": change, "X": {"Type": "Word"} as word} if node and change in _ASSIGNING:
                if re.fullmatch(NAME, name := self.text(word)):
                    self.values[name] = self.mark(written(node), "it is calculated")
            case {"Type": "UnaryArithm", "Op": "-", "X": inner} if (value := self.arithmetic(inner)) is not None:
                return -value
            case {"Type": "BinaryArithm", "Op": kind, "X": one, "Y": other} if kind in _OPERATIONS:
                left, right = self.arithmetic(one), self.arithmetic(other)
                if left is not None and right is not None and (right or kind not in "/%"):
                    result = int(_OPERATIONS[kind](left, right))
                    return result if abs(result) < 2**63 else None
        return None

    def number(self, text: str) -> int | None:
        """Return the number that a text or the variable of this name is, None where it is not known."""
        if re.fullmatch(NAME, text):
            text = (self._lookup(text) or ["0"])[0] or "0"
        text = text.strip()
        return int(text or 0) if _NUMBER.fullmatch(text or "0") else None

    def why(self, text: str) -> str:
        """Return why the first mark in a text is not known."""
        match = MARK.search(text)
        return self.budget.unknowns[int(match[1])].reason if match else ""

    def shown(self, text: str) -> str:
        """Return a text with the script's own words in place of marks."""
        return MARK.sub(lambda match: self.budget.unknowns[int(match[1])].source, text)


_ANSI = {"n": "\n", "t": "\t", "'": "'", "\\": "\\", '"': '"'}


def _is_every(index: Node) -> bool:
    return index["Type"] == "Word" and written(index) in ("@", "*")


def _trimmed(value: str, kind: str, pattern: str) -> str | None:
    """Return a value without what the pattern of `#`, `##`, `%` or `%%` matches."""
    if len(pattern) > _LONGEST_PATTERN or pattern.count("*") > 2 or len(value) > _LONGEST_MATCHED or "\0" in pattern:
        return None
    matches = re.compile(fnmatch.translate(pattern)).match
    cuts = range(len(value) + 1)
    if kind[0] == "#":
        return next((value[cut:] for cut in (reversed(cuts) if kind == "##" else cuts) if matches(value[:cut])), value)
    return next((value[:cut] for cut in (cuts if kind == "%%" else reversed(cuts)) if matches(value[cut:])), value)
