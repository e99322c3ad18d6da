"""Find a Dockerfile with its context, apply all rules to it, and sum up."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.facts.instances import Instance
from tools.image.dockerfile import dockerignore
from tools.image.dockerfile.parse import parse
from tools.image.rules import hadolint
from tools.image.rules.rule import RULES, Rule, Subject

MODULES = ("runtime", "layers", "secrets", "versions", "efa")


@dataclass(frozen=True)
class Target:
    """A Dockerfile and the directory that is sent to the engine with it."""

    dockerfile: Path
    context: Path

    @property
    def shown(self) -> str:
        """Return the Dockerfile's path as a user would type it."""
        return repo.shown(self.dockerfile)

    @property
    def name(self) -> str:
        """Return the image's name: that of its directory, or what stands behind `Dockerfile.`."""
        own = self.dockerfile.name.partition("Dockerfile.")[2]
        return (own or self.dockerfile.parent.resolve().name).lower()


@dataclass(frozen=True)
class Judgement:
    """The verdicts on one Dockerfile, in the order of the rules; hadolint's notes (None: not installed)."""

    source: str
    verdicts: list[Verdict]
    notes: list[hadolint.Note] | None

    def of(self, state: State) -> list[Verdict]:
        """Return the verdicts of one state."""
        return [verdict for verdict in self.verdicts if verdict.state is state]

    @property
    def state(self) -> State:
        """Return FAIL where anything failed, CANNOT TELL where anything could not be told, else PASS."""
        return next((state for state in (State.FAIL, State.CANNOT_TELL) if self.of(state)), State.PASS)


def names() -> list[str]:
    """Return the names of this repository's own images."""
    return sorted(path.parent.name for path in (repo.root() / "images").glob("*/Dockerfile"))


def find(text: str, context: str | None = None) -> Target:
    """Return what `text` names: an image under images/, a directory with a Dockerfile, or a Dockerfile.

    The context is the one given, for our own images the checkout, else the Dockerfile's directory.
    Raises UserError.
    """
    own = repo.root() / "images" / text / "Dockerfile"
    path = Path(text).expanduser()
    if "/" not in text and own.is_file() and not path.exists():
        path = own
    elif path.is_dir():
        path = path / "Dockerfile"
    if not path.is_file():
        match = repo.nearest(text, names())
        hint = f"did you mean {match}?" if match else f"images: {', '.join(names())}"
        raise UserError(f"no Dockerfile: {path}", hint)
    path = path.resolve()
    ours = path.is_relative_to(repo.root() / "images")
    root = Path(context).expanduser() if context else repo.root() if ours else path.parent
    if not root.is_dir():
        raise UserError(f"the context {context} is no directory")
    return Target(path, root.resolve())


def rules() -> dict[str, Rule]:
    """Return all rules by name, in the order in which they are applied."""
    for name in MODULES:
        importlib.import_module(f"tools.image.rules.{name}")
    return RULES


def subject(
    target: Target,
    given: Mapping[str, str] | None = None,
    machine: Instance | None = None,
    driver: int | None = None,
) -> Subject:
    """Return what the rules look at. Raises UserError where the Dockerfile cannot be read."""
    try:
        text = target.dockerfile.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{target.shown}: cannot be read: {problem}") from problem
    parsed = parse(text, target.shown, given)
    ignore = dockerignore.read(target.context, target.dockerfile)
    return Subject(target.shown, parsed, target.context, ignore, machine, driver)


def judge(
    target: Target,
    given: Mapping[str, str] | None = None,
    machine: Instance | None = None,
    driver: int | None = None,
) -> Judgement:
    """Apply every rule to a Dockerfile; hadolint's errors count as failures, the rest of its notes do not."""
    found = verdicts(subject(target, given, machine, driver))
    notes = hadolint.notes(target.dockerfile)
    found += [_failure(target, note) for note in notes or [] if note.level == "error"]
    return Judgement(target.shown, found, notes)


def verdicts(looked_at: Subject) -> list[Verdict]:
    """Return what our own rules say of a Dockerfile, in their order."""
    return [
        replace(verdict, details={"rule": one.id, **verdict.details})
        for one in rules().values()
        for verdict in one.check(looked_at)
    ]


def _failure(target: Target, note: hadolint.Note) -> Verdict:
    evidence = [f"{target.shown}:{note.line}: {note.code}"]
    details = {"rule": "hadolint", "file": target.shown, "line": note.line, "code": note.code}
    return Verdict(State.FAIL, note.message, evidence, None, details)
