"""Try what an image does, before it is pushed.

quick: the modules of the trainer can be imported. standard: torch multiplies, the entrypoint starts, SIGTERM
reaches a rank, the user writes where it should and nowhere else, the variables hold no secret. full: two
containers train a tiny model, one is killed, and both go on from the checkpoint on their volume as if nothing
had happened: every loss is that of the same run without a kill.

NAME is an image under images/ (the last build's), or any image of this engine.

\b
Examples:
  yard image test trainer-cpu
  yard image test my-registry/train:1.2.0 --level standard
  yard image test my/tools:1 --level quick --module pandas --module training
"""

from __future__ import annotations

import click

from tools import __version__
from tools.core import output
from tools.core.verdict import State, Verdict
from tools.image import smoke
from tools.image.build import NAMESPACE, load_record
from tools.image.engine import Engine


@click.command(help=__doc__, short_help="try what an image does")
@click.argument("name", metavar="NAME")
@click.option("--level", type=click.Choice(smoke.LEVELS), default="standard", show_default=True)
@click.option(
    "--module", "modules", multiple=True, metavar="NAME", help="Import these instead of the trainer's."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(name: str, level: str, modules: tuple[str, ...], as_json: bool) -> None:
    found = []
    for verdict in smoke.trial(local_name(name), level, Engine(), output.note, modules):
        found.append(verdict)
        if not as_json:
            output.verdict(verdict)
    if as_json:
        output.data([verdict.as_dict() for verdict in found])
    exit_with(found)


def local_name(name: str) -> str:
    """Return the engine's name of an image: the last build's where only its short name is given."""
    record = load_record(name) if ":" not in name and "/" not in name else None
    if record is not None:
        return record.tags[0]
    return name if ":" in name or "/" in name else f"{NAMESPACE}/{name}:{__version__}"


def exit_with(found: list[Verdict]) -> None:
    """End with the exit code of the worst verdict."""
    states = {verdict.state for verdict in found}
    for state in (State.FAIL, State.CANNOT_TELL):
        if state in states:
            raise click.exceptions.Exit(state.exit_code)
