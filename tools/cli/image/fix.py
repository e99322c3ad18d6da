"""Repair a Dockerfile with the smallest change, shown as a diff that `git apply` takes."""

import click

from tools.cli.image._options import arguments, exit_code
from tools.core import Verdict, output, repo
from tools.image import Engine, smoke
from tools.image.fix import fix
from tools.image.rules.evaluate import find


def command(
    what: str,
    root: str | None,
    given: tuple[str, ...],
    image: str | None,
    modules: tuple[str, ...],
    write: bool,
    as_json: bool,
) -> int:
    if modules and not image:
        raise click.UsageError("--module needs --image")
    missing = smoke.missing(image, Engine(), modules) if image else ()
    fixed = fix(find(what, root), arguments(given), missing)
    written = fixed.write() if write else []
    if as_json:
        left = [verdict.as_dict() for verdict in fixed.left]
        found = {"diff": fixed.diff, "repaired": fixed.done, "left": left, "written": list(map(str, written))}
        output.data({"verdict": fixed.state.value, **found})
    else:
        if fixed.diff:
            output.block(fixed.diff)
        for text in fixed.done:
            output.note(f"repaired {text}")
        for verdict in fixed.left:
            _show_left(verdict)
        if written:
            output.note(f"wrote {', '.join(repo.shown(path) for path in written)}")
        elif fixed.diff:
            output.note("nothing was written; --write changes the files")
        elif not fixed.left:
            output.note("nothing to repair")
    return exit_code(fixed.left)


def _show_left(verdict: Verdict) -> None:
    output.note(f"left {verdict.state.value} {verdict.details['rule']}: {verdict.summary}")
    output.note(f"  {verdict.evidence[0]}")
    if reason := verdict.details.get("why_left"):
        output.note(f"  not repaired: {reason}")
    output.note(f"  fix: {verdict.remedy}")
