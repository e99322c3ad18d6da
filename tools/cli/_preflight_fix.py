"""`yard preflight --fix`: show the repairs as a diff, write them, and judge what is left."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells import kustomize, locate
from tools.core import UserError, output, repo
from tools.kube.manifests import STANDARD_INPUT, is_from_shell, text_of
from tools.preflight import fix
from tools.preflight.evaluate import Evaluation
from tools.preflight.fix import File, Fix


def run(
    cells: tuple[str, ...],
    every: bool,
    files: tuple[str, ...],
    show: Callable[[Evaluation], None],
    as_data: Callable[[Evaluation], dict[str, object]] | None,
) -> list[Evaluation]:
    """Repair cells and files, and return the verdicts on the results. Prints JSON with `as_data`.

    Raises UserError where a source cannot be repaired; the sources before it are written then.
    """
    files = (*files, *(cell for cell in cells if cell == STANDARD_INPUT))
    cells = tuple(cell for cell in cells if cell != STANDARD_INPUT)
    _refuse(cells, every, files, as_data is not None)
    made = [_standard_input() if name == STANDARD_INPUT else _of_file(Path(name)) for name in files]
    made += [_of_cell(locate.cell_path(name)) for name in cells]
    for one in made:
        if as_data is None:
            one.show_diff()
        one.write()
    if as_data is not None:
        output.data([one.as_dict() | as_data(one.found.left) for one in made])
    else:
        for one in made:
            one.show(show)
    return [one.found.left for one in made]


@dataclass(frozen=True)
class _Repaired:
    """A manifest's repairs, the files that hold them, and whether they render as they should once written."""

    found: Fix
    files: list[File]
    is_right: Callable[[], bool] = lambda: True

    def write(self) -> None:
        fix.write(self.files, self.is_right)

    def show_diff(self) -> None:
        for file in self.files:
            output.block(file.diff())

    def show(self, show: Callable[[Evaluation], None]) -> None:
        for one in self.found.repaired:
            output.line(f"repaired {one.details['rule']}: {one.summary}")
        for file in self.files:
            output.line(f"written: {repo.shown(file.path)}")
        if not self.found.repaired:
            output.line("no finding has a mechanical repair; nothing was written")
        show(self.found.left)

    def as_dict(self) -> dict[str, Any]:
        return {
            "repaired": [one.as_dict() for one in self.found.repaired],
            "files": [{"path": str(file.path), "diff": file.diff()} for file in self.files],
        }


class _Printed(_Repaired):
    """The repairs of standard input: the manifest goes to standard output, all else to standard error."""

    def write(self) -> None:
        pass  # to no file

    def show_diff(self) -> None:
        output.notes(self.files[0].diff())

    def show(self, show: Callable[[Evaluation], None]) -> None:
        for one in self.found.repaired:
            output.note(f"repaired {one.details['rule']}: {one.summary}")
        for one in fix.findings(self.found.left):
            output.note(f"left: {one.state.value} {one.details['rule']}: {one.summary}; fix: {one.remedy}")
        output.block(self.files[0].new, raw=True)


def _standard_input() -> _Repaired:
    source = "standard input"
    text = text_of(STANDARD_INPUT, source)
    found = fix.plan(text, source)
    return _Printed(found, [File(Path(source), text, fix.repaired_text(text, source, found))])


def _of_file(path: Path) -> _Repaired:
    if is_from_shell(path):
        raise UserError(f"{path}: what a command prints has no file to repair", "pipe it to yard preflight --fix -f -")
    text = text_of(path, str(path))
    found = fix.plan(text, str(path))
    new = fix.repaired_text(text, str(path), found)
    return _Repaired(found, [File(path.resolve(), text, new)] if found.changes else [])


def _of_cell(directory: Path) -> _Repaired:
    renderer = kustomize.ensure(repo.root(), output.note)
    found = fix.plan(renderer.build(directory), repo.shown(directory))
    files = fix.in_kustomization(directory, found) if found.changes else []
    return _Repaired(found, files, lambda: fix.renders(directory, found, renderer.build))


def _refuse(cells: tuple[str, ...], every: bool, files: tuple[str, ...], as_json: bool) -> None:
    """Raise UserError for options that make no sense with --fix."""
    if every:
        raise UserError("--fix with --all: name the manifests that it may change")
    if not cells and not files:
        raise UserError("nothing to fix: give a directory, or a file with -f", "yard preflight --fix -f job.yaml")
    if STANDARD_INPUT in files and (as_json or cells or len(files) > 1):
        message = "--fix of standard input prints the manifest: give nothing else, and no --json"
        raise UserError(message, "yard preflight --fix - < job.yaml > fixed.yaml")
