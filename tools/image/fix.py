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
from tools.image.dockerfile.packages import Package, cuda_version, entries, requirement
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
Repair = Callable[[Subject, Texts, Path, Verdict], bool]


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
            if text != self.before[path]:
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


def fix(target: Target, given: Mapping[str, str] | None = None, missing: tuple[str, ...] = ()) -> Fixed:
    """Return a repaired copy of a Dockerfile and its requirement files. Nothing is written.

    `missing` are modules that could not be imported in the built image. A repair that does not remove its
    finding, or causes another one, is undone. Raises UserError if the Dockerfile cannot be read.
    """
    read = subject(target, given)
    files = {target.dockerfile: read.dockerfile.text, **_requirement_files(read)}
    result = Fixed(dict(files), dict(files))
    for module in missing:
        problem = _add(read, result.after, target.dockerfile, module)
        if problem is None:
            result.done.append(f"{module}: installed")
        else:
            result.left.append(problem)
    given_up: set[tuple[str, str]] = set()
    for _ in range(ATTEMPTS):
        found = _failures(read, result.after, target.dockerfile, given)
        todo = next(
            (one for one in found if _key(one) not in given_up and one.details["rule"] in REPAIRS), None
        )
        if todo is None:
            break
        tried = dict(result.after)
        now = _now(read, tried, target.dockerfile, given)
        if REPAIRS[todo.details["rule"]](now, tried, target.dockerfile, todo):
            left = {_key(one) for one in _failures(read, tried, target.dockerfile, given)}
            if _key(todo) not in left and left <= {_key(one) for one in found}:
                result.after = tried
                result.done.append(f"{todo.details['rule']}: {todo.summary}")
                continue
        given_up.add(_key(todo))
    result.left += _failures(read, result.after, target.dockerfile, given)
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


def _now(one: Subject, texts: Texts, path: Path, given: Mapping[str, str] | None) -> Subject:
    parsed = parse.parse(texts[path], one.source, given)
    return replace(one, dockerfile=parsed, texts={name.resolve(): text for name, text in texts.items()})


def _failures(one: Subject, texts: Texts, path: Path, given: Mapping[str, str] | None) -> list[Verdict]:
    """Return the failures, and hadolint's verdict if it is missing."""
    found = verdicts(_now(one, texts, path, given))
    return [each for each in found if each.state is State.FAIL or each.details["rule"] == "hadolint"]


def _key(verdict: Verdict) -> tuple[str, str]:
    return str(verdict.details["rule"]), verdict.summary


def _requirement_files(one: Subject) -> Texts:
    names = {package.file for install in one.installs for package in install.packages}
    paths = [one.context / name for name in sorted(names) if name != one.source]
    return {
        path: path.read_text(encoding="utf-8") for path in paths if path.is_file() and path.suffix != ".lock"
    }


def _base(one: Subject, texts: Texts, path: Path, verdict: Verdict) -> bool:
    """Change the CUDA of the base image in FROM, or of the package index."""
    found, torch = one.package("torch"), _torch_version(one)
    stage = one.dockerfile.final.lineage()[0]
    row = compatibility.torch(torch) if torch else None
    if row is None:
        return False
    if (verdict.details["file"], verdict.details["line"]) != (one.source, stage.line):
        return any(_index(texts, place, "cu" + row.cuda.replace(".", "")) for place in texts)
    asked = (found[1].local or found[0].cuda) if found else None
    cuda = (cuda_version(asked) if asked else None) or row.cuda
    name = stage.base.split("@")[0]
    image, _, tag = name.partition(":")
    if image.endswith("nvidia/cuda"):
        tags = compatibility.cuda_images(tag, cuda)
        return bool(tags) and _put_base(one, texts, path, f"{image}:{tags[0]}")
    if image.endswith("pytorch/pytorch"):
        kind = tag.rsplit("-", 1)[-1]
        cudnn = "cudnn9" if (row.series not in ("2.0", "2.1", "2.2", "2.3")) else "cudnn8"
        return _put_base(one, texts, path, f"{image}:{torch}-cuda{cuda}-{cudnn}-{kind}")
    return False


def _index(texts: Texts, path: Path, wanted: str) -> bool:
    """Change the CUDA in the name of an index, a local version or uv's backend to `wanted`, such as cu128."""
    changed = re.sub(r"(/whl/|\+|--torch-backend[= ])cu\d+", rf"\g<1>{wanted}", texts[path])
    found, texts[path] = changed != texts[path], changed
    return found


def _put_base(one: Subject, texts: Texts, path: Path, image: str) -> bool:
    """Change the base image: in the default of the build argument that differs, or else in FROM."""
    stage = one.dockerfile.final.lineage()[0]
    lines = texts[path].split("\n")
    at = stage.start.line - 1
    if stage.base in lines[at]:
        lines[at] = lines[at].replace(stage.base, image, 1)
        texts[path] = "\n".join(lines)
        return True
    for name, value in one.dockerfile.arguments.items():
        before, found, after = stage.base.partition(value) if value else ("", "", "")
        if not found or not (image.startswith(before) and image.endswith(after)):
            continue
        new = image[len(before) : len(image) - len(after)]
        for number, line in enumerate(lines[:at]):
            changed = re.sub(
                rf"^(\s*ARG\s+{name}=[\"']?){re.escape(value)}", rf"\g<1>{new}", line, flags=re.I
            )
            if changed != line:
                lines[number] = changed
                texts[path] = "\n".join(lines)
                return True
    named = stage.start.raw.split()
    words = [word for word in named if not word.startswith("--")]
    if not words or words[0] not in lines[at]:
        return False
    lines[at] = lines[at].replace(words[0], image, 1)
    texts[path] = "\n".join(lines)
    return True


def _torch_version(one: Subject) -> str | None:
    torch = versions.find_torch(one)
    return torch.version if torch else None


def _torchvision(one: Subject, texts: Texts, path: Path, verdict: Verdict) -> bool:
    torch = _torch_version(one)
    release = compatibility.torchvision_release(torch) if torch else None
    return _pin(one, texts, path, "torchvision", release)


def _torchaudio(one: Subject, texts: Texts, path: Path, verdict: Verdict) -> bool:
    return _pin(one, texts, path, "torchaudio", _torch_version(one))


def _exec(one: Subject, texts: Texts, path: Path, verdict: Verdict) -> bool:
    """Write ENTRYPOINT or CMD in exec form, or put `exec` into the command line of its shell."""
    lines = texts[path].split("\n")
    line = int(verdict.details["line"])
    found = next((each for _, each in one.dockerfile.instructions() if each.line == line), None)
    if found is None or found.name not in ("ENTRYPOINT", "CMD"):
        return False
    if found.words is not None:
        form = _with_exec(found.words)
    elif found.raw.lstrip().startswith("["):
        form = json.dumps(re.findall(r"'([^']*)'", found.raw))
    else:
        shell = one.dockerfile.final.last("SHELL")
        form = exec_form(found.raw, (shell.words if shell else None) or ("/bin/sh", "-c"))
    if form is None:
        return False
    lines[line - 1 : found.end] = [f"{found.name} {form}"]
    texts[path] = "\n".join(lines)
    return True


def _with_exec(words: list[str]) -> str | None:
    """Return an exec form whose command line ends in `exec`, or None if no word is a command line."""
    at = next((number for number, word in enumerate(words) if re.search(r"\s", word)), None)
    text = with_exec(words[at]) if at is not None else None
    if at is None or text is None:
        return None
    return json.dumps([*words[:at], text, *words[at + 1 :]], ensure_ascii=False)


def _user(one: Subject, texts: Texts, path: Path, verdict: Verdict) -> bool:
    """Change the last USER, or add one after the last instruction that needs root."""
    lines = texts[path].split("\n")
    final = one.dockerfile.final
    last = next((each for each in reversed(final.instructions) if each.name == "USER"), None)
    needs = [each for each in final.instructions if each.name in ("RUN", "COPY", "ADD", "WORKDIR")]
    after = max([final.start.end, *(each.last for each in needs)])
    if last is not None and last.line > after:
        lines[last.line - 1 : last.end] = [USER]
    else:
        lines.insert(after, USER)
    texts[path] = "\n".join(lines)
    return True


REPAIRS: dict[str, Repair] = {
    "torch-cuda": _base,
    "torchvision": _torchvision,
    "torchaudio": _torchaudio,
    "DL3025": _exec,
    "signals": _exec,
    "user": _user,
}


def _pin(one: Subject, texts: Texts, path: Path, name: str, release: str | None) -> bool:
    """Change the version of a package in the Dockerfile or the requirements file that pins it."""
    found = one.package(name)
    if found is None or release is None or found[1].exact is None:
        return False
    package: Package = found[1]
    place = path if package.file == one.source else one.context / package.file
    if place not in texts:
        return False
    lines = texts[place].split("\n")
    before = lines[package.line - 1]
    pin = rf"({re.escape(name)}\s*={{1,3}}\s*){re.escape(package.exact or '')}"
    lines[package.line - 1] = re.sub(pin, rf"\g<1>{release}", before)
    texts[place] = "\n".join(lines)
    return lines[package.line - 1] != before


def _add(one: Subject, texts: Texts, path: Path, module: str) -> Verdict | None:
    """Install the package of a module, pinned as in requirements.lock; return a finding if that fails."""
    name = canonicalize_name(PACKAGES.get(module.split(".")[0], module.split(".")[0]))
    lock = (repo.root() / "requirements.lock").read_text(encoding="utf-8")
    packages = (requirement(text.split(" ")[0], "", line) for line, text in entries(lock))
    exact = next((found.exact for found in packages if found and found.name == name), None)
    installs = [each for each in one.shipped if each.tool != "conda"]
    if exact is None or not installs:
        remedy = f"add {name}==<version> to the image's requirements"
        what = f"requirements.lock has no {name}" if exact is None else "nothing installs packages here"
        details = {"rule": "imports", "file": one.source, "line": one.dockerfile.final.line}
        return Verdict(State.FAIL, f"{module} cannot be imported, and {what}", [module], remedy, details)
    pinned = f"{name}=={exact}"
    last = installs[-1]
    files = [one.context / each.file for each in last.packages if each.file != one.source]
    if files and files[-1] in texts:
        texts[files[-1]] = texts[files[-1]].rstrip("\n") + f"\n{pinned}\n"
        return None
    lines = texts[path].split("\n")
    packages_here = [each for each in last.packages if each.file == one.source]
    at = (packages_here[-1].line if packages_here else last.instruction.line) - 1
    after = packages_here[-1].text if packages_here else "install"
    lines[at] = lines[at].replace(after, f"{after} {pinned}", 1)
    texts[path] = "\n".join(lines)
    return None
