"""Repair a Dockerfile with the smallest change, shown as a diff.

Repaired are: a base image or index whose CUDA does not match torch, a torchvision or torchaudio for another
torch, an ENTRYPOINT or CMD in shell form, a root user, and with --image a module that cannot be imported in
the built image. Nothing is written without --write. Findings that cannot be repaired are listed.

\b
Examples:
  yard image fix .
  yard image fix docker/Dockerfile --context . --write
  yard image fix . --image localhost/trainyard/train:0.1.0 --module datasets

\b
Exit codes: 0 nothing is left, 1 a finding is left, 2 no such file.
"""

from __future__ import annotations

import click

from tools.cli.image._options import BUILD_ARG, CONTEXT, arguments
from tools.core import output, repo
from tools.image import smoke
from tools.image.engine import Engine
from tools.image.fix import fix
from tools.image.rules.evaluate import find


@click.command(help=__doc__, short_help="repair a Dockerfile, as a diff")
@click.argument("what", metavar="WHAT")
@CONTEXT
@BUILD_ARG
@click.option("--image", metavar="IMAGE", help="Import modules in this built image, and add missing ones.")
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="With --image: import these, not the trainer's.",
)
@click.option("--write", is_flag=True, help="Change the files.")
@click.option("--json", "as_json", is_flag=True, help="Print diff, repairs and what is left as JSON.")
def command(
    what: str,
    root: str | None,
    given: tuple[str, ...],
    image: str | None,
    modules: tuple[str, ...],
    write: bool,
    as_json: bool,
) -> None:
    if modules and not image:
        raise click.UsageError("--module needs --image")
    missing = smoke.missing(image, Engine(), modules) if image else ()
    fixed = fix(find(what, root), arguments(given), missing)
    written = fixed.write() if write else []
    if as_json:
        left = [verdict.as_dict() for verdict in fixed.left]
        paths = list(map(str, written))
        output.data({"diff": fixed.diff, "repaired": fixed.done, "left": left, "written": paths})
    else:
        if fixed.diff:
            output.block(fixed.diff)
        for text in fixed.done:
            output.line(f"repaired {text}")
        for verdict in fixed.left:
            output.line(f"left {verdict.details['rule']}: {verdict.summary}")
            output.line(f"  {verdict.evidence[0]}")
            output.line(f"  fix: {verdict.remedy}")
        if written:
            output.line(f"wrote {', '.join(repo.shown(path) for path in written)}")
        elif fixed.diff:
            output.line("nothing was written; --write changes the files")
        elif not fixed.left:
            output.line("nothing to repair")
    if fixed.left:
        raise click.exceptions.Exit(1)
