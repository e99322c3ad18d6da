"""Check every file's size and digest.

Without DATASET, all datasets under local/data are checked.

\b
Example: yard data verify
Exit codes: 0 all are whole, 1 one is damaged, 2 bad input or no dataset.
"""

from pathlib import Path
from typing import Any

import click

from tools.cli.data._datasets import chosen
from tools.core import output, repo
from tools.core.verdict import State, Verdict


@click.command(name="verify", help=__doc__)
@click.argument("datasets", nargs=-1, metavar="[DATASET...]", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(datasets: tuple[Path, ...], as_json: bool) -> None:
    verdicts = [_verdict(path) for path in chosen(datasets)]
    if as_json:
        output.data([verdict.as_dict() for verdict in verdicts])
    else:
        for verdict in verdicts:
            output.verdict(verdict)
    if any(verdict.state is State.FAIL for verdict in verdicts):
        raise click.exceptions.Exit(State.FAIL.exit_code)


def _verdict(path: Path) -> Verdict:
    from training.data.errors import DataError
    from training.data.index import verify

    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if size > 1 << 30:
        output.note(f"reading {size / 1e9:,.1f} GB of {repo.shown(path)}")
    details: dict[str, Any] = {"directory": str(path)}
    try:
        index = verify(path)
    except DataError as error:
        remedy = f"remove {repo.shown(path)} and prepare it again"
        return Verdict(State.FAIL, f"{repo.shown(path)} is damaged", [str(error)], remedy, details)
    whole = f"{output.count(len(index.files), 'file')}, digest {index.digest}"
    details["digest"] = index.digest
    return Verdict(State.PASS, f"{repo.shown(path)} is whole", [whole], details=details)
