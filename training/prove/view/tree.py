"""Trees of files that a script has made: their names and contents are data."""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..records import FoundFile

MOST_FILES = 20000
_PIECE, _OVERLAP, _SEARCHED = 1 << 20, 4096, 64 << 20


def entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a directory, without following links."""
    waiting = [str(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                rows = sorted(found, key=lambda one: one.name)
        except OSError:
            continue
        for row in rows:
            yield row
            if row.is_dir(follow_symlinks=False):
                waiting.append(row.path)


def size(root: Path) -> int:
    """Return what a tree takes on disk, in bytes."""
    total = 0
    for row in entries(root):
        with contextlib.suppress(OSError):
            total += row.stat(follow_symlinks=False).st_blocks * 512
    return total


def changed(upper: Path, lower: Path | None, shown: str, kept: bool, secrets: dict[str, str]) -> Iterator[FoundFile]:
    """Yield the files of `upper` that `lower` has not, or has with another content. `shown`: path for the script."""
    shapes = patterns(secrets)
    for number, row in enumerate(entries(upper)):
        if number >= MOST_FILES:
            return
        try:
            found = row.stat(follow_symlinks=False)
            inside = os.path.relpath(row.path, str(upper))
            if stat.S_ISREG(found.st_mode) and not _same(row.path, lower, inside):
                path = os.path.join(shown, inside)
                yield FoundFile(path, found.st_size, kept, secret(row.path, shapes))
        except OSError:
            continue


def _same(path: str, lower: Path | None, inside: str) -> bool:
    """Whether a file was copied up and not changed."""
    if lower is None:
        return False
    try:
        before = os.lstat(str(lower / inside))
        if not stat.S_ISREG(before.st_mode) or before.st_size != os.lstat(path).st_size:
            return False
        return filecmp.cmp(path, str(lower / inside), shallow=True)
    except OSError:
        return False


def layer(compiled: Path, place: str) -> Path:
    """Return the directory of `compiled` for what Python compiled below a place."""
    return compiled / hashlib.sha256(os.fsencode(place)).hexdigest()[:16]


def take_compiled(upper: Path, target: Path) -> None:
    """Move the modules that Python compiled from a tree to the same places below `target`."""
    for row in entries(upper):
        directory, name = os.path.split(row.path)
        if not name.endswith(".pyc") or os.path.basename(directory) != "__pycache__":
            continue
        inside = os.path.relpath(directory, str(upper))
        with contextlib.suppress(OSError):  # Python compiles it again
            if row.is_file(follow_symlinks=False):
                _directories(upper, target, inside)
                os.replace(row.path, str(target / inside / name))
                os.unlink(row.path)  # a rename leaves two links to one file


def put_compiled(source: Path, upper: Path) -> None:
    """Show the modules of `take_compiled` in another tree."""
    for row in entries(source):
        inside = os.path.relpath(row.path, str(source))
        with contextlib.suppress(OSError):
            if row.is_dir(follow_symlinks=False):
                _directories(source, upper, inside)
            else:
                os.link(row.path, str(upper / inside))


def _directories(source: Path, target: Path, inside: str) -> None:
    """Make the directories of `inside` below `target` with the owners, rights and times that those of `source` have."""
    for path in (*reversed(Path(inside).parents), Path(inside)):
        made, like = target / path, (source / path).lstat()
        if made.is_dir():
            continue
        made.mkdir(parents=True)
        if like.st_uid != os.geteuid() or like.st_gid != os.getegid():
            os.chown(made, like.st_uid, like.st_gid)
        made.chmod(stat.S_IMODE(like.st_mode))
        os.utime(made, ns=(like.st_atime_ns, like.st_mtime_ns))


def patterns(secrets: dict[str, str]) -> list[tuple[str, re.Pattern[bytes]]]:
    """Return the shapes of secrets by their names."""
    return [(name, re.compile(text.encode())) for name, text in secrets.items()]


def secret(path: str, shapes: list[tuple[str, re.Pattern[bytes]]]) -> str:
    """Return the name of a secret that a file holds, or an empty text. Raises OSError."""
    if not shapes:
        return ""
    left, before = _SEARCHED, b""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        while left > 0:
            piece = file.read(_PIECE)
            if not piece:
                return ""
            text = before + piece
            for name, pattern in shapes:
                if pattern.search(text):
                    return name
            before, left = text[-_OVERLAP:], left - len(piece)
    return ""


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree with links, attributes and the marks of removed files of an overlay. Raises OSError."""
    target.mkdir(parents=True, exist_ok=True)
    copy_inside(source, target)
    shutil.copystat(str(source), str(target))


def copy_inside(source: Path, target: Path) -> None:
    """Copy what is in a directory to another one, which keeps its own attributes: it may be a mount. Raises OSError."""
    with os.scandir(str(source)) as rows:
        for row in rows:
            mode = row.stat(follow_symlinks=False).st_mode
            to = target / row.name
            if stat.S_ISDIR(mode):
                copy_tree(Path(row.path), to)
            elif stat.S_ISLNK(mode) or stat.S_ISREG(mode):
                shutil.copy2(row.path, str(to), follow_symlinks=False)
            elif stat.S_ISCHR(mode):
                os.mknod(str(to), mode, 0)


def remove_tree(path: Path) -> None:
    """Remove a tree, also directories without rights. What cannot be removed is left."""

    def again(function: object, name: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            os.chmod(name, 0o700)
            shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)

    shutil.rmtree(str(path), onerror=again)


def not_ignored(directory: Path) -> list[str]:
    """Return the files that git does not ignore, relative to a directory; without git all of them."""
    command = ["git", "-C", str(directory), "ls-files", "-coz", "--exclude-standard", "--deduplicate"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode == 0:
            return [name for name in os.fsdecode(done.stdout).split("\0") if name]
    return [os.path.relpath(row.path, str(directory)) for row in entries(directory)
            if not row.is_dir(follow_symlinks=False)]  # fmt: skip
