"""List the steps that are committed."""

from tools.cli.checkpoint._place import Place, place, size
from tools.core import output
from training.checkpoints import Listing


@place
def command(place: Place, as_json: bool) -> None:
    found = place.ask("list", kind=Listing)
    if as_json:
        output.data(found)
        return
    if not found["checkpoints"]:
        output.line(f"{found['run']}: no committed checkpoint yet")
    output.table((f"step {each['step']}", each["problem"] or size(each)) for each in found["checkpoints"])
    for name, why in found["others"].items():
        output.line(f"  {name}: {why}")
