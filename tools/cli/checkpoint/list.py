"""List the steps that are committed.

\b
Example: yard checkpoint list cpu-llama-tiny-train
Exit codes: 0 listed, 2 bad input.
"""

import click

from tools.cli.checkpoint._trainer import about, size
from tools.cli.sample import run_directory, which
from tools.core import output


@click.command(name="list", help=__doc__)
@which
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
