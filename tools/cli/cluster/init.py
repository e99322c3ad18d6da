"""Write clusters/NAME from what a cluster shows, or add to it what is new."""

from tools.aws import Session
from tools.cluster import Spec, cluster_directory, observe
from tools.cluster import spec as specs
from tools.cluster.cluster_env import FILE
from tools.cluster.discover import Found
from tools.core import UserError, output, repo


def command(
    name: str,
    context: str | None,
    eks: str | None,
    hyperpod: str | None,
    namespace: str | None,
    region: str | None,
    profile: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    if sum(one is not None for one in (context, eks, hyperpod)) > 1:
        raise UserError("--context, --eks and --hyperpod name one cluster each: give one of them")
    directory = cluster_directory.place(name)
    exists = (directory / FILE).exists()
    spec = specs.load(repo.project(), directory.name) if exists else Spec(directory, {})
    asked = observe.Asked(context, namespace, eks, hyperpod)
    aws = eks or hyperpod
    session = Session(region or spec.get("AWS_REGION"), profile) if aws else None
    found, seen, source = observe.read(session, spec, asked)
    new = cluster_directory.texts(directory, found, seen, source)
    difference = cluster_directory.difference(directory, new) if exists else ""
    refused = bool(exists and new and not yes)
    if not refused:
        cluster_directory.write(directory, new)
    if as_json:
        files = sorted(f"{repo.shown(directory)}/{path}" for path in new)
        answer = {"files": files, "written": not refused, "difference": difference, "facts": found.facts}
        output.data({**answer, "unknown": found.unknown, "notes": found.missing})
    else:
        _show(directory.name, sorted(new), difference, found, written=not refused)
    if refused:
        hint = f"yard cluster init {directory.name} ... --yes writes the difference"
        raise UserError(f"{repo.shown(directory)} exists and differs; nothing was written", hint, 1)


def _show(name: str, files: list[str], difference: str, found: Found, written: bool) -> None:
    for line in found.missing:
        output.note(f"note: {line}")
    for fact, why in found.unknown.items():
        output.note(f"unknown: {fact}: {why}")
    if difference:
        output.block(difference)
    for path in files if written else ():
        output.line(f"clusters/{name}/{path}: written")
    if not files:
        output.line(f"clusters/{name}: up to date")
    if written:
        output.note(f"next: yard cluster validate {name}")
        output.note(f"      yard platform {name} | kubectl apply --server-side -f -")
