"""Test what an image does before it is pushed.

Levels: quick imports the modules of the trainer. standard also multiplies with torch, starts the
entrypoint, sends SIGTERM to a rank, checks where the user can write, and that no variable holds a secret.
full also trains a tiny model in two containers and kills one: the run must continue from its checkpoint
with the same losses as a run without the kill.

NAME is an image under images/ (the last build), or any image of the engine.

\b
Examples:
  yard image test trainer-cpu
  yard image test my-registry/train:1.2.0 --level standard
  yard image test my/tools:1 --level quick --module pandas --module training

\b
Exit codes: 0 PASS, 1 FAIL, 2 no such image, 3 CANNOT TELL.
"""

import click

from tools.cli.image._options import exit_with, local_name, run_tests
from tools.core import output
from tools.image import smoke


@click.command(help=__doc__, short_help="test what an image does")
@click.argument("name", metavar="NAME")
@click.option("--level", type=click.Choice(smoke.LEVELS), default="standard", show_default=True)
@click.option("--module", "modules", multiple=True, metavar="NAME", help="Import these instead of the trainer's.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(name: str, level: str, modules: tuple[str, ...], as_json: bool) -> None:
    verdicts = run_tests(local_name(name), level, modules, as_json)
    if as_json:
        output.data([verdict.as_dict() for verdict in verdicts])
    exit_with(verdicts)
