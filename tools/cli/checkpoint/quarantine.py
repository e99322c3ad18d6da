"""Set one step aside, so that no run continues from it."""

from tools.cli.checkpoint._place import Place, confirm, place
from tools.core import UserError, output
from training.checkpoints import Quarantine


@place
def command(place: Place, step: int, yes: bool, as_json: bool) -> None:
    if as_json and not yes:
        raise UserError("--json cannot ask for confirmation", "add --yes")
    found = place.ask("quarantine", kind=Quarantine, step=step)
    newest = found["newest"]
    left = "no checkpoint is left, so training would start from scratch" if newest is None else (
        f"the newest one is then step {newest}"
    )  # fmt: skip
    confirm(f"set step {step} of {found['run']} aside ({left})", [], yes)
    found = place.ask("quarantine", kind=Quarantine, step=step, now=True)
    output.answer(found, [f"step {step} is kept as {found['name']}; {left}"], as_json)
