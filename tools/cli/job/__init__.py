"""Submit a job to a cluster, watch it, and find out why it does not train."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click

from tools.cli._lazy_group import LazyGroup

EPILOG = """\b
Examples:
  yard job why cpu-llama-tiny-train
  yard job why overlays/p5/llama-3-1-8b -n team-a --context staging

\b
JOB is a job's name, KIND/NAME such as jobset/x, or a cell. It may be omitted if the namespace has only one
job."""


HERE = Path(__file__).resolve().parent


@click.group(name="job", cls=LazyGroup, directory=HERE, package=__name__, epilog=EPILOG)
def command() -> None:
    """Jobs on a cluster, from submit to why."""
    for stream in (sys.stdout, sys.stderr):  # the terminal's encoding may lack characters of a log
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
