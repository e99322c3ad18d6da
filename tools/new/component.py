"""Writes a Component below overlays/model and its cells into the matrix: all of it, or nothing."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.cells import matrix
from tools.cells.matrix_file import Cell, text_of
from tools.core import UserError, repo

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
Entry = Mapping[str, Any]  # of a cell in the matrix


def project() -> Path:
    """Return the checkout that gets new files. Raises UserError in another directory."""
    root = repo.project()
    if not (root / matrix.MATRIX).is_file():
        message = f"{root} is not a checkout of trainyard: it has no {matrix.MATRIX}"
        raise UserError(message, "run this in the top directory of your clone")
    return root


def write(
    root: Path, name: str, files: Mapping[str, str], cells: Mapping[str, Callable[[matrix.Matrix], Entry]]
) -> list[Cell]:
    """Write overlays/model/`name` and a cell for each hardware in `cells`; return the cells.

    A function in `cells` returns the entry of its cell in the matrix, which has the Component by then. Raises
    UserError, after which all is as before.
    """
    check_name(name, "model")
    directory = root / "overlays/model" / name
    if directory.exists():
        raise UserError(f"overlays/model/{name} exists", "choose another name, or remove it")
    before = text_of(root / matrix.MATRIX, root)
    known = matrix.read(root).machines
    for hardware in cells:
        if hardware not in known:
            hint = repo.did_you_mean(hardware, known) or f"known: {', '.join(known)}"
            raise UserError(f"no such hardware: {hardware}", hint)
    try:
        directory.mkdir(parents=True)
        for file, text in files.items():
            (directory / file).write_text(text, encoding="utf-8")
        for hardware, entry in cells.items():
            add_cell(root / matrix.MATRIX, hardware, name, entry(matrix.read(root)), root)
        matrix.sync(root)
        return [cell for cell in matrix.load(root) if cell.model == name]
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        repo.write(root / matrix.MATRIX, before)
        matrix.sync(root)
        if isinstance(error, OSError):
            raise UserError(f"{directory}: cannot be written: {error.strerror}") from None
        raise


def check_name(name: str, kind: str) -> None:
    """Raise UserError unless `name` can be a Component's, and the part of a pod's name."""
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot be a {kind}'s name", "lower-case letters, digits and dashes, at most 40")


def entry_of(cell: Cell, found: matrix.Matrix) -> Entry:
    """Return the entry of a model's cell in the matrix."""
    default = found.machines[cell.hardware]
    machine = {"instance": cell.instance.name} if cell.instance and cell.instance != default else {}
    return {"nodes": cell.nodes, **machine, **cell.sections, "checkpoint": {"every": 100, "keep": 2}}


def add_cell(path: Path, hardware: str, model: str, entry: Entry, root: Path) -> None:
    """Put a cell first below its hardware in the matrix, or below a new one at the end."""
    rows = [f"    {model}:"]
    for key, value in entry.items():
        rows += [f"      {key}:"] if isinstance(value, Mapping) else [f"      {key}: {value}"]
        rows += [f"        {one}: {value[one]}" for one in value] if isinstance(value, Mapping) else []
    lines = text_of(path, root).rstrip("\n").split("\n")
    cells = line_of(lines, "cells:") or 0
    place = line_of(lines, f"  {hardware}:", cells)
    if place is None:  # below the other cells
        ends = (at for at in range(cells + 1, len(lines)) if re.match(r"[^\s#]", lines[at]))
        end = next(ends, len(lines))
        place, lines = end + 1, [*lines[:end], "", f"  {hardware}:", *lines[end:]]
    repo.write(path, "\n".join([*lines[: place + 1], *rows, *lines[place + 1 :]]) + "\n")


def line_of(lines: list[str], key: str, start: int = 0) -> int | None:
    """Return the place of a line with a key, which may have a comment; None if there is none."""
    found = (at for at in range(start, len(lines)) if re.fullmatch(rf"{re.escape(key)}\s*(?:\s#.*)?", lines[at]))
    return next(found, None)
