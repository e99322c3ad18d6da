"""A Dockerfile and its requirement files while `yard image fix` repairs them, and the diff at the end."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tools.core import State, UserError, Verdict, repo
from tools.image.dockerfile import parse
from tools.image.dockerfile.parse import Instruction, Stage
from tools.image.rules.evaluate import verdicts
from tools.image.rules.rule import Subject
from tools.simulator.shell import SHELLS

Texts = dict[Path, str]
# Slow rules that are applied once, after all repairs: they read the whole context, or start hadolint.
SLOW = ("secrets", "copy", "DL1000", "hadolint")


class Unsafe(Exception):
    """Why a repair is left out: it could break the image, or there is more than one good choice."""


@dataclass
class Draft:
    """The Dockerfile and its requirement files as the repairs have changed them. Lines end in \\n."""

    original: Subject
    path: Path
    given: Mapping[str, str] | None
    texts: Texts

    def copy(self) -> Self:
        return replace(self, texts=dict(self.texts))

    def read(self) -> Subject:
        parsed = parse.parse(self.texts[self.path], self.original.source, self.given)
        texts = {path.resolve(): text for path, text in self.texts.items()}
        return replace(self.original, dockerfile=parsed, texts=texts)

    def findings(self, whole: bool = False) -> list[Verdict]:
        """Return what is not a PASS; without the slow rules if not `whole`."""
        found = verdicts(self.read(), () if whole else SLOW)
        return [one for one in found if one.state is not State.PASS]

    def lines(self, path: Path | None = None) -> list[str]:
        return self.texts[path or self.path].split("\n")

    def put(self, lines: list[str], first: int, last: int, path: Path | None = None) -> None:
        """Write `lines` in place of the lines `first` to `last` of a file (default: the Dockerfile)."""
        text = self.lines(path)
        text[first - 1 : last] = lines
        self.texts[path or self.path] = "\n".join(text)

    def swap(self, old: str, new: str, number: int, path: Path | None = None) -> bool:
        """Replace the first match of the pattern `old` in one line; return whether that changed the line."""
        line = self.lines(path)[number - 1]
        changed = re.sub(old, new, line, count=1, flags=re.IGNORECASE)
        self.put([changed], number, number, path)
        return changed != line

    def swap_all(self, old: str, new: str, one: Instruction) -> bool:
        """Replace all matches in the lines of an instruction that are not comments."""
        before = self.lines()[one.line - 1 : one.last]
        after = [line if line.lstrip().startswith("#") else re.sub(old, new, line) for line in before]
        self.put(after, one.line, one.last)
        return after != before

    def instruction(self, verdict: Verdict) -> tuple[Stage, Instruction]:
        """Return the instruction that a verdict is about, with its stage. Raises Unsafe."""
        line = int(verdict.details["line"])
        pairs = self.read().dockerfile.instructions()
        found = next((pair for pair in pairs if pair[1].line == line), None)
        if found is None or verdict.details["file"] != self.original.source:
            raise Unsafe("the fault is not in an instruction of the Dockerfile")
        return found


def shell_of(stage: Stage) -> list[str]:
    """Return the words of the shell of a stage's commands. Raises Unsafe if it is not a POSIX shell."""
    shell = stage.last("SHELL")
    words = (shell.words if shell else None) or ["/bin/sh", "-c"]
    if words[0].rsplit("/", 1)[-1] not in SHELLS:
        raise Unsafe(f"its commands are for {words[0]}")
    return words


def unified_diff(path: Path, before: str, after: str) -> str:
    """Return the change of one file as a diff for `git apply`, with the path from the repository's root."""
    name = _from_root(path.absolute())
    return repo.diff(f"a/{name}", before, after, f"b/{name}")


def _from_root(path: Path) -> str:
    root = next((one for one in path.parents if (one / ".git").exists()), None)
    here = Path.cwd()
    root = root or (here if path.is_relative_to(here) else path.parent)
    return path.relative_to(root).as_posix()


def plain(text: str) -> str:
    """Return `text` with lines that end in \\n. Raises UserError if other characters end lines as well."""
    lines = text.replace("\r\n", "\n")
    if lines.splitlines() != lines.removesuffix("\n").split("\n") and lines:
        raise UserError("a line has a character that some programs take for its end, such as a form feed")
    return lines


def with_endings(before: str, after: str) -> str:
    """Return `after`, whose lines end in \\n, with the line ends of `before`, also for new lines."""
    old = re.findall(r"[^\n]*\n|[^\n]+$", before)
    new = re.findall(r"[^\n]*\n|[^\n]+$", after)
    if "\r" not in before:
        return after
    usual = "\r\n" if before.count("\r\n") * 2 > len(old) else "\n"
    bare = [line.rstrip("\r\n") for line in old]
    lines = [line.removesuffix("\n") + (usual if line.endswith("\n") else "") for line in new]
    matcher = difflib.SequenceMatcher(None, bare, [line.rstrip("\n") for line in new], autojunk=False)
    for block in matcher.get_matching_blocks():
        lines[block.b : block.b + block.size] = old[block.a : block.a + block.size]
    return "".join(lines)
