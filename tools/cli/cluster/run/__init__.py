"""Runs in git: write one, list them with their state in the cluster, check them before a push."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard cluster run new overlays/cpu/llama-tiny --cluster cpu-demo --image REGISTRY/trainer-cpu@sha256:...
  yard cluster run list --cluster cpu-demo
  yard cluster run check

\b
A run is one file in clusters/<name>/runs, from which Flux creates a job (docs/flux.md)."""


@click.group(
    name="run",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Runs that Flux creates from files in git."""
