"""Show what a run needs, how long it takes and what it costs, with a stated error."""

from tools.cells import knobs as cells_knobs
from tools.cells import outlook
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.cli.plan import _shown
from tools.core import output
from tools.plan.outlook import Plan


@_knobs.knobs
def command(cell: str | None, file: str | None, knobs: Knobs, explain: bool, as_json: bool) -> int:
    plan = outlook.of(cells_knobs.rendered(cell, file, knobs))
    if as_json:
        output.data(plan.as_dict())
    else:
        _shown.whole(plan, explain)
    if isinstance(plan, Plan) and not plan.memory.fits:
        return 1
    return 3 if plan.why_unknown else 0
