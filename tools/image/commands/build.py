"""Build an image with the Docker engine.

WHAT is an image under images/, a directory with a Dockerfile, or a Dockerfile. Success is said only when the
engine has the image under its name; size, layers, commit and duration are kept in local/images/<name>.json,
the engine's whole output in <name>.log beside it. A failed build ends in one cause with its line and what to
do; what a retry can cure (the network) is tried three times.

Without --tag-from the tag is trainyard's version, which is what cells name.

\b
Examples:
  yard image build trainer-cpu
  yard image build trainer-cpu --build-arg BASE=my-registry/python:3.12@sha256:...
  yard image build . --tag-from describe --repository 123456789012.dkr.ecr.us-east-1.amazonaws.com/team/train
"""

from __future__ import annotations

from dataclasses import asdict

import click

from tools import __version__, output, repo
from tools.image import build as building
from tools.image import context, smoke, tags
from tools.image.commands.test import exit_with
from tools.image.engine import Engine
from tools.image.judge import find
from tools.image.options import arguments
from tools.verdict import Verdict


@click.command(help=__doc__, short_help="build an image with the Docker engine")
@click.argument("what", metavar="WHAT")
@click.option(
    "--context", "root", metavar="DIR", help="What is sent to the engine (default: WHAT's directory)."
)
@click.option("--build-arg", "given", multiple=True, metavar="NAME=VALUE", help="As docker build takes it.")
@click.option(
    "--secret", "secrets", multiple=True, metavar="SPEC", help="As docker build takes it (BuildKit)."
)
@click.option(
    "--repository", metavar="NAME", help="The image's name without a tag (localhost/trainyard/NAME)."
)
@click.option("--tag-from", type=click.Choice(tags.POLICIES), help="Where the tag comes from.")
@click.option("--platform", metavar="OS/ARCH", help="What the nodes are (linux/amd64).")
@click.option("--context-limit", type=click.FloatRange(min=0, min_open=True), default=2.0, metavar="GIB")
@click.option(
    "--test", "level", type=click.Choice(smoke.LEVELS), help="Then try what it does, up to this level."
)
@click.option("--json", "as_json", is_flag=True, help="Print the record, or the cause, as JSON.")
def command(
    what: str,
    root: str | None,
    given: tuple[str, ...],
    secrets: tuple[str, ...],
    repository: str | None,
    tag_from: str | None,
    platform: str | None,
    context_limit: float,
    level: str | None,
    as_json: bool,
) -> None:
    target = find(what, root)
    tag = tags.tag(tag_from, target.context) if tag_from else __version__
    name = f"{repository or f'{building.NAMESPACE}/{target.name}'}:{tag}"
    wish = building.Wish(
        target=target,
        names=(name,),
        arguments=building.labels(target) | arguments(given),
        secrets=secrets,
        platform=platform,
        limit=int(context_limit * context.GIB),
    )
    try:
        record, _ = building.build(wish, Engine(), output.note)
    except building.BuildFailed as problem:
        _failed(problem, as_json)
        raise click.exceptions.Exit(1) from None
    if not as_json:
        output.table(building.summary(record), indent="")
        output.line(f"record: {repo.shown(building.record_path(record.name))}")
    tried = _try(record.id, level, as_json) if level else []
    if as_json:
        output.data({**asdict(record), "tests": [verdict.as_dict() for verdict in tried]})
    exit_with(tried)


def _try(image: str, level: str, quiet: bool) -> list[Verdict]:
    found = []
    for verdict in smoke.trial(image, level, Engine()):
        found.append(verdict)
        if not quiet:
            output.verdict(verdict)
    return found


def _failed(problem: building.BuildFailed, as_json: bool) -> None:
    found = problem.cause
    if as_json:
        output.data({**asdict(found), "attempts": problem.attempts, "log": str(problem.log)})
        return
    output.error(f"not built: {found.kind}: {found.line}", found.remedy)
    if found.step:
        output.note(f"  at: {found.step}")
    output.note(f"  log: {repo.shown(problem.log)}")
