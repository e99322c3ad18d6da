"""Check every file's size and digest."""

from pathlib import Path
from typing import Any

from tools.cli.data._datasets import chosen
from tools.core import State, Verdict, output, repo, worst


def command(datasets: tuple[Path, ...], as_json: bool) -> int:
    verdicts = [_verdict(path) for path in chosen(datasets)]
    output.verdicts(verdicts, as_json)
    return worst(verdict.state for verdict in verdicts).exit_code


def _verdict(path: Path) -> Verdict:
    from training.data.errors import DataError
    from training.data.index import verify

    shown, details = repo.shown(path), dict[str, Any](directory=str(path))
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if size > 1 << 30:
        output.note(f"reading {output.size(size)} of {shown}")
    try:
        index = verify(path)
    except DataError as error:
        if isinstance(error.__cause__, PermissionError):
            summary, remedy = f"{shown} cannot be read here", "repeat as a user who can"
            return Verdict(State.CANNOT_TELL, summary, [str(error)], remedy, details)
        return Verdict(State.FAIL, f"{shown} is damaged", [str(error)], f"remove {shown} and prepare it again", details)
    whole = [f"{output.count(len(index.files), 'file')}, digest {index.digest}"]
    return Verdict(State.PASS, f"{shown} is whole", whole, details={**details, "digest": index.digest})
