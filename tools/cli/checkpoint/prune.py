"""Delete the checkpoints that the keep rules do not keep."""

from tools.cli.checkpoint._place import Place, confirm, place
from tools.core import UserError, output
from training.checkpoints import Superseded


@place
def command(
    place: Place,
    last: int | None,
    every: int | None,
    best: int | None,
    bad_days: float | None,
    yes: bool,
    as_json: bool,
) -> None:
    if as_json and not yes:
        raise UserError("--json cannot ask for confirmation", "add --yes")
    rules = {"last": last, "every": every, "best": best, "bad_days": bad_days}
    given = {name: value for name, value in rules.items() if value is not None}
    found = place.ask("superseded", kind=Superseded, given=given)
    if found["names"]:
        what = f"{output.count(len(found['names']), 'directory', 'directories')}, {output.size(found['nbytes'])}"
        confirm(f"delete {what} in {found['run']}", found["names"], yes)
        found = place.ask("prune", kind=Superseded, names=found["names"], given=given)
    steps = ", ".join(map(str, found["kept"])) or "none"
    done = f"deleted {len(found['names'])}" if found["names"] else "nothing to delete"
    output.answer(found, [f"{found['run']}: {done}; kept steps: {steps}"], as_json)
