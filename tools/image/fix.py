"""The smallest change that removes a finding of `yard image check`, one finding at a time.

A repair that would not remove its finding, that would cause another one, or that could break the image is
left out, and the finding says why.
"""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from tools.core import State, UserError, Verdict, repo, tables, worst
from tools.image.dockerfile import dockerignore
from tools.image.dockerfile.packages import entries, requirement
from tools.image.draft import Draft, Texts, Unsafe, plain, unified_diff, with_endings
from tools.image.repairs import REPAIRS
from tools.image.rules.evaluate import Target, subject
from tools.image.rules.rule import Subject

ATTEMPTS = 256  # repairs of one file, each of one finding
PACKAGES: dict[str, str] = tables.load("image/tables.yaml")["packages"]


@dataclass
class Fixed:
    """The files before and after, what each repair did, and the findings that are left.

    `why_left` in a finding's details says why a repair was left out.
    """

    before: Texts
    after: Texts
    done: list[str] = field(default_factory=list)
    left: list[Verdict] = field(default_factory=list)

    @property
    def diff(self) -> str:
        """All changes as one unified diff, which `git apply` takes."""
        return "".join(unified_diff(path, self.before[path], text) for path, text in self.after.items())

    @property
    def state(self) -> State:
        """What `yard image check` says of the repaired files."""
        return worst(one.state for one in self.left)

    def write(self) -> list[Path]:
        """Write the changed files and return them."""
        changed = [path for path in self.after if self.after[path] != self.before[path]]
        for path in changed:
            path.write_text(self.after[path], encoding="utf-8", newline="")
        return changed


def fix(target: Target, given: Mapping[str, str] | None = None, missing: tuple[str, ...] = ()) -> Fixed:
    """Return a repaired copy of a Dockerfile and its requirement files. Nothing is written.

    `missing` are modules that could not be imported in the built image. Raises UserError if a file cannot be
    read.
    """
    original = subject(target, given)
    files = {target.dockerfile: original.dockerfile.text, **_requirement_files(original)}
    draft = Draft(original, target.dockerfile, given, {path: plain(text) for path, text in files.items()})
    result = Fixed(files, {})
    for module in missing:
        problem = _install(draft, module)
        if problem is None:
            result.done.append(f"{module}: installed")
        else:
            result.left.append(problem)
    before = draft.findings(whole=True)
    repaired, given_up = _repair_all(draft, result.done)
    found = repaired.findings(whole=True)
    if result.done and not missing and not _counts(found) <= _counts(before):
        text = "the repairs together would cause another finding"
        repaired, found, given_up = draft, before, {_key(one): text for one in before}
        result.done.clear()
    result.after = {path: with_endings(files[path], text) for path, text in repaired.texts.items()}
    for one in found:
        reason = given_up.get(_key(one))
        result.left.append(replace(one, details={**one.details, "why_left": reason}) if reason else one)
    return result


def _repair_all(draft: Draft, done: list[str]) -> tuple[Draft, dict[tuple[str, ...], str]]:
    """Return the repaired draft, and why repairs were left out. `done` gets a line for each repair."""
    given_up: dict[tuple[str, ...], str] = {}
    found = draft.findings()
    for _ in range(ATTEMPTS):
        open_ = (one for one in found if one.details["rule"] in REPAIRS and _key(one) not in given_up)
        todo = next(open_, None)
        if todo is None:
            break
        trial = draft.copy()
        try:
            REPAIRS[todo.details["rule"]](trial, todo)
            now = trial.findings()
        except (Unsafe, UserError) as problem:
            given_up[_key(todo)] = str(problem)
            continue
        if _cured(todo, found, now):
            draft, found = trial, now
            done.append(f"{todo.details['rule']}: {todo.summary}")
        else:
            given_up[_key(todo)] = "the repair would not remove this finding, or would cause another one"
    return draft, given_up


def _cured(todo: Verdict, before: list[Verdict], after: list[Verdict]) -> bool:
    """Return whether a repair removed its finding, and no rule finds more than before."""
    said = [sum((one.details["rule"], one.summary) == (todo.details["rule"], todo.summary) for one in found)
            for found in (before, after)]  # fmt: skip
    return said[1] < said[0] and _counts(after) <= _counts(before)


def _counts(found: list[Verdict]) -> Counter[tuple[str, State]]:
    return Counter((str(one.details["rule"]), one.state) for one in found)


@contextmanager
def repaired(target: Target, fixed: Fixed) -> Iterator[Target]:
    """Yield a temporary copy of the context with the repairs; without a repair, the target itself.

    The directory keeps its name, because the image's name comes from it.
    """
    if not fixed.diff:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="yard-fix-") as scratch:
        root = Path(scratch) / "context" / target.context.name
        ignore = dockerignore.read(target.context, target.dockerfile)
        for name, _ in dockerignore.files(target.context, ignore):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(target.context / name, root / name, follow_symlinks=False)
        for path, text in fixed.after.items():
            place = _in_copy(path, target, root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", newline="")
        yield Target(_in_copy(target.dockerfile, target, root), root)


def _in_copy(path: Path, target: Target, root: Path) -> Path:
    """Return the path of a file's copy; a Dockerfile may be outside the context."""
    if path.resolve().is_relative_to(target.context):
        return root / path.resolve().relative_to(target.context)
    return root.parent.parent / "file" / path.parent.name / path.name


def _key(verdict: Verdict) -> tuple[str, ...]:
    """Return what a finding is about: its rule, its sentence and the text of its place."""
    return verdict.details["rule"], verdict.summary, *(re.sub(r":\d+:", ":", one) for one in verdict.evidence)


def _requirement_files(read: Subject) -> Texts:
    names = {package.file for install in read.installs for package in install.packages}
    paths = [read.context / name for name in sorted(names - {read.source}) if not name.endswith(".lock")]
    found = {path: path.read_bytes() for path in paths if path.is_file()}
    return {path: data.decode() for path, data in found.items() if data == data.decode(errors="ignore").encode()}


def _install(draft: Draft, module: str) -> Verdict | None:
    """Install the package of a module, pinned as in requirements-dev.lock; return a finding if that fails."""
    read = draft.read()
    name = canonicalize_name(PACKAGES.get(module.split(".")[0], module.split(".")[0]))
    lock = (repo.root() / "requirements-dev.lock").read_text(encoding="utf-8")
    packages = (requirement(text.split(" ")[0], "", line) for line, text in entries(lock))
    exact = next((found.exact for found in packages if found and found.name == name), None)
    installs = [one for one in read.shipped if one.tool != "conda"]
    if exact is None or not installs:
        remedy = f"add {name}==<version> to the image's requirements"
        what = f"requirements-dev.lock has no {name}" if exact is None else "no command installs packages"
        details = {"rule": "imports", "file": read.source, "line": read.dockerfile.final.line}
        return Verdict(State.FAIL, f"{module} cannot be imported, and {what}", [module], remedy, details)
    pinned, last = f"{name}=={exact}", installs[-1]
    files = [read.context / one.file for one in last.packages if one.file != read.source]
    if files and files[-1] in draft.texts:
        draft.texts[files[-1]] = draft.texts[files[-1]].rstrip("\n") + f"\n{pinned}\n"
        return None
    here = [one for one in last.packages if one.file == read.source]
    after, line = (here[-1].text, here[-1].line) if here else ("install", last.instruction.line)
    draft.swap(re.escape(after), f"{after} {pinned}", line)
    return None
