"""A Dockerfile as stages and instructions, with line numbers and the values of ARG and ENV filled in.

dockerfile-parse reads lines and continuations. It does not know heredocs, so their bodies are removed before.
It does not fill in variables everywhere the builder does, so that is done here.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dockerfile_parse import DockerfileParser

from tools.core import UserError, tables

KNOWN = frozenset(tables.load("image/tables.yaml")["instructions"])
LARGEST = 2**18  # characters of a Dockerfile, and of an instruction with its variables filled in
MOST_STAGES = 100
# A heredoc is a whole word of the shell, as in BuildKit's parser: neither `<<<` nor text in quotes.
WORD = re.compile(r"(?:[^\s\"'\\]|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*')+")
HEREDOC = re.compile(r"\d*<<(-?)([\"']?)([^\s<\"']+)\2")
WITH_HEREDOC = re.compile(r"^\s*(RUN|COPY|ADD)\b", re.IGNORECASE)
FLAG = re.compile(r"\s*--([a-z-]+)(?:=(\S+))?(?=\s|$)")
VARIABLE = re.compile(r"\\\$|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?([-+])((?:[^{}]|\{[^{}]*\})*))?\})")
NAMED = re.compile(r"\$\{?([A-Za-z_]\w*)")
PAIR = re.compile(r"([A-Za-z_][\w.-]{0,200}+)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^\s\"'\\]|\\.)*)")
LITERAL = ("CMD", "ENTRYPOINT", "SHELL", "HEALTHCHECK")  # the builder fills no variables into these
# Arguments that BuildKit sets. The target platform's are known only during a build.
PLATFORM_ARGS = ("TARGETPLATFORM", "TARGETOS", "TARGETARCH", "BUILDPLATFORM", "BUILDOS", "BUILDARCH")


@dataclass(frozen=True)
class Mount:
    type: str
    source: str
    target: str


@dataclass(frozen=True)
class Instruction:
    """One instruction. `line` and `end` count from 1; `value` has its variables filled in, `raw` has not."""

    name: str
    value: str
    raw: str
    line: int
    end: int
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[str, ...] = ()
    order: int = 0  # among all instructions and unknown lines
    known: Mapping[str, str] = field(default_factory=dict, compare=False)  # values of the variables in `raw`

    @property
    def last(self) -> int:
        """The last line, with the heredocs that follow."""
        return self.end + sum(body.count("\n") + 2 if body else 1 for body in self.heredocs)

    def flag(self, name: str) -> str | None:
        return next((value for key, value in self.flags if key == name), None)

    @property
    def mounts(self) -> list[Mount]:
        found = []
        for text in (value for key, value in self.flags if key == "mount"):
            options = dict(part.partition("=")[::2] for part in text.split(","))
            target = options.get("target") or options.get("dst") or options.get("destination") or ""
            source = options.get("source") or options.get("src") or "."
            found.append(Mount(options.get("type", "bind"), source, target))
        return found

    @property
    def words(self) -> list[str] | None:
        """The words of an exec form (a JSON list), or None for the shell form."""
        try:
            found = json.loads(self.value)
        except (ValueError, RecursionError):
            return None
        return list(map(str, found)) if isinstance(found, list) else None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The NAME=value pairs of ENV, LABEL or ARG; an ARG without a value has an empty one."""
        if self.name == "ENV" and "=" not in self.value.split(maxsplit=1)[0]:
            name, _, value = self.value.partition(" ")
            return [(name, value.strip())]
        found = [(match[1], _unquote(match[2])) for match in PAIR.finditer(self.value)]
        if self.name == "ARG":
            named = {name for name, _ in found}
            rest = PAIR.sub(" ", self.value).split()
            found += [(name, "") for name in rest if name not in named and not name.startswith('"')]
        return found


@dataclass
class Stage:
    """One stage: `base` is an image, or the name of an earlier stage, which is then `parent`."""

    index: int
    name: str
    base: str
    platform: str | None
    line: int
    start: Instruction
    parent: "Stage | None" = None
    instructions: list[Instruction] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def lineage(self) -> "list[Stage]":
        """Return the stages that this one is built on, first to last, and itself."""
        return [*(self.parent.lineage() if self.parent else []), self]

    def layers(self) -> Iterator[Instruction]:
        """Yield the instructions of this stage and of the stages below it."""
        for stage in self.lineage():
            yield from stage.instructions

    def last(self, name: str) -> Instruction | None:
        """Return the instruction of that name that takes effect: the last one."""
        return next((one for one in reversed(list(self.layers())) if one.name == name), None)

    def variables(self, at: Instruction) -> dict[str, str]:
        """Return the values of ENV and ARG that a RUN sees: those before it, and ENV in place of ARG."""
        found = [one for kind in ("ARG", "ENV") for one in self.layers() if one.name == kind and one.order < at.order]
        return {name: value for one in found for name, value in one.pairs if value}

    @property
    def image(self) -> str:
        return self.lineage()[0].base


@dataclass(frozen=True)
class Dockerfile:
    text: str
    stages: list[Stage]
    arguments: dict[str, str]  # those before the first FROM, with the values given
    unknown: list[Instruction] = field(default_factory=list)  # lines whose first word is not an instruction

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    def stage(self, name: str) -> Stage | None:
        """Return a stage by its name or number, or None."""
        return next((one for one in self.stages if name.lower() in (one.name.lower(), str(one.index))), None)

    def shipped(self) -> list[Stage]:
        """Return the stages whose layers the image has."""
        return self.final.lineage()

    def instructions(self) -> Iterator[tuple[Stage, Instruction]]:
        for stage in self.stages:
            for one in stage.instructions:
                yield stage, one


def parse(text: str, source: str, given: Mapping[str, str] | None = None) -> Dockerfile:
    """Return the Dockerfile in `text`; `given` are the values of build arguments.

    Raises UserError if it has no FROM, or one that cannot be read, or is larger than any that people write.
    """
    if len(text) > LARGEST:
        raise UserError(f"{source}: is larger than {LARGEST >> 10} KiB, the most that is read")
    if re.match(r"(?is)^(?:#[^\n]*\n)*?#\s*escape\s*=\s*`", text):
        raise UserError(f"{source}: the escape character ` is not supported", code=3)
    plain, heredocs = _without_heredocs(text.removeprefix("\ufeff"), source)
    reader = _Reader(source, dict(given or {}), heredocs)
    parser = DockerfileParser(fileobj=io.BytesIO(plain.encode()), cache_content=True)
    for found in parser.structure:
        if found["instruction"] != "COMMENT":
            reader.take(found)
    if not reader.stages:
        raise UserError(f"{source}: has no FROM", "a Dockerfile begins with FROM <image>")
    return Dockerfile(text, reader.stages, reader.arguments, reader.unknown)


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with known variables filled in: `$NAME`, `${NAME}`, `${NAME:-x}` and `${NAME:+x}`."""

    def value(match: re.Match[str]) -> str:
        name, operator, word = match[1] or match[2], match[3], match[4] or ""
        if name is None:
            return match[0]  # an escaped dollar sign
        known = values.get(name)
        if operator == "-":
            return known or substitute(word, values)
        if operator == "+":
            return substitute(word, values) if known else ""
        return match[0] if known is None else known

    return VARIABLE.sub(value, text)


def unresolved(text: str) -> str | None:
    """Return the first variable in `text` that has no value, or None."""
    match = next((one for one in VARIABLE.finditer(text) if one[1] or one[2]), None)
    return (match[1] or match[2]) if match else None


class _Reader:
    """Reads instructions in order, as the builder does."""

    def __init__(self, source: str, given: dict[str, str], heredocs: dict[int, list[str]]) -> None:
        self.source, self.given, self.heredocs = source, given, heredocs
        self.stages: list[Stage] = []
        self.unknown: list[Instruction] = []
        self.taken = 0
        self.arguments: dict[str, str] = {}
        self._values: dict[str, str] = {}  # ARG and ENV of the current stage

    def take(self, found: Mapping[str, object]) -> None:
        name, raw = str(found["instruction"]).upper(), str(found["value"])
        line, end = int(str(found["startline"])) + 1, int(str(found["endline"])) + 1
        bodies = tuple(self.heredocs.get(line, ()))
        flags, rest = _flags(raw) if name in ("FROM", "RUN", "COPY", "ADD", "HEALTHCHECK") else ((), raw)
        known = self._values if self.stages and name != "FROM" else self.arguments
        if sum(len(known.get(name, "")) for name in NAMED.findall(raw)) > LARGEST:
            raise UserError(f"{self.source}:{line}: its variables stand for more than {LARGEST >> 10} KiB")
        filled = tuple((key, substitute(value, known)) for key, value in flags)
        value = rest if name in LITERAL else substitute(rest, known)
        self.taken += 1
        named = {name: known[name] for name in NAMED.findall(raw) if name in known}
        one = Instruction(name, value, raw, line, end, filled, bodies, self.taken, named)
        if name == "FROM":
            self._from(one)
        elif name in KNOWN and not self.stages and name != "ARG":
            raise UserError(f"{self.source}:{line}: {name} before the first FROM", "only ARG may come before FROM")
        elif name in KNOWN:
            self._inside(one)
        else:
            self.unknown.append(one)

    def _from(self, one: Instruction) -> None:
        words = one.value.split()
        if not words or len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            raise UserError(f"{self.source}:{one.line}: FROM {one.raw}: not `FROM image` or `FROM image AS name`")
        if len(self.stages) == MOST_STAGES:
            raise UserError(f"{self.source}:{one.line}: more than {MOST_STAGES} stages")
        name = words[2] if len(words) == 3 else ""
        parent = next((stage for stage in self.stages if stage.name and stage.name == words[0].lower()), None)
        stage = Stage(len(self.stages), name.lower(), words[0], one.flag("platform"), one.line, one, parent)
        stage.environment = dict(parent.environment) if parent else {}
        self._values = dict(stage.environment)
        self.stages.append(stage)

    def _inside(self, one: Instruction) -> None:
        if one.name == "ARG":
            known = self._values if self.stages else self.arguments
            for name, value in one.pairs:
                if name in self.given:
                    known[name] = self.given[name]
                elif f"{name}=" in one.value:
                    known[name] = value
                elif self.stages and name in self.arguments:
                    known[name] = self.arguments[name]
        elif one.name == "ENV":
            self._values.update(one.pairs)
            self.stages[-1].environment.update(one.pairs)
        if self.stages:
            self.stages[-1].instructions.append(one)


def _without_heredocs(text: str, source: str) -> tuple[str, dict[int, list[str]]]:
    """Return the text with heredocs as empty lines, and their bodies by the first line of the instruction.

    An empty line inside an instruction, which the builder skips, becomes a continuation.
    """
    lines = text.splitlines()
    bodies: dict[int, list[str]] = {}
    out: list[str] = []
    at = 0
    while at < len(lines):
        first, whole = at, ""
        while at < len(lines):
            line = lines[at]
            at += 1
            comment = line.lstrip().startswith("#")
            out.append("\\" if whole and not line.strip() else line)
            if whole and (comment or not line.strip()):
                continue
            whole += line.rstrip().removesuffix("\\") + " "
            if comment or not line.rstrip().endswith("\\"):
                break
        for tabs, mark in _marks(whole):
            body = []
            while at < len(lines) and (lines[at].lstrip("\t") if tabs else lines[at]) != mark:
                body.append(lines[at].lstrip("\t") if tabs else lines[at])
                at += 1
            if at == len(lines):
                raise UserError(f"{source}:{first + 1}: the heredoc {mark} is not closed")
            out += [""] * (len(body) + 1)
            at += 1
            bodies.setdefault(first + 1, []).append("\n".join(body))
    return "\n".join(out) + "\n", bodies


def _marks(instruction: str) -> list[tuple[bool, str]]:
    """Return the end marks of an instruction's heredocs, and whether tabs before each are ignored."""
    if "<<" not in instruction or not WITH_HEREDOC.match(instruction):
        return []
    found = [HEREDOC.fullmatch(word) for word in WORD.findall(instruction)]
    return [(match[1] == "-", match[3]) for match in found if match]


def _flags(value: str) -> tuple[tuple[tuple[str, str], ...], str]:
    found, end = [], 0
    while match := FLAG.match(value, end):
        found.append((match[1], match[2] or ""))
        end = match.end()
    return tuple(found), value[end:].strip()


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return re.sub(r"\\(.)", r"\1", text)
