"""Repair a Dockerfile with the smallest change, shown as a diff that `git apply` takes.

Repaired are: a CUDA that does not match torch, in the base image or the index; a torchvision or torchaudio
for another torch; an ENTRYPOINT or CMD whose shell keeps SIGTERM; caches of package managers; packages whose
version a lock of the context has; an EFA installer that builds a kernel module; a root user; and with
--image a module that cannot be imported in the built image. A repair that could break the image is left out,
with the reason. Nothing is written without --write.

\b
Examples:
  yard image fix .
  yard image fix docker/Dockerfile --context . --write
  yard image fix . > fix.patch && git apply fix.patch
  yard image fix . --image localhost/trainyard/train:0.1.0 --module datasets

\b
Exit codes, those of `yard image check` after the repairs: 0 PASS or WARN, 1 FAIL, 2 bad input, 3 CANNOT TELL.
"""

import click

from tools.cli.image._options import BUILD_ARG, CONTEXT, arguments, exit_with
from tools.core import output, repo
from tools.core.verdict import Verdict
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
    "--module", "modules", multiple=True, metavar="NAME", help="With --image: import these, not the trainer's."
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
        found = {"diff": fixed.diff, "repaired": fixed.done, "left": left, "written": paths}
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
    exit_with(fixed.left)


def _show_left(verdict: Verdict) -> None:
    output.note(f"left {verdict.state.value} {verdict.details['rule']}: {verdict.summary}")
    output.note(f"  {verdict.evidence[0]}")
    if reason := verdict.details.get("why_left"):
        output.note(f"  not repaired: {reason}")
    output.note(f"  fix: {verdict.remedy}")
