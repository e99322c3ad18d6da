"""docs/operating.md shows the present output of the commands, and names only commands that exist."""

from __future__ import annotations

import re

import click

from tests.job.pages import BLOCK, PAGE, written
from tools import cli
from tools.kube.manifests import Manifests


def test_the_page_shows_what_why_prints(rendered: dict[str, Manifests]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= 10
    assert written(text, rendered) == text, "run: python -m tests.job.pages"


def test_every_command_of_the_page_exists() -> None:
    job = cli.yard.get_command(click.Context(cli.yard), "job")
    assert isinstance(job, click.Group)
    named = set(re.findall(r"yard job ([a-z0-9-]+)", PAGE.read_text(encoding="utf-8")))
    assert named >= set(job.list_commands(click.Context(job))) - {"list"}
    assert named <= set(job.list_commands(click.Context(job)))
