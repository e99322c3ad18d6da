"""Show what the changed cells of overlays/matrix.yaml cost, beside a revision of git."""

import tempfile
from pathlib import Path

from tools.cells import matrix
from tools.cells.memory import room_of
from tools.cli.plan import _shown
from tools.core import output, repo
from tools.gitops import git
from tools.plan.memory import GIB
from tools.plan.outlook import Plan, Run

WHEN = ("before", "now")


def command(revision: str, as_json: bool) -> int:
    root = repo.root()
    git.commit(root, revision)
    with tempfile.TemporaryDirectory() as folder:
        git.unpack(root, revision, ["overlays"], Path(folder))
        before = _plans(Path(folder))
    after = _plans(root)
    shown = {name: (before.get(name), after.get(name)) for name in sorted({*before, *after})}
    changed = {name: pair for name, pair in shown.items() if _said(pair[0]) != _said(pair[1])}
    if as_json:
        output.data({name: [plan and plan.as_dict() for plan in pair] for name, pair in changed.items()})
    elif not changed:
        output.line(f"no cell plans otherwise than at {revision}")
    else:
        heads = ("cell", "", "machines", "memory a process", "time", "cost")
        rows = [(name, when, *_said(plan)) for name in changed for when, plan in zip(WHEN, changed[name], strict=True)]
        output.table([heads, *rows], indent="")
    return 1 if any(now and not now.memory.fits for _, now in changed.values()) else 0


def _plans(root: Path) -> dict[str, Plan]:
    found = matrix.read(root)
    plans = {}
    for cell in (cell for cell in found.cells if not cell.script):
        config, room = matrix.configuration(root, cell), room_of(root, cell)
        plans[cell.name] = Plan(Run.of(cell.name, config, cell.nodes, room, cell.instance))
    return plans


def _said(plan: Plan | None) -> tuple[str, str, str, str]:
    """Return a plan's machines, memory, time and cost in words; dashes without a plan."""
    if plan is None:
        return "-", "-", "-", "-"
    need, run, offer = plan.memory, plan.run, plan.offer
    memory = f"{need.needed / GIB:.1f} of {need.room.nbytes / GIB:.1f} GiB{'' if need.fits else ', does not fit'}"
    time = _shown.between(plan.hours, _shown.duration) if plan.hours else "unknown"
    cost = plan.costs[offer] if offer else None
    machines = f"{run.nodes} x {run.instance.name if run.instance else 'pod'}"
    return machines, memory, time, f"{_shown.between(cost, _shown.dollars)} {offer}" if cost else "unknown"
