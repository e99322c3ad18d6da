"""Find a Dockerfile with its context, apply all rules to it, and sum up."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tools.core import State, UserError, Verdict, output, repo, worst
from tools.core.verdict import of_state
from tools.facts.instances import Instance
from tools.image.dockerfile import dockerignore
from tools.image.dockerfile.parse import LARGEST, Dockerfile, parse
from tools.image.rules import hadolint
from tools.image.rules.rule import Subject, rule
from training.run.files import read_bounded

DEEPEST = 12  # directories above a Dockerfile in which its context is looked for


@dataclass(frozen=True)
class Target:
    """A Dockerfile and its context: the directory that is sent to the engine."""

    dockerfile: Path
    context: Path
    assumed: bool = False  # whether the context was not given

    @property
    def shown(self) -> str:
        return repo.shown(self.dockerfile)

    @property
    def name(self) -> str:
        """The image's name: that of its directory, or what follows `Dockerfile.`."""
        return (self.dockerfile.name.partition("Dockerfile.")[2] or self.dockerfile.parent.resolve().name).lower()


@dataclass(frozen=True)
class Result:
    """The verdicts on one Dockerfile, in the order of the rules."""

    source: str
    context: Path
    verdicts: list[Verdict]
    notes: list[hadolint.Note] | None  # all findings of hadolint; None if it did not run
    remarks: list[hadolint.Note]  # the notes that no verdict states

    def of(self, state: State) -> list[Verdict]:
        return of_state(self.verdicts, state)

    @property
    def state(self) -> State:
        return worst(verdict.state for verdict in self.verdicts)

    @property
    def answers(self) -> dict[str, tuple[State, str]]:
        """The answers to the two questions, with counts: a warning is about good practice only."""
        failed, unknown, warned = (len(self.of(one)) for one in (State.FAIL, State.CANNOT_TELL, State.WARN))
        faults = [output.count(failed, "fault")] if failed else []
        faults += [f"{unknown} unknown"] if unknown else []
        trains = State.FAIL if failed else State.CANNOT_TELL if unknown else State.PASS
        warnings = output.count(warned, "warning") if warned else ""
        return {
            "will it build and train": (trains, ", ".join(faults)),
            "good practice": (State.WARN if warned else State.PASS, warnings),
        }


def names() -> list[str]:
    """Return the names of this repository's own images."""
    return sorted(path.parent.name for path in (repo.root() / "images").glob("*/Dockerfile"))


def find(text: str, context: str | None = None) -> Target:
    """Return what `text` names: an image under images/, a directory with a Dockerfile, or a Dockerfile.

    The default context is the checkout for an image under images/, else the Dockerfile's directory.
    Raises UserError.
    """
    named = repo.root() / "images" / text / "Dockerfile"
    path = Path(text).expanduser()
    if "/" not in text and named.is_file() and not path.exists():
        path = named
    elif path.is_dir():
        path = path / "Dockerfile"
    if not path.is_file():
        hint = repo.did_you_mean(text, names()) or f"images: {', '.join(names())}"
        raise UserError(f"no Dockerfile: {path}", hint)
    path = path.resolve()
    ours = path.is_relative_to(repo.root() / "images")
    root = Path(context).expanduser() if context else repo.root() if ours else path.parent
    if not root.is_dir():
        raise UserError(f"the context {context} is not a directory")
    return Target(path, root.resolve(), not context and not ours)


def subject(
    target: Target, given: Mapping[str, str] | None = None, machine: Instance | None = None, driver: int | None = None
) -> Subject:
    """Return what the rules read; `given` are build arguments. Raises UserError if it cannot be read."""
    try:
        text = read_bounded(target.dockerfile, 4 * LARGEST, follow=True).decode()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{target.shown}: cannot be read: {problem}") from problem
    parsed = parse(text, target.shown, given)
    context = _context(parsed, target) if target.assumed else target.context
    return Subject(target.shown, parsed, context, dockerignore.read(context, target.dockerfile), machine, driver)


def _context(parsed: Dockerfile, target: Target) -> Path:
    """Return the directory from the Dockerfile's up to that of .git that has most sources of COPY."""
    parents = [target.context, *target.context.parents][:DEEPEST]
    last = next((n for n, path in enumerate(parents) if (path / ".git").exists()), 0)
    copies = (one for _, one in parsed.instructions() if one.name in ("COPY", "ADD") and not one.flag("from"))
    words = {word for one in copies for word in (one.words or one.value.split())[:-1]}
    sources = [word.strip("/") for word in words if not re.search(r"[*?\[$]|://|<<|\.\.", word)]
    return max(parents[: last + 1], key=lambda path: sum((path / one).exists() for one in sources))


def evaluate(read: Subject) -> Result:
    found = verdicts(read)
    remarks = hadolint.remarks(read.dockerfile, found)
    return Result(read.source, read.context, found, hadolint.notes(read.dockerfile), remarks)


def verdicts(read: Subject, without: Collection[str] = ()) -> list[Verdict]:
    """Return what the rules, except those in `without`, find in a Dockerfile, in their order."""
    return [
        replace(verdict, details={"rule": one.id, **verdict.details})
        for one in rule.all.values()
        if one.id not in without
        for verdict in one.verdicts(read)
    ]
