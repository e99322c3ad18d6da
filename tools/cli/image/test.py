"""Test what an image does before it is pushed."""

import click

from tools.cli.image._options import exit_code, local_name, run_tests
from tools.core import output
from tools.image import smoke


@click.option(
    "--level", type=click.Choice(smoke.LEVELS), default="standard", show_default=True, help="Test up to this level."
)
def command(name: str, level: str, modules: tuple[str, ...], as_json: bool) -> int:
    verdicts = run_tests(local_name(name), level, modules, as_json)
    if as_json:
        output.data([verdict.as_dict() for verdict in verdicts])
    return exit_code(verdicts)
