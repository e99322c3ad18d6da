"""The site: zensical reads a copy of the pages in which every link stays inside the site."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from docs.links import DOCS, FENCE, LINK, README, is_external, pages, site_path, target

SITE_PAGES, STYLE = "build/docs", "site.css"


def write_site_pages(root: Path, directory: Path) -> None:
    """Copy the pages to `directory`; a source file that one of them links to becomes a page as well."""
    texts = {page: (root / page).read_text(encoding="utf-8") for page in pages(root)}
    sources: set[str] = set()
    shutil.rmtree(directory, ignore_errors=True)
    write(directory / STYLE, (root / DOCS / STYLE).read_text(encoding="utf-8"))
    for page, text in texts.items():

        def inside(found: re.Match[str], page: str = page) -> str:
            if is_external(found[1]) or found[1].startswith("#"):
                return found[0]
            path, anchor = target(page, found[1])
            if (root / path).is_dir():
                path = f"{path}/{README}" if path else README
            if path not in texts:
                sources.add(path)
            depth = "../" * site_path(page).count("/")
            return found[0].replace(found[1], depth + site_path(path) + (f"#{anchor}" if anchor else ""))

        write(
            directory / site_path(page),
            _outside_code(text, functools.partial(LINK.sub, inside)),
        )
    for source in sources:
        text = (root / source).read_text(encoding="utf-8")
        kind = {".py": "python", ".yaml": "yaml", ".toml": "toml"}.get(Path(source).suffix, "text")
        write(directory / site_path(source), f"# {Path(source).name}\n\n`{source}`\n\n````{kind}\n{text}````\n")


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to what stands between fenced blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def write(path: Path, text: str) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def build_site(root: Path) -> int:
    """Build the site; zensical's own warnings fail it too."""
    write_site_pages(root, root / SITE_PAGES)
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run([program, "build", "--strict"], cwd=root, check=False).returncode


def serve_site(root: Path) -> None:
    """Serve the site and copy the pages again after each change, until Ctrl-C."""
    write_site_pages(root, root / SITE_PAGES)
    server = subprocess.Popen([Path(sys.executable).with_name("zensical"), "serve"], cwd=root)
    try:
        seen = 0.0
        while server.poll() is None:
            newest = max((root / page).stat().st_mtime for page in pages(root))
            if seen and newest != seen:
                write_site_pages(root, root / SITE_PAGES)
            seen = newest
            time.sleep(1)
    except KeyboardInterrupt:
        server.wait()
