"""Test what an image does before it is pushed."""

import click

from tools.cli.image._options import exit_with, local_name, run_tests
from tools.core import output
from tools.image import smoke


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--level", type=click.Choice(smoke.LEVELS), default="standard", show_default=True)
@click.option("--module", "modules", multiple=True, metavar="NAME", help="Import these instead of the trainer's.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(name: str, level: str, modules: tuple[str, ...], as_json: bool) -> None:
    verdicts = run_tests(local_name(name), level, modules, as_json)
    if as_json:
        output.data([verdict.as_dict() for verdict in verdicts])
    exit_with(verdicts)
