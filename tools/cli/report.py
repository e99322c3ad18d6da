"""Write a page about runs: curves, where the time went, failures, checkpoints, settings, samples."""

from pathlib import Path

from tools.cli.job import _options
from tools.core import output
from tools.job import report, runs
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, names: tuple[str, ...], to: Path, machine: str | None, as_json: bool) -> None:
    with runs.opened(kubectl, names) as (found, _):  # with names, all of them are read
        size = report.write(to, found, machine)
        line = f"{to}: {output.count(len(found), 'run')}, {size:,} bytes; it needs no other file"
        output.answer({"file": str(to), "bytes": size, "runs": [one.name for one in found]}, [line], as_json)
