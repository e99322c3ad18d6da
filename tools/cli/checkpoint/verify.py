"""Hash every byte of the checkpoints and compare with their manifests.

Digests show damage. Only a signature shows who wrote a checkpoint: with a key, a checkpoint that is not
signed with it, or is signed for another run, is refused.

\b
Example: yard checkpoint verify cpu-llama-tiny-train --key signing-key
Exit codes: 0 all are good, 1 one is damaged or not signed, 2 bad input or no checkpoint.
"""

from pathlib import Path
from typing import Any

import click

from tools.cli.checkpoint._trainer import about, size
from tools.cli.sample import run_directory, which
from tools.core import output
from tools.core.verdict import State, Verdict


@click.command(name="verify", help=__doc__)
@which
@click.option("--step", type=click.IntRange(0), metavar="N", help="Verify step N only.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Verify the signatures with the keys in FILE, one in each line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def command(run: str | None, name: str | None, step: int | None, key: Path | None, as_json: bool) -> None:
    found = about("verify", run_directory(run, name), step, key=key)["checkpoints"]
    bad = [each for each in found if each["problem"]]
    evidence = [f"step {each['step']}: {each['problem'] or _good(each)}" for each in found]
    if bad:
        summary = f"{output.count(len(bad), 'checkpoint')} of {len(found)} would be refused"
        remedy = "none needed: training continues from the newest good checkpoint"
        result = Verdict(State.FAIL, summary, evidence, remedy, {"checkpoints": found})
    else:
        summary = f"{output.count(len(found), 'checkpoint')}: every byte is as it was written"
        result = Verdict(State.PASS, summary, evidence, details={"checkpoints": found})
    output.verdict(result, as_json)
    raise click.exceptions.Exit(result.state.exit_code)


def _good(checkpoint: dict[str, Any]) -> str:
    signer = checkpoint["signed_by"]
    signed = "no (no key given)" if signer is None else f"yes (key {signer})"
    return f"{size(checkpoint)}; integrity: ok; authenticated: {signed}"
