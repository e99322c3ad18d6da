"""The documentation's pages and their links: each must work on GitHub and in the site."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = "docs"
INDEX, README, CHANGELOG = f"{DOCS}/index.md", "README.md", "CHANGELOG.md"
SITE_CONFIG = "zensical.toml"
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[`~]*$", re.MULTILINE | re.DOTALL)


def pages(root: Path) -> list[str]:
    """Return the documentation's pages: docs/, the pages at the top, each README of a directory."""
    top = [name for name in (README, "CONTRIBUTING.md", CHANGELOG, "SECURITY.md") if (root / name).is_file()]
    found = sorted((root / DOCS).rglob("*.md"))
    for directory in ("base", "overlays", "clusters", "images"):
        found += sorted((root / directory).rglob("README.md"))
    return top + [path.relative_to(root).as_posix() for path in found]


def links(text: str) -> list[str]:
    """Return the targets of a page's links, in their order; code is left out."""
    text = FENCE.sub("", text)
    return LINK.findall(re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text))


def target(page: str, link: str) -> tuple[str, str]:
    """Return the path in the repository and the anchor that a relative link leads to."""
    path, _, anchor = link.partition("#")
    if not path:
        return page, anchor
    parts: list[str] = []
    for part in [*page.split("/")[:-1], *path.rstrip("/").split("/")]:
        if part == "..":
            parts = parts[:-1] if parts else [".."]
        elif part != ".":
            parts.append(part)
    return "/".join(parts), anchor


def is_external(link: str) -> bool:
    """Whether a link leads out of the repository."""
    return re.match(r"[a-z][a-z0-9+.-]*:", link) is not None


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#{1,6} +(.*?) *#*$", FENCE.sub("", text), re.MULTILINE)
    found: set[str] = set()
    for heading in headings:
        own, number = slug(heading), 0
        while (name := f"{own}-{number}" if number else own) in found:
            number += 1
        found.add(name)
    return found


def slug(heading: str) -> str:
    """Return a heading's anchor."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def problems(root: Path) -> list[str]:
    """Return the broken links, the orphans, and what the site's navigation lacks."""
    texts = {page: (root / page).read_text(encoding="utf-8") for page in pages(root)}
    found, leads_to = [], {page: set[str]() for page in texts}
    for page, text in texts.items():
        for link in filter(lambda link: not is_external(link), links(text)):
            path, anchor = target(page, link)
            readme = f"{path}/{README}" if path else README
            if (root / path).is_dir():
                path = readme
            if path.startswith("..") or not (root / path).is_file():
                found.append(f"{page}: {link} leads to no file")
            elif anchor and path in texts and anchor not in anchors(texts[path]):
                found.append(f"{page}: {link} leads to no heading")
            elif path != page and path in texts:
                leads_to[page].add(path)
    reached, todo = {INDEX}, [INDEX]
    while todo:
        new = leads_to[todo.pop()] - reached
        reached |= new
        todo += new
    found += [f"{page}: no link leads here from {INDEX}" for page in texts if page not in reached]
    in_index = {page for page in texts if page.startswith(f"{DOCS}/")} - leads_to[INDEX] - {INDEX}
    found += [f"{INDEX}: has no link to {page}" for page in sorted(in_index)]
    return found + _navigation(root, texts)


def _navigation(root: Path, texts: dict[str, str]) -> list[str]:
    nav = tomllib.loads((root / SITE_CONFIG).read_text(encoding="utf-8"))["project"]["nav"]
    named = set(_leaves(nav))
    expected = {site_path(page): page for page in texts}
    wrong = [f"{SITE_CONFIG}: no page {name}" for name in sorted(named - set(expected))]
    missing = [page for name, page in expected.items() if name not in named and page.startswith(f"{DOCS}/")]
    return wrong + [f"{SITE_CONFIG}: {page} is not in nav" for page in missing]


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _leaves(inner)


def site_path(page: str) -> str:
    """Return a page's path in the site: docs/ is its top, and each README is its directory's index."""
    if page.startswith(f"{DOCS}/") and page.endswith(".md"):
        return page.removeprefix(f"{DOCS}/")
    if not page.endswith(".md"):
        return f"source/{page}.md"
    return page.replace(README, "index.md") if "/" in page else f"project/{page.lower()}"
