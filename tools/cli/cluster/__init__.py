"""Look after a cluster: from AWS facts to a cluster, what it can do and costs, and back to nothing."""

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
CLUSTER is a directory under clusters/. Credentials, profile and endpoint are the AWS CLI's own."""


@click.group(
    name="cluster",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Clusters on AWS, from nothing to training and back."""
