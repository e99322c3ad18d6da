"""Check, repair, build, test, push and pin container images."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard image check trainer-cuda
  yard image check docker/Dockerfile --context ."""


@click.group(
    name="image",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Container images, from the Dockerfile to the digest in git."""
