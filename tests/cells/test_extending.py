"""docs/extending.md, done: its files written, its lines put into the matrix, its commands run, in a copy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools import cli
from tools.cells import matrix
from tools.cells.kustomize import Renderer
from tools.core import repo
from training.config.counting import parameters

PAGE = "docs/extending.md"
BLOCK = re.compile(r"(?:^`(?P<path>[^`\n]+)`\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
Objects = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Block:
    """One fenced block of the page: a file's text with its path, or commands."""

    path: str | None
    kind: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield Block(found["path"], found["kind"], found["text"])


def put_into_matrix(root: Path, text: str) -> None:
    """Add lines as the page says: below their hardware; a new hardware at the end."""
    path = root / matrix.MATRIX
    lines = path.read_text(encoding="utf-8").splitlines()
    place = len(lines)
    for line in text.splitlines():
        if re.fullmatch(r"  [\w-]+:", line):
            if line not in lines:
                lines.append(line)
            place = lines.index(line) + 1
        else:
            lines.insert(place, line)
            place += 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_page_does_what_it_says(
    whole_checkout: Path,
    renderer: Renderer,
    objects: Callable[[str], Objects],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = repo.root() / PAGE
    monkeypatch.setattr(repo, "root", lambda: whole_checkout)
    monkeypatch.setattr(repo, "project", lambda: whole_checkout)
    before = {cell.name for cell in matrix.load(whole_checkout)}
    rendered: dict[str, Objects] = {}
    written = []
    for block in blocks(page):
        if block.path == matrix.MATRIX:
            put_into_matrix(whole_checkout, block.text)
        elif block.path is not None:
            path = whole_checkout / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            assert not path.exists(), f"{block.path} is no new file"
            path.write_text(block.text, encoding="utf-8")
            written.append(block.path)
        elif block.kind == "sh":
            for line in block.text.splitlines():
                words = shlex.split(line)
                if words[:2] == ["kubectl", "kustomize"]:
                    rendered[words[2]] = objects(renderer.build(whole_checkout / words[2]))
                else:
                    assert words.pop(0) == "yard"
                    assert cli.invoke(words) == 0, capsys.readouterr().err
    assert len(written) == 2  # the model's Component
    cells = {cell.name: cell for cell in matrix.load(whole_checkout)}
    added = set(cells) - before
    assert {f"{name}/smollm-135m" for name in ("cpu", "g5", "p4d", "p5", "g6")} <= added
    assert {"g5-large/llama-3-1-8b-lora", "lab/llama-3-1-8b-lora"} <= added
    assert not before - set(cells)
    check_jobs(rendered)
    model = matrix.configuration(whole_checkout, cells["g5/smollm-135m"]).model
    assert f"{parameters(model):,}" == "134,515,008"
    assert "does not fit" not in capsys.readouterr().out


def check_jobs(rendered: dict[str, Objects]) -> None:
    """Compare the two rendered cells with what is known of their machines."""
    jobs = {
        path: next(one["spec"] for (kind, _), one in built.items() if kind == "PyTorchJob")
        for path, built in rendered.items()
    }
    assert set(jobs) == {"overlays/g5/smollm-135m", "overlays/lab/llama-3-1-8b-lora"}
    small, large = jobs["overlays/g5/smollm-135m"], jobs["overlays/lab/llama-3-1-8b-lora"]
    assert (small["nprocPerNode"], large["nprocPerNode"]) == ("1", "4")
    (container,) = large["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert container["args"][1] == "training.finetune"
    assert container["image"] == "localhost/trainyard/trainer-cuda:0.1.0"
