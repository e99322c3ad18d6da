"""Questions to git, one function each.

A revision comes from a run's file. None that begins with a dash is passed on: git would read it as an option.
"""

import io
import subprocess
import tarfile
from pathlib import Path

from tools.core import command_line
from tools.core.errors import UserError

SECONDS = 300  # for a question to a large repository


def commit(root: Path, text: str) -> str:
    """Return the full commit that `text` names. Raises UserError."""
    done = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    if done.returncode != 0:
        raise UserError(f"no such commit in this clone: {text}", "git fetch, or see git log --oneline")
    return done.stdout.decode().strip()


def has(root: Path, text: str) -> bool:
    return _git(root, "cat-file", "-e", f"{_revision(text)}^{{commit}}").returncode == 0


def is_pushed(root: Path, text: str) -> bool:
    """Return whether a remote branch, as last fetched, has the commit."""
    words = ("branch", "--remotes", f"--contains={_revision(text)}", "--format=%(refname)")
    return bool(answer(root, *words).strip())


def changed(root: Path, *paths: str) -> list[str]:
    """Return the files below `paths` that differ from HEAD, including untracked ones."""
    words = ("status", "--porcelain", "--untracked-files=all", "--no-renames", "-z", "--", *paths)
    return [line[3:] for line in answer(root, *words).split("\0") if line]


def files(root: Path, *paths: str) -> list[str]:
    """Return the files below `paths` that git tracks or would add."""
    words = ("ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *paths)
    return sorted({name for name in answer(root, *words).split("\0") if name})


def files_at(root: Path, revision: str, folder: str) -> list[str]:
    listed = answer(root, "ls-tree", "-r", "-z", "--name-only", _revision(revision), "--", folder)
    return [name for name in listed.split("\0") if name]


def text_at(root: Path, revision: str, path: str) -> str | None:
    """Return a file's text at a revision, or None where the revision has no such file."""
    done = _git(root, "show", f"{_revision(revision)}:{path}")
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def added(root: Path, folder: str) -> dict[str, str]:
    """Return the commit that first added each file ever below `folder`, by the file's path.

    It searches HEAD and the branches that HEAD may have been pushed to, so that an amended commit is still found:
    the upstream branch, the branch of the same name at origin, and origin's default branch.
    """
    name = _git(root, "symbolic-ref", "--short", "--quiet", "HEAD").stdout.decode().strip()
    pushed = ["@{upstream}", *([f"refs/remotes/origin/{name}"] if name else []), "refs/remotes/origin/HEAD"]
    there = [one for one in pushed if _git(root, "rev-parse", "--verify", "--quiet", one).returncode == 0]
    revisions = ["HEAD", *there]
    words = ("log", "-m", "--diff-filter=A", "--format=%x01%H", "--name-only", "--no-renames", *revisions)
    found: dict[str, str] = {}
    for block in answer(root, *words, "--", folder).split("\1"):
        revision, *names = [line for line in block.splitlines() if line] or [""]
        found |= dict.fromkeys(names, revision)  # git lists the newest commit first
    return found


def is_shallow(root: Path) -> bool:
    return answer(root, "rev-parse", "--is-shallow-repository").strip() == "true"


def unpack(root: Path, revision: str, folders: list[str], target: Path) -> None:
    """Extract `folders` of a commit into `target`. Raises UserError where a folder is missing."""
    done = _git(root, "archive", "--format=tar", _revision(revision), "--", *folders)
    if done.returncode != 0:
        said = done.stderr.decode().strip().splitlines()[-1].removeprefix("fatal: ")
        raise UserError(f"commit {revision[:12]}: {said}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")


def _revision(text: str) -> str:
    return command_line.operand(text, "a commit")


def answer(root: Path, *words: str) -> str:
    """Return what git prints. Raises UserError with its last message."""
    done = _git(root, *words)
    if done.returncode != 0:
        said = done.stderr.decode().strip().splitlines() or ["no message"]
        raise UserError(f"git {words[0]}: {said[-1].removeprefix('fatal: ')}")
    return done.stdout.decode(errors="replace")


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return command_line.captured(["git", "-C", str(root), *words], seconds=SECONDS)
    except command_line.TooLarge as problem:
        raise UserError(f"git {words[0]}: the answer has {problem}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"git {words[0]}: no answer within {SECONDS} s", code=3) from None
    except FileNotFoundError:
        raise UserError("no git on PATH", "install git") from None
