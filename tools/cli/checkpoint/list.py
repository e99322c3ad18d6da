"""List the steps that are committed."""

from tools.cli.checkpoint._trainer import about, size
from tools.cli.sample import run_directory
from tools.core import output


def command(run: str | None, name: str | None, as_json: bool) -> None:
    found = about("list", run_directory(run, name))
    if as_json:
        output.data(found)
        return
    if not found["checkpoints"]:
        output.line(f"{found['run']}: no committed checkpoint yet")
    output.table((f"step {each['step']}", each["problem"] or size(each)) for each in found["checkpoints"])
    for name in found["refused"]:
        output.line(f"  {name}: failed verification, kept as evidence")
