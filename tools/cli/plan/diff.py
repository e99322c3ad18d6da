"""Show what the changed cells of overlays/matrix.yaml cost, beside a revision of git."""

import tempfile
from pathlib import Path

from tools.cells import matrix
from tools.cells.memory import room_of
from tools.cli.plan import _shown
from tools.core import UserError, git, output, repo
from tools.plan.outlook import Plan, Run
from training.config import ConfigError

WHEN = ("before", "now")


def command(revision: str, as_json: bool) -> int:
    root = repo.root()
    git.commit(root, revision)
    with tempfile.TemporaryDirectory() as folder:
        git.unpack(root, revision, ["overlays"], Path(folder))
        before = _plans(Path(folder))
    after = _plans(root)
    shown = {name: (before.get(name), after.get(name)) for name in sorted({*before, *after})}
    changed = {name: pair for name, pair in shown.items() if _row(pair[0]) != _row(pair[1])}
    if as_json:
        output.data({name: [plan and plan.as_dict() for plan in pair] for name, pair in changed.items()})
    elif not changed:
        output.line(f"no cell's plan differs from that at {revision}")
    else:
        rows = [(name, when, *_row(plan)) for name in changed for when, plan in zip(WHEN, changed[name], strict=True)]
        output.table([("cell", "", *_shown.HEADS), *rows], indent="", head=True)
        output.line(_together(list(changed.values())))
    return 1 if any(now and not now.memory.fits for _, now in changed.values()) else 0


def _plans(root: Path) -> dict[str, Plan]:
    found = matrix.read(root)
    plans = {}
    for cell in (cell for cell in found.cells if not cell.script):
        config, room = matrix.configuration(root, cell), room_of(root, cell)
        try:
            plans[cell.name] = Plan(Run.of(cell.name, config, cell.nodes, room, cell.instance))
        except ConfigError as problem:
            raise UserError(f"{matrix.MATRIX}:{cell.line}: cells.{cell.hardware}.{cell.model}: {problem}") from problem
    return plans


def _together(pairs: list[tuple[Plan | None, Plan | None]]) -> str:
    """Say what the changed cells cost together."""
    plans = [plan for pair in pairs for plan in pair if plan]
    sums = [sum(plan.cheapest or 0.0 for plan in column if plan) for column in zip(*pairs, strict=True)]
    lacking = sum(plan.cheapest is None for plan in plans)
    without = f", without {output.count(lacking, 'plan')} of unknown cost" if lacking else ""
    return f"together: {_shown.dollars(sums[0])} before, {_shown.dollars(sums[1])} now{without}"


def _row(plan: Plan | None) -> tuple[str, ...]:
    return _shown.row(plan) if plan else ("-",) * len(_shown.HEADS)
