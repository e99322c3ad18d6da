"""Build an image with the Docker engine.

WHAT is an image under images/, a directory with a Dockerfile, or a Dockerfile. Success is said only when the
engine has the image under its name; size, layers, commit and duration are kept in local/images/<name>.json,
the engine's whole output in <name>.log beside it. A failed build ends in one cause with its line and what to
do; what a retry can cure (the network) is tried three times.

In this order, each step only after the one before it went well: --fix repairs what `yard image check` finds,
in a copy and not in your files; the build; --test, after which --fix adds a module that was missing, and
builds again; --push, which ends with the digest that the registry has.

--remote zips the context as .dockerignore lets it through, uploads it, and builds and pushes on CodeBuild,
with a project and a role of its own for the repository, made where missing. Phases and log lines are printed
as they come, and the digest is the one that ECR has in the end. Ctrl-C stops the build. --cleanup removes all
that was made for the repository's builds: after the build with --remote, and without it at once.

Without --tag-from the tag is trainyard's version, which is what cells name.

\b
Examples:
  yard image build trainer-cpu
  yard image build trainer-cpu --build-arg BASE=my-registry/python:3.12@sha256:...
  yard image build . --fix --test standard
  yard image build . --repository registry.example.com/team/train --tag-from describe --test full --push
  yard image build trainer-cuda --remote --tag-from sha \\
    --repository 123456789012.dkr.ecr.us-east-1.amazonaws.com/team/trainer-cuda
  yard image build trainer-cuda --cleanup \\
    --repository 123456789012.dkr.ecr.us-east-1.amazonaws.com/team/trainer-cuda
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace

import click

from tools import __version__
from tools.aws.session import Session
from tools.cli.image._options import arguments
from tools.cli.image.test import exit_with
from tools.core import output, repo
from tools.core.verdict import State, Verdict
from tools.image import build, codebuild, push, registry, remote_build, smoke, tags
from tools.image.dockerfile import context
from tools.image.engine import Engine
from tools.image.fix import Fixed, fix
from tools.image.mend import repaired
from tools.image.rules.evaluate import Target, find

PLATFORM = re.compile(r"[a-z]+/[a-z0-9_]+(?:/v\d+)?")
ROUNDS = 3  # builds of one command, where --fix adds what a test found missing


@dataclass
class Outcome:
    """What became of one command: the build's record, what was repaired, tried and pushed."""

    record: build.Record
    fixed: Fixed | None
    tested: list[Verdict] = field(default_factory=list)
    pushed: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Say whether everything that was tried is right."""
        return all(verdict.state is State.PASS for verdict in self.tested)


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
@click.option("--fix", "mends", is_flag=True, help="Repair a copy of the files, and build that.")
@click.option(
    "--test", "level", type=click.Choice(smoke.LEVELS), help="Then try what it does, up to this level."
)
@click.option(
    "--module", "modules", multiple=True, metavar="NAME", help="With --test: import these, not the trainer's."
)
@click.option("--push", "pushes", is_flag=True, help="Then push it, where every test passed.")
@click.option("--remote", "away", is_flag=True, help="Build and push on AWS CodeBuild, not here.")
@click.option("--cleanup", "cleans", is_flag=True, help="Remove what --remote made for the repository.")
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
    mends: bool,
    level: str | None,
    modules: tuple[str, ...],
    pushes: bool,
    away: bool,
    cleans: bool,
    as_json: bool,
) -> None:
    if modules and not level:
        raise click.UsageError("--module needs --test")
    if cleans and not away and (pushes or level or mends):
        raise click.UsageError("--cleanup goes with --remote, or alone")
    if cleans and repository is None:
        raise click.UsageError("--cleanup needs --repository, whose builds it clears up after")
    if away and (level or mends or secrets):
        raise click.UsageError("--test, --fix and --secret need an engine here; --remote goes without")
    if pushes and (repository is None or registry.host(repository) == "localhost"):
        raise click.UsageError("--push needs --repository, a name with its registry")
    if platform and not PLATFORM.fullmatch(platform):
        raise click.UsageError(f"--platform {platform}: not OS/ARCH, such as linux/amd64")
    if repository and registry.split(repository)[1]:
        raise click.UsageError(f"--repository {repository}: a name without a tag; --tag-from says which tag")
    target = find(what, root)
    if cleans and not away:
        _clean(str(repository), as_json)
        return
    tag = tags.tag(tag_from, target.context) if tag_from else __version__
    wish = build.Wish(
        target=target,
        names=(f"{repository or f'{build.NAMESPACE}/{target.name}'}:{tag}",),
        arguments=build.labels(target) | arguments(given),
        secrets=secrets,
        platform=platform,
        limit=int(context_limit * context.GIB),
    )
    try:
        if away:
            _remote(wish, cleans, as_json)
            return
        outcome = _build(wish, level, modules, mends, as_json)
    except build.BuildFailed as problem:
        failed(problem, as_json)
        raise click.exceptions.Exit(1) from None
    if pushes and outcome.passed:
        outcome.pushed = _push(wish, outcome.record, as_json)
    if as_json:
        output.data(_as_data(outcome))
    elif pushes and not outcome.passed:
        output.error("not pushed, for the test did not pass")
    exit_with(outcome.tested)


def _build(
    wish: build.Wish, level: str | None, modules: tuple[str, ...], mends: bool, quiet: bool
) -> Outcome:
    """Build and test, with `mends` from a repaired copy; again with what it lacked, at most ROUNDS times."""
    missing: tuple[str, ...] = ()
    for attempt in range(1, ROUNDS + 1):
        fixed = fix(wish.target, wish.arguments, missing) if mends else None
        if fixed is not None:
            _say_repairs(fixed, wish.target, quiet)
        with repaired(wish.target, fixed or Fixed({}, {})) as target:
            record, _ = build.build(replace(wish, target=target), Engine(), output.note)
        outcome = Outcome(record, fixed)
        if not quiet:
            output.table(build.summary(record), indent="")
            output.line(f"record: {repo.shown(build.record_path(record.name))}")
        if level:
            outcome.tested = _try(record.id, level, modules, quiet)
        absent = smoke.absent(outcome.tested[0]) if outcome.tested else ()
        if not mends or attempt == ROUNDS or set(absent) <= set(missing):
            break
        missing = tuple(dict.fromkeys([*missing, *absent]))
    return outcome


def _remote(wish: build.Wish, cleans: bool, as_json: bool) -> None:
    """Build on CodeBuild, print what ECR has and what was made; `cleans`: remove that, however it ended."""
    place = codebuild.Place.of(registry.split(wish.names[0])[0])
    session = Session(place.region)
    try:
        built = remote_build.build(wish, session, output.note)
    finally:
        removed = codebuild.cleanup(session, place, output.note) if cleans else []
    if as_json:
        output.data({**asdict(built), "removed": removed})
        return
    output.line(f"pushed {built.name} in {built.seconds:.0f} s, by build {built.id}")
    output.line(f"digest {built.digest}, read back from ECR")
    for one in [] if cleans else built.made:
        output.line(f"made {one}; --cleanup removes it")


def _clean(repository: str, as_json: bool) -> None:
    """Remove what remote builds of a repository left, and say what that was."""
    place = codebuild.Place.of(repository)
    removed = codebuild.cleanup(Session(place.region), place, output.note)
    if as_json:
        output.data({"removed": removed})
    elif not removed:
        output.line(f"nothing of trainyard's is there for {repository}")


def _try(image: str, level: str, modules: tuple[str, ...], quiet: bool) -> list[Verdict]:
    found = []
    for verdict in smoke.trial(image, level, Engine(), output.note, modules):
        found.append(verdict)
        if not quiet:
            output.verdict(verdict)
    return found


def _push(wish: build.Wish, record: build.Record, quiet: bool) -> dict[str, str]:
    """Push each of the image's names; return the digests by repository, as the registries have them."""
    for name in wish.names:
        repository, _ = registry.split(name)
        digest = push.push(name, name, Engine(), output.note)
        record.digests[repository] = digest
        record.save()
        if not quiet:
            output.line(f"pushed {name}")
            output.line(f"digest {digest}, read back from {registry.host(repository)}")
    return record.digests


def _say_repairs(fixed: Fixed, target: Target, quiet: bool) -> None:
    for text in fixed.done:
        output.note(f"repaired {text}")
    for verdict in fixed.left:
        output.note(f"left {verdict.details['rule']}: {verdict.summary}")
    if fixed.diff and not quiet:
        output.line(fixed.diff.rstrip("\n"))
        output.line(f"this is in the image and not in your files: yard image fix {target.shown} --write")


def _as_data(outcome: Outcome) -> dict[str, object]:
    fixed = outcome.fixed
    return {
        **asdict(outcome.record),
        "repaired": {"diff": fixed.diff, "done": fixed.done} if fixed else None,
        "tests": [verdict.as_dict() for verdict in outcome.tested],
        "pushed": outcome.pushed,
    }


def failed(problem: build.BuildFailed, as_json: bool) -> None:
    """Print the one cause of a failed build."""
    found = problem.cause
    if as_json:
        output.data({**asdict(found), "attempts": problem.attempts, "log": str(problem.log)})
        return
    output.error(f"not built: {found.kind}: {found.line}", found.remedy)
    if found.step:
        output.note(f"  at: {found.step}")
    output.note(f"  log: {repo.shown(problem.log)}")
