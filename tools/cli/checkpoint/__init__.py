"""List, show, verify and export a run's checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard checkpoint list
  yard checkpoint show cpu-llama-tiny-train
  yard checkpoint verify cpu-llama-tiny-train
  yard checkpoint export cpu-llama-tiny-train --to exported/llama-tiny
  yard checkpoint export cpu-llama-tiny-lora-train --merge --to exported/llama-tiny-tuned

\b
RUN is a run's name, its directory, or a cell. It can be left out when only one run exists."""


@click.group(
    name="checkpoint",
    cls=LazyGroup,
    directory=Path(__file__).resolve().parent,
    package=__name__,
    epilog=EPILOG,
)
def command() -> None:
    """Work with checkpoints: directories committed as a whole, with a digest of every file."""
