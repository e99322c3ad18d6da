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


def commands() -> dict[str, click.Command]:
    """The commands of `yard job` by name."""
    context = click.Context(cli.yard)
    job = cli.yard.get_command(context, "job")
    assert isinstance(job, click.Group)
    return {name: command for name in job.list_commands(context) if (command := job.get_command(context, name))}


def test_every_command_of_the_page_exists() -> None:
    named = set(re.findall(r"yard job ([a-z0-9-]+)", PAGE.read_text(encoding="utf-8")))
    assert set(commands()) - {"list"} <= named <= set(commands())


def test_every_command_has_an_example_and_exit_codes() -> None:
    for name, command in commands().items():
        assert f"yard job {name}" in str(command.help)
        assert "Exit codes: " in str(command.help), name
