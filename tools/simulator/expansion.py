"""Expand the words of a shell script as far as the variables are known.

What is not known becomes a mark in the text, `\\0<number>\\0`, or `\\0<number>*\\0` where it may be several
words. No argument of a program has a NUL character, so that a mark is never mistaken for text.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tools.simulator import shell
from tools.simulator.filters import filtered
from tools.simulator.shell_lexer import NAME, Unreadable, closing

LARGEST = 2_097_152  # characters of all expansions of a script; Linux starts no program with more
MARK = re.compile(r"\0([0-9]+)(\*?)\0")
# The launchers' own variables. Where neither the manifest nor the controller sets them, no image does.
LAUNCH_VARIABLES = re.compile(
    r"PET_\w+|(?:NODE_|LOCAL_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|V[CK]_\w+|JOB_COMPLETION_INDEX"
)
_BRACED = re.compile(rf"({NAME}|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?")
_ARITHMETIC = re.compile(r"[0-9+\-*/%()<>=!&| \t\n]{1,200}")
_LONGEST_PATTERN, _LONGEST_MATCHED = 64, 4096
_OPERATIONS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: left - right * int(left / right),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
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
        return Scope(
            self.budget, dict(self.values), set(self.exported), dict(self.arrays), list(self.arguments),
            self.status, set(self.unset), self.sourced, self.complete, self.files,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name in self.exported}

    def mark(self, source: str, reason: str) -> str:
        """Return a new mark for a value that is not known."""
        self.budget.unknowns.append(Unknown(source, reason))
        return f"\0{len(self.budget.unknowns) - 1}\0"

    def assign(self, name: str, raw: str, append: bool = False) -> None:
        """Set a variable to the expansion of a word. `raw` may be an array in parentheses."""
        if raw.startswith("(") and raw.endswith(")"):
            items = [item for word in _split(raw[1:-1]) for item in self.words(word)]
            self.arrays[name] = [*(self.arrays.get(name, []) if append else []), *items]
            self.values[name] = self.arrays[name][0] if self.arrays[name] else ""
            return
        value = (self.values.get(name, "") if append else "") + self.text(raw)
        self.values[name] = self.budget.spend(value)
        self.arrays.pop(name, None)

    def words(self, raw: str) -> list[str]:
        """Return the words that one word of a script becomes."""
        found: list[str] = []
        current: str | None = None
        for text, splits in self._pieces(raw):
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
        if len(found) == 1 and (match := MARK.fullmatch(found[0])) and raw[:1] in "$`":
            return [f"\0{match[1]}*\0"]
        return [self.budget.spend(word) for word in found]

    def text(self, raw: str) -> str:
        """Return the expansion of a word that is not split: of an assignment or a pattern."""
        return "".join(" " if text is None else text for text, _ in self._pieces(raw))

    def document(self, raw: str) -> str:
        """Return the expansion of a here-document."""
        return "".join(" " if text is None else text for text, _ in self._quoted(raw))

    def _pieces(self, raw: str) -> Iterator[tuple[str | None, bool]]:
        """Yield the parts of a word, and whether blanks in them separate words."""
        at = 0
        while at < len(raw):
            end, char = closing(raw, at), raw[at]
            part, at = raw[at:end], end
            if char == "\\":
                yield part[1:].replace("\n", ""), False
            elif char == "'":
                yield part[1:-1], False
            elif char == '"':
                yield from self._quoted(part[1:-1])
                if not part[1:-1]:
                    yield "", False
            elif char == "$" and part.startswith("$'"):
                yield part[2:-1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'"), False
            elif char in "$`" and part != "$":
                for index, value in enumerate(self._expanded(part)):
                    if index:
                        yield " ", True
                    yield value, True
            elif char in "<>":
                yield self.mark(part, "a file of a process"), False
            else:
                yield part, False

    def _quoted(self, text: str) -> Iterator[tuple[str | None, bool]]:
        at = 0
        while at < len(text):
            char = text[at]
            if char == "\\":
                following = text[at + 1 : at + 2]
                yield (("" if following == "\n" else following if following in '"\\$`' else char + following), False)
                at += 2
            elif char in "$`":
                end = closing(text, at)
                values = self._expanded(text[at:end]) if end > at + 1 else ["$"]
                for index, value in enumerate(values):
                    if index:
                        yield None, False
                    yield value, False
                at = end
            else:
                end = min(
                    (found for found in (text.find(mark, at) for mark in "\\$`") if found >= 0), default=len(text)
                )
                yield text[at:end], False
                at = end

    def _expanded(self, source: str) -> list[str]:
        """Return the words that an expansion stands for: one, except for `$@` and arrays."""
        if source.startswith("`"):
            return [self._output(source[1:-1].replace("\\`", "`"), source)]
        if source.startswith("$((") and source.endswith("))"):
            value = self.arithmetic(source[3:-2])
            return [self.mark(source, "it is calculated when the pod starts") if value is None else str(value)]
        if source.startswith("$("):
            return [self._output(source[2:-1], source)]
        if source.startswith("${"):
            return self._braced(source[2:-1], source)
        return self._variable(source[1:], "", source)

    def _variable(self, name: str, index: str, source: str) -> list[str]:
        found = self._lookup(name, index)
        return [self._missing(name, source)] if found is None else found

    def _lookup(self, name: str, index: str = "") -> list[str] | None:
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
            if index in ("@", "*"):
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

    def _braced(self, inner: str, source: str) -> list[str]:
        unknown = [self.mark(source, "this expansion is not followed")]
        length = inner.startswith("#") and len(inner) > 1
        match = _BRACED.match(inner[1:] if length else inner)
        if match is None:
            return unknown
        name, index, rest = match[1], match[2] or "", (inner[1:] if length else inner)[match.end() :]
        found = self._lookup(name, index)
        if length and any("\0" in value for value in found or []):
            return unknown
        if length:
            return [str(len(found or []) if index in ("@", "*") else len((found or [""])[0]))]
        default = re.match(r"(:?)([-=+?])", rest)
        if default:
            return self._defaulted(name, found, default, rest[2 if default[1] else 1 :], source)
        values = self._variable(name, index, source)
        if not rest:
            return values
        if any("\0" in value for value in values):
            return [self.mark(source, self.why(values[0]))]
        changed = [self._changed(value, rest) for value in values]
        return unknown if None in changed else [value for value in changed if value is not None]

    def _defaulted(self, name: str, found: list[str] | None, kind: re.Match[str], word: str, source: str) -> list[str]:
        empty = found is None or (bool(kind[1]) and found in ([], [""]))
        if kind[2] == "+":
            return [""] if empty else [self.text(word)]
        if found is not None and not empty:
            return found
        if kind[2] == "?":
            return [self._missing(name, source)]
        if self.sourced and found is None:
            return [self._missing(name, source)]
        value = self.text(word)
        if kind[2] == "=":
            self.values[name] = value
        return [value]

    def _changed(self, value: str, rest: str) -> str | None:
        """Return a value after `#`, `%`, `/`, `:` or a change of case, or None where that is not followed."""
        if rest in ("^^", ",,"):
            return value.upper() if rest == "^^" else value.lower()
        if rest[0] == "/":
            every = rest.startswith("//")
            old, _, new = self.text(rest[2 if every else 1 :]).partition("/")
            if not old or set(old) & set("*?[#%\0") or "\0" in new:
                return None
            return self.budget.spend(value.replace(old, new, -1 if every else 1))
        if rest[0] == ":":
            parts = [self.arithmetic(part) for part in rest[1:].split(":")]
            known = [part for part in parts if part is not None]
            if len(known) != len(parts) or len(parts) > 2:
                return None
            kept = value[known[0] :]
            return kept[: known[1]] if len(known) == 2 else kept
        return _trimmed(value, rest, self.text) if rest[0] in "#%" else None

    def _output(self, script: str, source: str) -> str:
        """Return what a command substitution prints, if it is one command whose output is known."""
        commands = shell.pipeline(script.strip())
        text = self._printed(commands[0]) if commands else None
        for command in commands[1:]:
            words = [word for raw in command.words for word in self.words(raw)]
            text = None if text is None or command.redirects else filtered(words, text)
        if text is not None:
            return self.budget.spend(text.rstrip("\n"))
        return self.mark(source, "only the pod knows its output")

    def _printed(self, command: shell.Simple) -> str | None:
        """Return what a command prints, or None where that is not known."""
        words = [word for raw in command.words for word in self.words(raw)]
        match words:
            case ["hostname"] | ["hostname", "-s" | "--short"] | ["cat", "/etc/hostname"]:
                return self.values.get("HOSTNAME")
            case ["echo", *rest]:
                return " ".join(word for word in rest if word not in ("-n", "-e"))
            case ["printf", "%s" | "%s\\n", value]:
                return value
            case [name] if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                return ""  # a $(NAME) that Kubernetes did not replace: the shell finds no such command
            case ["cat", name] if (text := self.files.get(name)) is not None:
                return text
        given = [self.text(item.target) for item in command.redirects if item.operator == "<<<"]
        return filtered(words, given[0]) if given else None

    def arithmetic(self, text: str) -> int | None:
        """Return the value of an arithmetic expression, or None where it is not known."""
        expanded = self.text(text) if "$" in text or "`" in text else text
        if len(expanded) > _LONGEST_MATCHED:
            return None
        expanded = re.sub(NAME, lambda match: (self._lookup(match[0]) or ["0"])[0] or "0", expanded)
        if not _ARITHMETIC.fullmatch(expanded):
            return None
        expanded = expanded.replace("&&", " and ").replace("||", " or ").strip()
        try:
            return _calculated(ast.parse(expanded, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError, ArithmeticError):
            return None

    def why(self, text: str) -> str:
        """Return why the first mark in a text is not known."""
        match = MARK.search(text)
        return self.budget.unknowns[int(match[1])].reason if match else ""

    def shown(self, text: str) -> str:
        """Return a text with the script's own words in place of marks."""
        return MARK.sub(lambda match: self.budget.unknowns[int(match[1])].source, text)


def _split(text: str) -> list[str]:
    """Return the raw words of an array's parentheses."""
    body = shell.parse(": " + text.replace("\n", " "))
    command = body.items[0].pipelines[0][1].commands[0]
    return command.words[1:] if isinstance(command, shell.Simple) else []


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _bounded(_OPERATIONS[type(node.op)](_calculated(node.left), _calculated(node.right)))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATIONS:
        compare = _OPERATIONS[type(node.ops[0])]
        return int(compare(_calculated(node.left), _calculated(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        values = [_calculated(value) for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    raise ValueError


def _bounded(value: int) -> int:
    if abs(value) >= 2**63:
        raise ValueError
    return value


def _trimmed(value: str, rest: str, expand: Callable[[str], str]) -> str | None:
    """Return a value without what the pattern of `#`, `##`, `%` or `%%` matches."""
    sign, longest = rest[0], rest[1:2] == rest[0]
    pattern = expand(rest[2 if longest else 1 :])
    if len(pattern) > _LONGEST_PATTERN or pattern.count("*") > 2 or len(value) > _LONGEST_MATCHED or "\0" in pattern:
        return None
    matches = re.compile(fnmatch.translate(pattern)).match
    cuts = range(len(value) + 1)
    if sign == "#":
        return next((value[cut:] for cut in (reversed(cuts) if longest else cuts) if matches(value[:cut])), value)
    return next((value[:cut] for cut in (cuts if longest else reversed(cuts)) if matches(value[cut:])), value)
