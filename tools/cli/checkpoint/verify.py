"""Hash every byte of the checkpoints and compare with their manifests."""

from pathlib import Path

from tools.cli.checkpoint._place import Place, place, size
from tools.core import State, Verdict, output
from training.checkpoints import Listing, Row

_NONE_LEFT = {
    True: "none of them loads: keep a copy of the directory, and start from an older copy or from scratch",
    False: "verify the other steps too: a run continues from the newest good one",
}


@place
def command(place: Place, step: int | None, key: Path | None, as_json: bool) -> int:
    found = place.ask("verify", kind=Listing, step=step, key=key)["checkpoints"]
    unread = [each for each in found if each.get("unread")]
    bad = [each for each in found if each["problem"] and each not in unread]
    evidence = [f"step {each['step']}: {each['problem'] or _good(each)}" for each in found]
    if bad:
        summary = f"{output.count(len(bad), 'checkpoint')} of {len(found)} would be refused"
        newest = max((each["step"] for each in found if not each["problem"]), default=None)
        remedy = f"none needed: a run continues from step {newest}" if newest is not None else _NONE_LEFT[step is None]
        result = Verdict(State.FAIL, summary, evidence, remedy, {"checkpoints": found})
    elif unread:
        summary = f"{output.count(len(unread), 'checkpoint')} of {len(found)} cannot be read here"
        result = Verdict(State.CANNOT_TELL, summary, evidence, "repeat as a user who can", {"checkpoints": found})
    else:
        summary = f"{output.count(len(found), 'checkpoint')}: every byte is as it was written"
        result = Verdict(State.PASS, summary, evidence, details={"checkpoints": found})
    output.verdict(result, as_json)
    return result.state.exit_code


def _good(checkpoint: Row) -> str:
    signer = checkpoint["signed_by"]
    signed = "no (no key given)" if signer is None else f"yes (key {signer})"
    return f"{size(checkpoint)}; integrity: ok; authenticated: {signed}"
