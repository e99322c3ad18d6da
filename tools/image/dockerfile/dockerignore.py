"""The files of a build context that .dockerignore does not exclude.

The rules are those of moby/patternmatcher: patterns start at the context, `**` crosses directories, the last
match wins, `!` includes again.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.core import UserError
from training.run.files import read_bounded

LARGEST = 2**16  # bytes of a .dockerignore
MOST_WILD = 6  # wildcards of a pattern; each one multiplies the time of a name that almost matches
WILD = re.compile(r"[*?\[\\]")


@dataclass(frozen=True)
class Ignore:
    """The patterns of one .dockerignore, in order."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()
    included: tuple[str, ...] = ()  # of the patterns with `!`, the part before the first wildcard

    def excludes(self, path: str) -> bool:
        """Return whether the file `path`, relative to the context, is excluded."""
        excluded = False
        parents = path.split("/")
        names = ["/".join(parents[: number + 1]) for number in range(len(parents))]
        for pattern, exclude in self.patterns:
            if exclude != excluded and any(pattern.fullmatch(name) for name in names):
                excluded = exclude
        return excluded

    def empties(self, directory: str) -> bool:
        """Return whether nothing below an excluded directory can be included."""
        meets = (one + "/" for one in self.included)
        below = directory + "/"
        return self.excludes(directory) and not any(
            one.startswith(below) or below.startswith(one) or one == "/" for one in meets
        )


def read(context: Path, dockerfile: Path | None = None) -> Ignore:
    """Return the patterns of `<Dockerfile>.dockerignore` if it exists, else of `.dockerignore`."""
    beside = dockerfile.with_name(dockerfile.name + ".dockerignore") if dockerfile else None
    for path in (beside, context / ".dockerignore"):
        if path is not None and path.is_file():
            return parse(read_bounded(path, LARGEST, follow=True).decode(errors="replace"))
    return Ignore()


def parse(text: str) -> Ignore:
    found, included = [], []
    for line in text.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        exclude = not pattern.startswith("!")
        pattern = os.path.normpath(pattern.removeprefix("!").strip()).strip("/")
        if pattern not in ("", "."):
            if pattern.replace("**", "*").count("*") > MOST_WILD:
                raise UserError(f".dockerignore: {pattern[:80]}: a pattern has at most {MOST_WILD} wildcards")
            found.append((_compiled(pattern), exclude))
            if not exclude:
                wild = WILD.search(pattern)
                included.append(pattern[: wild.start()].rpartition("/")[0] if wild else pattern)
    return Ignore(tuple(found), tuple(included))


def files(context: Path, ignore: Ignore) -> Iterator[tuple[str, int]]:
    """Yield each included file, relative to the context, with its size in bytes.

    A link is sent as a link, without its target, also if that is a directory.
    """
    for directory, names, found in os.walk(context):
        below = Path(directory).relative_to(context).as_posix()
        prefix = "" if below == "." else below + "/"
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        names[:] = sorted(name for name in names if not ignore.empties(prefix + name))
        for name in sorted([*found, *links]):
            status = (Path(directory) / name).lstat()
            sent = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
            if sent and not ignore.excludes(prefix + name):
                yield prefix + name, status.st_size


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(_translate(pattern))
    except (re.error, OverflowError, RecursionError):
        raise UserError(f".dockerignore: {pattern[:80]}: not a pattern") from None


def _translate(pattern: str) -> str:
    out, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            out, at = out + "(?:.*/)?", at + 3
        elif rest.startswith("**"):
            out, at = out + ".*", at + 2
        elif rest[0] == "*":
            out, at = out + "[^/]*", at + len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            out, at = out + "[^/]", at + 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            out, at = out + "[" + rest[1:end].replace("\\", "\\\\") + "]", at + end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            out, at = out + re.escape(rest[1]), at + 2
        else:
            out, at = out + re.escape(rest[0]), at + 1
    return out
