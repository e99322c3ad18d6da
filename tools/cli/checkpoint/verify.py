"""Hash every byte of the checkpoints and compare with their manifests."""

from __future__ import annotations

import click

from tools.cli.checkpoint._trainer import about, size
from tools.cli.sample import run_directory
from tools.core import output
from tools.core.verdict import State, Verdict


@click.command(name="verify")
@click.argument("run", required=False)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Verify step N only.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def command(run: str | None, step: int | None, as_json: bool) -> None:
    """Hash every byte of the checkpoints and compare with their manifests.

    \b
    Example: yard checkpoint verify cpu-llama-tiny-train
    Exit codes: 0 all are good, 1 one is damaged, 2 bad input or no checkpoint.
    """
    found = about("verify", run_directory(run), step)["checkpoints"]
    bad = [each for each in found if each["problem"]]
    evidence = [f"step {each['step']}: {each['problem'] or size(each)}" for each in found]
    if bad:
        summary = f"{output.count(len(bad), 'checkpoint')} of {len(found)} would be refused"
        remedy = "none needed: training continues from the newest good checkpoint"
        result = Verdict(State.FAIL, summary, evidence, remedy, {"checkpoints": found})
    else:
        summary = f"{output.count(len(found), 'checkpoint')}: every byte is as it was written"
        result = Verdict(State.PASS, summary, evidence, details={"checkpoints": found})
    output.verdict(result, as_json)
    raise click.exceptions.Exit(result.state.exit_code)
