"""Write an image's digest into overlays/images, where all cells read their images from."""

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.core import UserError, repo
from tools.image.build import NAMESPACE

FILE = Path("overlays/images/kustomization.yaml")


def known() -> list[str]:
    """Return the names of the images that cells and services run."""
    files = [path for part in ("overlays/hardware", "base/services") for path in (repo.root() / part).glob("*/*.yaml")]
    named = re.compile(rf"(?m)^ *(?:- )?(?:newName|image): {re.escape(NAMESPACE)}/([a-z0-9-]+)")
    return sorted({name for path in files for name in named.findall(path.read_text(encoding="utf-8"))})


def pin(name: str, repository: str, digest: str, root: Path | None = None) -> str:
    """Make cells and services run `name` as `repository@digest`; return the diff, empty without a change.

    The file is replaced atomically. Raises UserError if nothing runs an image of that name.
    """
    require(name)
    path = (root or repo.root()) / FILE
    before = path.read_text(encoding="utf-8")
    yaml = YAML(typ="rt")
    yaml.width, yaml.preserve_quotes = 1000, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(before)
    data["images"] = _entries(data.get("images") or [], f"{NAMESPACE}/{name}", repository, digest)
    out = io.StringIO()
    yaml.dump(data, out)
    after = out.getvalue()
    if after == before:
        return ""
    repo.write(path, after)
    shown = FILE.as_posix()
    return repo.diff(f"a/{shown}", before, after, f"b/{shown}")


def require(name: str) -> None:
    if name not in known():
        hint = repo.did_you_mean(name, known()) or f"images: {', '.join(known())}"
        raise UserError(f"no cell or service runs an image {name}", hint)


def _entries(images: list[Any], name: str, repository: str, digest: str) -> list[dict[str, str]]:
    others = [dict(one) for one in images if one["name"] != name]
    entry = {"name": name, "newName": repository, "digest": digest}
    return sorted([*others, entry], key=lambda one: str(one["name"]))
