"""Build an image with the Docker engine."""

import re
from dataclasses import asdict, dataclass, field, replace

import click

from tools import __version__
from tools.aws import Session
from tools.cli.image._options import TAG_FROM, arguments, exit_code, run_tests
from tools.core import State, Verdict, output, repo
from tools.image import Engine, build, codebuild, evidence, push, registry, remote_build, smoke, tags
from tools.image.dockerfile import context
from tools.image.fix import Fixed, fix, repaired
from tools.image.rules.evaluate import Target, find

PLATFORM = re.compile(r"[a-z]+/[a-z0-9_]+(?:/v\d+)?")
ROUNDS = 3  # builds of one command, if --fix adds what a test found missing


@dataclass
class Outcome:
    """The build's record, what was repaired, the tests' verdicts, and the digests of the push."""

    record: build.Record
    fixed: Fixed | None
    tested: list[Verdict] = field(default_factory=list)
    pushed: dict[str, str] = field(default_factory=dict)


@TAG_FROM
@click.option("--test", "level", type=click.Choice(smoke.LEVELS), help="Then test it, up to this level.")
def command(
    what: str,
    root: str | None,
    given: tuple[str, ...],
    secrets: tuple[str, ...],
    repository: str | None,
    tag_from: str | None,
    platform: str | None,
    context_limit: float,
    repairs: bool,
    level: str | None,
    modules: tuple[str, ...],
    pushes: bool,
    remote: bool,
    cleanup: bool,
    as_json: bool,
) -> int:
    if modules and not level:
        raise click.UsageError("--module needs --test")
    if cleanup and not remote and (pushes or level or repairs):
        raise click.UsageError("use --cleanup with --remote, or alone")
    if cleanup and repository is None:
        raise click.UsageError("--cleanup needs the --repository whose builds it removes")
    if remote and (level or repairs or secrets):
        raise click.UsageError("--test, --fix and --secret need a local engine; --remote has none")
    if pushes and (repository is None or registry.host(repository) == "localhost"):
        raise click.UsageError("--push needs --repository, a name with its registry")
    if platform and not PLATFORM.fullmatch(platform):
        raise click.UsageError(f"--platform {platform}: not OS/ARCH, such as linux/amd64")
    if repository and registry.split(repository)[1]:
        raise click.UsageError(f"--repository {repository}: a name without a tag; --tag-from sets the tag")
    target = find(what, root)
    if cleanup and not remote:
        _clean(str(repository), as_json)
        return 0
    tag = tags.tag(tag_from, target.context) if tag_from else __version__
    request = build.Request(
        target=target,
        names=(f"{repository or f'{build.NAMESPACE}/{target.name}'}:{tag}",),
        arguments=build.labels(target) | arguments(given),
        secrets=secrets,
        platform=platform,
        limit=int(context_limit * context.GIB),
    )
    try:
        if remote:
            _build_remotely(request, cleanup, as_json)
            return 0
        outcome = _build(request, level, modules, repairs, as_json)
    except build.BuildFailed as problem:
        failed(problem, as_json)
        return 1
    passed = all(verdict.state is State.PASS for verdict in outcome.tested)
    if pushes and passed:
        outcome.pushed = _push(request, outcome.record, as_json)
    if as_json:
        output.data(_as_data(outcome))
    elif pushes and not passed:
        output.error("not pushed, because a test did not pass")
    return exit_code(outcome.tested)


def _build(request: build.Request, level: str | None, modules: tuple[str, ...], repairs: bool, quiet: bool) -> Outcome:
    """Build and test. With `repairs`, build a repaired copy, and again with modules that were missing."""
    missing: tuple[str, ...] = ()
    for attempt in range(1, ROUNDS + 1):
        fixed = fix(request.target, request.arguments, missing) if repairs else None
        if fixed is not None:
            _print_repairs(fixed, request.target, quiet)
        with repaired(request.target, fixed or Fixed({}, {})) as target:
            built = replace(request, target=target)
            with output.activity(f"building {target.name}", every=0.0, fraction=output.BRACKETS) as now:
                record, image = build.build(built, Engine(), now.at)
                evidence.write(built, record, image, Engine(), now.at)
        outcome = Outcome(record, fixed)
        if not quiet:
            output.table(build.summary(record), indent="")
            output.line(f"record: {repo.shown(build.record_path(record.name))}")
        if level:
            outcome.tested = run_tests(record.id, level, modules, quiet)
        absent = smoke.absent(outcome.tested[0]) if outcome.tested else ()
        if not repairs or attempt == ROUNDS or set(absent) <= set(missing):
            break
        missing = tuple(dict.fromkeys([*missing, *absent]))
    return outcome


def _build_remotely(request: build.Request, cleanup: bool, as_json: bool) -> None:
    """Build on CodeBuild and print the digest; `cleanup` removes what was created, also after a failure."""
    project = codebuild.Project.of(registry.split(request.names[0])[0])
    session = Session(project.region)
    try:
        with output.activity(f"building {request.names[0]}", every=0.0, fraction=output.BRACKETS) as now:
            built = remote_build.build(request, session, now.at)
    finally:
        removed = codebuild.cleanup(session, project, output.note) if cleanup else []
    lines = [f"pushed {built.name} in {built.seconds:.0f} s, by build {built.id}"]
    lines.append(f"digest {built.digest}, read back from ECR")
    lines += [f"created {one}; --cleanup removes it" for one in ([] if cleanup else built.made)]
    output.answer({**asdict(built), "removed": removed}, lines, as_json)


def _clean(repository: str, as_json: bool) -> None:
    project = codebuild.Project.of(repository)
    removed = codebuild.cleanup(Session(project.region), project, output.note)
    lines = [] if removed else [f"trainyard created nothing for {repository}"]
    output.answer({"removed": removed}, lines, as_json)


def _push(request: build.Request, record: build.Record, quiet: bool) -> dict[str, str]:
    """Push each of the image's names; return the digests at the registries by repository."""
    for name in request.names:
        repository, _ = registry.split(name)
        with output.activity(f"pushing {name}", every=0.0) as now:
            digest = push.push(name, name, Engine(), now.at)
        record.digests[repository] = digest
        record.save()
        if not quiet:
            output.line(f"pushed {name}")
            output.line(f"digest {digest}, read back from {registry.host(repository)}")
    return record.digests


def _print_repairs(fixed: Fixed, target: Target, quiet: bool) -> None:
    for text in fixed.done:
        output.note(f"repaired {text}")
    for verdict in fixed.left:
        output.note(f"left {verdict.details['rule']}: {verdict.summary}")
    if fixed.diff and not quiet:
        output.block(fixed.diff)
        output.line(f"only the image has this change; your files: yard image fix {target.shown} --write")


def _as_data(outcome: Outcome) -> dict[str, object]:
    fixed = outcome.fixed
    return {
        **asdict(outcome.record),
        "repaired": {"diff": fixed.diff, "done": fixed.done} if fixed else None,
        "tests": [verdict.as_dict() for verdict in outcome.tested],
        "pushed": outcome.pushed,
    }


def failed(problem: build.BuildFailed, as_json: bool) -> None:
    """Print the cause of a failed build."""
    found = problem.cause
    if as_json:
        output.data({**asdict(found), "attempts": problem.attempts, "log": str(problem.log)})
        return
    output.error(f"not built: {found.kind}: {found.line}", found.remedy)
    if found.step:
        output.note(f"  at: {found.step}")
    output.note(f"  log: {repo.shown(problem.log)}")
