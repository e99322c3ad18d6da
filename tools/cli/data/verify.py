"""Check every file's size and digest."""

from pathlib import Path
from typing import Any

from tools.cli.data._datasets import chosen
from tools.core import State, Verdict, output, repo


def command(datasets: tuple[Path, ...], as_json: bool) -> int:
    verdicts = [_verdict(path) for path in chosen(datasets)]
    output.verdicts(verdicts, as_json)
    return State.FAIL.exit_code if any(verdict.state is State.FAIL for verdict in verdicts) else 0


def _verdict(path: Path) -> Verdict:
    from training.data.errors import DataError
    from training.data.index import verify

    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if size > 1 << 30:
        output.note(f"reading {output.size(size)} of {repo.shown(path)}")
    details: dict[str, Any] = {"directory": str(path)}
    try:
        index = verify(path)
    except DataError as error:
        remedy = f"remove {repo.shown(path)} and prepare it again"
        return Verdict(State.FAIL, f"{repo.shown(path)} is damaged", [str(error)], remedy, details)
    whole = f"{output.count(len(index.files), 'file')}, digest {index.digest}"
    details["digest"] = index.digest
    return Verdict(State.PASS, f"{repo.shown(path)} is whole", [whole], details=details)
