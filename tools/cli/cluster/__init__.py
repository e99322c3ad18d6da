"""Create, check, scale, price and delete clusters on AWS."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard cluster whoami
  yard cluster config gpu
  yard cluster capacity p5.48xlarge 4 --region us-west-2

\b
CLUSTER is a directory under clusters/. Credentials, profile and endpoint are those of the AWS CLI."""


@click.group(
    name="cluster",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Create, check and delete clusters on AWS."""
