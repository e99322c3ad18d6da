"""List the runs of a cluster: their files in git and their state in the cluster."""

from typing import Any

from tools.core import UserError, output, repo
from tools.gitops import check, flux_objects, live
from tools.gitops.run_file import RunFile

COLUMNS = ("run", "file", "commit", "flux", "job")


def command(cluster: str, context: str | None, as_json: bool) -> int:
    directory = flux_objects.find(repo.project(), cluster)
    files = check.run_files(repo.project(), directory)
    problem: UserError | None = None
    try:
        found = live.look(context, flux_objects.team(directory), files)
    except UserError as reason:
        problem, found = reason, [live.Live(one.name, None, None) for one in files]
    rows = [_row(one, {run.name: run for run in files}, problem is None) for one in found]
    if as_json:
        output.data(rows)
    else:
        _show(rows)
    if problem is not None:
        output.error(f"the state in the cluster is unknown: {problem.message}", problem.hint)
        return 3
    return 0


def _row(one: live.Live, files: dict[str, RunFile], asked: bool) -> dict[str, Any]:
    run = files.get(one.name)
    return {
        "run": one.name,
        "file": "yes" if run else "removed",
        "commit": run.commit[:12] if run else "",
        "flux": one.flux if asked else "not asked",
        "job": one.state if asked else "not asked",
        "message": one.message,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    if not rows:
        output.line("no runs")
        return
    head, *lines = output.columns([COLUMNS, *([row[key] for key in COLUMNS] for row in rows)])
    output.line(head)
    for row, line in zip(rows, lines, strict=True):
        output.line(line)
        if row["message"]:
            output.line(f"  {row['message']}")
