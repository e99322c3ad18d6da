"""The working tree as git would commit it, in another place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.core import repo


def copy(target: Path) -> Path:
    """Copy every file that git tracks or would add to `target`, without runs, caches and the environment."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=repo.root(), capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source = repo.root() / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target
