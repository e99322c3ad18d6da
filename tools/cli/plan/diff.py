"""Show what the changed cells of overlays/matrix.yaml cost, beside a revision of git."""

import tempfile
from pathlib import Path

from tools.cells import matrix
from tools.cells.memory import plan_of, room_of
from tools.cli.plan import _shown
from tools.core import UserError, git, output, repo
from tools.plan.outlook import Place, Plan

HEADS = (*_shown.HEADS, "storage")
OWN = "unknown: the model of a script of your own"


def command(revision: str, as_json: bool) -> int:
    root = repo.root()
    git.commit(root, revision)
    with tempfile.TemporaryDirectory() as folder:
        git.unpack(root, revision, ["overlays"], Path(folder))
        try:
            before = _plans(Path(folder))
        except UserError as problem:
            raise UserError(f"at {revision}: {problem.message}", problem.hint) from problem
    now = _plans(root)
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    told = {name: tuple(plan and plan.as_dict() for plan in pair) for name, pair in pairs.items()}
    changed = {name: pair for name, pair in pairs.items() if told[name][0] != told[name][1]}
    if as_json:
        output.data({name: told[name] for name in changed})
    elif not changed:
        output.line(f"no cell's plan differs from that at {revision}")
    else:
        rows = [
            (name, when, *_row(plan))
            for name, pair in changed.items() for when, plan in zip(("before", "now"), pair, strict=True)
        ]  # fmt: skip
        output.table([("cell", "", *HEADS), *rows], indent="", head=True)
        output.line(_together(list(changed.values())))
    return 1 if any(isinstance(plan, Plan) and not plan.memory.fits for _, plan in changed.values()) else 0


def _plans(root: Path) -> dict[str, Plan | Place]:
    """Return the plan of each cell; of a script of your own only its machines are known."""
    found: dict[str, Plan | Place] = {}
    for cell in matrix.read(root).cells:
        if cell.script:
            found[cell.name] = Place(cell.name, cell.instance, cell.nodes, room_of(root, cell), OWN)
        else:
            found[cell.name] = plan_of(root, cell)
    return found


def _together(pairs: list[tuple[Plan | Place | None, ...]]) -> str:
    """Say what the changed cells cost together."""
    columns = zip(*pairs, strict=True)
    costs = [[plan.cheapest if isinstance(plan, Plan) else None for plan in column if plan] for column in columns]
    before, now = (sum(filter(None, column)) for column in costs)
    lacking = sum(cost is None for column in costs for cost in column)
    without = f", without {output.count(lacking, 'plan')} of unknown cost" if lacking else ""
    return f"together: {_shown.dollars(before)} before, {_shown.dollars(now)} now{without}"


def _row(plan: Plan | Place | None) -> tuple[str, ...]:
    if plan is None:
        return ("-",) * len(HEADS)
    return (*_shown.row(plan), output.size(plan.stored_bytes) if isinstance(plan, Plan) else "unknown")
