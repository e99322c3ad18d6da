"""Hash every byte of the checkpoints and compare with their manifests."""

from pathlib import Path

from tools.cli.checkpoint._place import Place, place, size
from tools.core import State, Verdict, output
from training.checkpoints import Listing, Row


@place
def command(place: Place, step: int | None, key: Path | None, as_json: bool) -> int:
    found = place.ask("verify", kind=Listing, step=step, key=key)["checkpoints"]
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
    return result.state.exit_code


def _good(checkpoint: Row) -> str:
    signer = checkpoint["signed_by"]
    signed = "no (no key given)" if signer is None else f"yes (key {signer})"
    return f"{size(checkpoint)}; integrity: ok; authenticated: {signed}"
