"""Where this program's files are, its paths in messages, and the nearest name to a misspelt one."""

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

COMPARED, LONGEST = 300, 256  # names, and characters of one: the comparison is slow
NO_NEWLINE = "\\ No newline at end of file\n"  # the words of diff and git


def root() -> Path:
    """Return the directory that holds base/, overlays/ and tools/: a checkout, or the installed package."""
    return Path(__file__).resolve().parents[2]


def is_checkout() -> bool:
    """Return whether this program runs from a checkout. An installed package is not written to."""
    return (root() / "pyproject.toml").is_file()


def project() -> Path:
    """Return the directory of the user's own files: the checkout, else the working directory."""
    return root() if is_checkout() else Path.cwd()


def local() -> Path:
    """Return the directory that takes the place of the claim `trainyard` on this machine."""
    return project() / "local"


def cache(of: Path | None = None) -> Path:
    """Return the directory for what can be built again, of the program in `of` (default: this one)."""
    if of not in (None, root()) or is_checkout():
        return (of or root()) / ".cache"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "trainyard"


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this program: `train` or `image`."""
    if is_checkout():
        return "make setup"
    import json
    from importlib import metadata  # imported here, because it takes longer than all of `yard --help`

    try:  # where this package came from: an index may have another one of its name
        source = json.loads(metadata.distribution("trainyard").read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        source = ""
    return f"uv tool install 'trainyard[{extra}]{f' @ {source}' if source else ''}'"


def nearest(text: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name most like `text`, or None if no name is similar enough."""
    import difflib

    some = [name for name in itertools.islice(names, COMPARED) if len(name) <= LONGEST]
    matches = difflib.get_close_matches(text, some, n=1, cutoff=cutoff) if len(text) <= LONGEST else []
    return matches[0] if matches else None


def did_you_mean(text: str, names: Iterable[str]) -> str | None:
    """Return the hint with the name most like `text`, or None if no name is similar enough."""
    match = nearest(text, names)
    return f"did you mean {match}?" if match else None


def shown(path: Path) -> str:
    """Return `path` relative to the checkout if it is below it."""
    try:
        return path.relative_to(root()).as_posix()
    except ValueError:
        return str(path)


def diff(name: str, old: str | None, new: str | None, new_name: str = "") -> str:
    """Return a change of a file as a unified diff; None stands for no file."""
    import difflib

    before, after = (re.findall(r"[^\n]*\n|[^\n]+$", text or "") for text in (old, new))
    names = name if old is not None else "/dev/null", (new_name or name) if new is not None else "/dev/null"
    lines = difflib.unified_diff(before, after, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines)


def write(path: Path, text: str) -> None:
    """Replace a file at once: readers find the old text or the new one. Makes its directory, keeps its permissions."""
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
