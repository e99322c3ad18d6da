"""Write the cells of overlays/matrix.yaml, check them, or print the memory that they need."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard matrix sync
  yard matrix check
  yard matrix memory p5/llama-3-1-8b"""


@click.group(
    name="matrix",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Work with the matrix: overlays/matrix.yaml says which cells overlays/<hardware>/<model> exist."""
