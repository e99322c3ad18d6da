"""Builds the agent as one file: `python -m training.agent.build agent.pyz`.

The file is a zip archive behind a few lines of shell. It runs by itself or with `python3 agent.pyz`. On
PYTHONPATH it gives a script the package `trainyard`. Our own package `training` is `trainyard.training` there
and hides no package of the user. Equal sources give equal bytes.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTED = ("training.agent.main", "training.agent.api", "training.agent.installed", "training.pod.preload")
PACKAGE = "trainyard"
OLDEST = (3, 8)  # Python in an image
_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can hold
_NAME = re.compile(r'(?m)^( {0,40}(?:from|import) |_API = ")training\b')

_SHELL = """\
#!/bin/sh
# The agent of trainyard. What follows these lines is a zip archive, which Python runs.
for name in python3 python python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
  if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then
    exec "$name" "$0" "$@"
  fi
done
echo "agent: the image has no Python 3.8 or newer, which the agent needs" >&2
exit 78
"""
_MAIN = """\
import sys

if sys.version_info < (3, 8):
    sys.stderr.write("agent: Python 3.8 or newer is needed, this is %d.%d\\\\n" % sys.version_info[:2])
    sys.exit(78)
if __name__ == "__main__":
    from trainyard.training.agent.main import main

    main(sys.path[0])
"""


def needed(modules: tuple[str, ...] = STARTED) -> list[Path]:
    """Return the files of these modules, of all that they import from `training`, and of their packages."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += _imports(path)
        waiting += [name.rpartition(".")[0]] * ("." in name)
    return sorted(found.values())


def _file_of(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Yield the names that a file imports from `training`; some are not modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("training"):
            yield str(node.module)
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("training"))


def contents() -> dict[str, str]:
    """Return the archive's files by name."""
    files = {f"{PACKAGE}/{path.relative_to(ROOT).as_posix()}": path for path in needed()}
    files[f"{PACKAGE}/__init__.py"] = ROOT / "training/agent/trainyard/__init__.py"
    proof = ROOT / "training/prove"  # `yard prove --submit` unpacks it in the pod
    files.update({f"{PACKAGE}/training/prove/{path.relative_to(proof).as_posix()}": path
                  for path in proof.rglob("*.py")})  # fmt: skip
    guard = ROOT / "training/guard"
    files.update({path.relative_to(guard).as_posix(): path for path in guard.rglob("*") if _is_source(path)})
    texts = {name: _NAME.sub(rf"\1{PACKAGE}.training", path.read_text("utf-8")) for name, path in files.items()}
    return {"__main__.py": _MAIN, **texts}


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def build(target: Path) -> None:
    """Write the agent to `target`. Raises OSError."""
    with target.open("wb") as file:
        file.write(_SHELL.encode())
        with zipfile.ZipFile(file, "w") as archive:
            for name, text in sorted(contents().items()):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, text)
    target.chmod(0o755)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name the file to write: python -m training.agent.build agent.pyz")
    build(Path(sys.argv[1]))
