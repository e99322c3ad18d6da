"""The smallest change that removes a finding of `yard image check`, one finding at a time.

Each repair changes the texts in place and returns whether it could.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from tools.core import repo
from tools.core.verdict import State, Verdict
from tools.facts import compatibility
from tools.image.dockerfile import dockerignore, parse
from tools.image.dockerfile.packages import cuda_version, entries, requirement
from tools.image.rules import versions
from tools.image.rules.evaluate import Target, subject, verdicts
from tools.image.rules.rule import Subject
from tools.image.rules.runtime import exec_form, with_exec

ATTEMPTS = 8  # repairs of one file, each of one finding
USER = "USER 1000:1000"
# Modules whose package has another name.
PACKAGES = {
    "yaml": "pyyaml", "PIL": "pillow", "cv2": "opencv-python-headless", "sklearn": "scikit-learn",
    "ruamel": "ruamel-yaml", "dateutil": "python-dateutil", "google": "protobuf",
}  # fmt: skip

Texts = dict[Path, str]


@dataclass
class Fixed:
    """The files before and after, what each repair did, and the findings that are left."""

    before: Texts
    after: Texts
    done: list[str] = field(default_factory=list)
    left: list[Verdict] = field(default_factory=list)

    @property
    def diff(self) -> str:
        """All changes as one unified diff."""
        parts: list[str] = []
        for path, text in self.after.items():
            name = repo.shown(path).lstrip("/")
            old, new = (one.splitlines(keepends=True) for one in (self.before[path], text))
            parts += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=2)
        return "".join(parts)

    def write(self) -> list[Path]:
        """Write the changed files and return them."""
        changed = [path for path in self.after if self.after[path] != self.before[path]]
        for path in changed:
            before = path.read_bytes().decode("utf-8")
            path.write_text(_with_endings(before, self.after[path]), encoding="utf-8", newline="")
        return changed


@dataclass
class Draft:
    """The Dockerfile and its requirement files as the repairs have changed them."""

    original: Subject
    path: Path
    given: Mapping[str, str] | None
    texts: Texts

    def read(self) -> Subject:
        parsed = parse.parse(self.texts[self.path], self.original.source, self.given)
        texts = {path.resolve(): text for path, text in self.texts.items()}
        return replace(self.original, dockerfile=parsed, texts=texts)

    def failures(self) -> list[Verdict]:
        """Return the failures, and hadolint's verdict if it is missing."""
        found = verdicts(self.read())
        return [one for one in found if one.state is State.FAIL or one.details["rule"] == "hadolint"]

    def put(self, lines: list[str], first: int, last: int, path: Path | None = None) -> None:
        """Write `lines` in place of the lines `first` to `last` of a file (default: the Dockerfile)."""
        text = self.texts[path or self.path].split("\n")
        text[first - 1 : last] = lines
        self.texts[path or self.path] = "\n".join(text)

    def swap(self, old: str, new: str, number: int, path: Path | None = None) -> bool:
        """Replace the first match of the pattern `old` in one line; return whether that changed the line."""
        line = self.texts[path or self.path].split("\n")[number - 1]
        changed = re.sub(old, new, line, count=1, flags=re.IGNORECASE)
        self.put([changed], number, number, path)
        return changed != line


Repair = Callable[[Draft, Verdict], bool]


def fix(target: Target, given: Mapping[str, str] | None = None, missing: tuple[str, ...] = ()) -> Fixed:
    """Return a repaired copy of a Dockerfile and its requirement files. Nothing is written.

    `missing` are modules that could not be imported in the built image. A repair that does not remove its
    finding, or causes another one, is undone. Raises UserError if the Dockerfile cannot be read.
    """
    original = subject(target, given)
    files = {target.dockerfile: original.dockerfile.text, **_requirement_files(original)}
    draft = Draft(original, target.dockerfile, given, dict(files))
    result = Fixed(files, draft.texts)
    for module in missing:
        problem = _install(draft, module)
        if problem is None:
            result.done.append(f"{module}: installed")
        else:
            result.left.append(problem)
    given_up: set[tuple[str, str]] = set()
    for _ in range(ATTEMPTS):
        found = draft.failures()
        open_ = (one for one in found if _key(one) not in given_up and one.details["rule"] in REPAIRS)
        todo = next(open_, None)
        if todo is None:
            break
        trial = replace(draft, texts=dict(draft.texts))
        if REPAIRS[todo.details["rule"]](trial, todo):
            left = {_key(one) for one in trial.failures()}
            if _key(todo) not in left and left <= {_key(one) for one in found}:
                draft = trial
                result.done.append(f"{todo.details['rule']}: {todo.summary}")
                continue
        given_up.add(_key(todo))
    result.after = draft.texts
    result.left += draft.failures()
    return result


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
            place.write_text(text, encoding="utf-8")
        yield Target(_in_copy(target.dockerfile, target, root), root)


def _in_copy(path: Path, target: Target, root: Path) -> Path:
    """Return the path of a file's copy; a Dockerfile may be outside the context."""
    if path.resolve().is_relative_to(target.context):
        return root / path.resolve().relative_to(target.context)
    return root.parent.parent / "file" / path.parent.name / path.name


def _with_endings(before: str, after: str) -> str:
    """Return `after`, whose lines end in \\n, with the line ends of `before`, also for new lines."""
    old = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", before)
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


def _key(verdict: Verdict) -> tuple[str, str]:
    return str(verdict.details["rule"]), verdict.summary


def _requirement_files(read: Subject) -> Texts:
    names = {package.file for install in read.installs for package in install.packages}
    paths = [read.context / name for name in sorted(names - {read.source}) if not name.endswith(".lock")]
    return {path: path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def _base(draft: Draft, verdict: Verdict) -> bool:
    """Change the CUDA of the base image in FROM, or of the package index."""
    read = draft.read()
    found, torch = read.package("torch"), versions.find_torch(read)
    stage = read.dockerfile.final.lineage()[0]
    if torch is None or torch.row is None:
        return False
    if (verdict.details["file"], verdict.details["line"]) != (read.source, stage.line):
        return _index(draft, "cu" + torch.row.cuda.replace(".", ""))
    asked = (found[1].local or found[0].cuda) if found else None
    cuda = (cuda_version(asked) if asked else None) or torch.row.cuda
    image, _, tag = stage.base.split("@")[0].partition(":")
    if image.endswith("nvidia/cuda"):
        tags = compatibility.cuda_images(tag, cuda)
        return bool(tags) and _put_base(draft, f"{image}:{tags[0]}")
    if image.endswith("pytorch/pytorch"):
        cudnn = "cudnn8" if torch.row.series in ("2.0", "2.1", "2.2", "2.3") else "cudnn9"
        kind = tag.rsplit("-", 1)[-1]
        return _put_base(draft, f"{image}:{torch.version}-cuda{cuda}-{cudnn}-{kind}")
    return False


def _index(draft: Draft, wanted: str) -> bool:
    """Change the CUDA in the name of an index, a local version or uv's backend to `wanted`, such as cu128."""
    for path, text in draft.texts.items():
        changed = re.sub(r"(/whl/|\+|--torch-backend[= ])cu\d+", rf"\g<1>{wanted}", text)
        if changed != text:
            draft.texts[path] = changed
            return True
    return False


def _put_base(draft: Draft, image: str) -> bool:
    """Change the base image: in the default of the build argument that differs, or else in FROM."""
    dockerfile = draft.read().dockerfile
    stage = dockerfile.final.lineage()[0]
    line = stage.start.line
    if draft.swap(re.escape(stage.base), image, line):
        return True
    for name, value in dockerfile.arguments.items():
        before, found, after = stage.base.partition(value) if value else ("", "", "")
        if found and image.startswith(before) and image.endswith(after):
            new = image[len(before) : len(image) - len(after)]
            default = rf"^(\s*ARG\s+{name}=[\"']?){re.escape(value)}"
            if any(draft.swap(default, rf"\g<1>{new}", number) for number in range(1, line)):
                return True
    words = [word for word in stage.start.raw.split() if not word.startswith("--")]
    return bool(words) and draft.swap(re.escape(words[0]), image, line)


def _torchvision(draft: Draft, verdict: Verdict) -> bool:
    torch = versions.find_torch(draft.read())
    return _pin(draft, "torchvision", compatibility.torchvision_release(torch.version) if torch else None)


def _torchaudio(draft: Draft, verdict: Verdict) -> bool:
    torch = versions.find_torch(draft.read())
    return _pin(draft, "torchaudio", torch.version if torch else None)


def _pin(draft: Draft, name: str, release: str | None) -> bool:
    """Change the version of a package in the Dockerfile or the requirements file that pins it."""
    read = draft.read()
    found = read.package(name)
    if found is None or release is None or found[1].exact is None:
        return False
    package = found[1]
    place = draft.path if package.file == read.source else read.context / package.file
    pin = rf"({re.escape(name)}\s*={{1,3}}\s*){re.escape(package.exact or '')}"
    return place in draft.texts and draft.swap(pin, rf"\g<1>{release}", package.line, place)


def _exec(draft: Draft, verdict: Verdict) -> bool:
    """Write ENTRYPOINT or CMD in exec form, or put `exec` into the command line of its shell."""
    dockerfile, line = draft.read().dockerfile, int(verdict.details["line"])
    found = next((one for _, one in dockerfile.instructions() if one.line == line), None)
    if found is None or found.name not in ("ENTRYPOINT", "CMD"):
        return False
    if found.words is not None:
        form = _with_exec(found.words)
    elif found.raw.lstrip().startswith("["):
        form = json.dumps(re.findall(r"'([^']*)'", found.raw))
    else:
        shell = dockerfile.final.last("SHELL")
        form = exec_form(found.raw, (shell.words if shell else None) or ("/bin/sh", "-c"))
    if form is not None:
        draft.put([f"{found.name} {form}"], line, found.end)
    return form is not None


def _with_exec(words: list[str]) -> str | None:
    """Return an exec form whose command line ends in `exec`, or None if no word is a command line."""
    at = next((number for number, word in enumerate(words) if re.search(r"\s", word)), None)
    text = with_exec(words[at]) if at is not None else None
    if at is None or text is None:
        return None
    return json.dumps([*words[:at], text, *words[at + 1 :]], ensure_ascii=False)


def _user(draft: Draft, verdict: Verdict) -> bool:
    """Change the last USER, or add one after the last instruction that needs root."""
    final = draft.read().dockerfile.final
    last = next((one for one in reversed(final.instructions) if one.name == "USER"), None)
    needs = [one for one in final.instructions if one.name in ("RUN", "COPY", "ADD", "WORKDIR")]
    after = max([final.start.end, *(one.last for one in needs)])
    if last is not None and last.line > after:
        draft.put([USER], last.line, last.end)
    else:
        draft.put([USER], after + 1, after)
    return True


REPAIRS: dict[str, Repair] = {
    "torch-cuda": _base,
    "torchvision": _torchvision,
    "torchaudio": _torchaudio,
    "DL3025": _exec,
    "signals": _exec,
    "user": _user,
}


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
