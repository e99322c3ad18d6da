"""Checks the runs of a cluster before a push: changes that Flux would apply unintentionally.

The checks read the checkout and its history. With the state of the cluster given, a changed run is allowed as
long as its job was never created.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import KUSTOMIZATION_NAMES
from tools.cluster import cluster_env, fit
from tools.cluster.cluster_env import Fact
from tools.cluster.platform import substitute
from tools.core import State, UserError, Verdict, git, nearest, output
from tools.core.nested import mappings
from tools.core.tables import load
from tools.gitops import flux_objects
from tools.gitops.live import Live
from tools.gitops.render import render
from tools.gitops.run_file import CELL, COMMIT, DIGEST, FEATURE, JOBS, RUNNER, SSA, RunFile, health_check, read
from tools.kube.manifests import Manifests, Object, text_of
from tools.preflight.evaluate import evaluate
from tools.workload import kinds

TTL = "ttlSecondsAfterFinished"
_FIELDS: dict[str, list[str]] = load("gitops/texts.yaml")["fields"]
SOURCE_FIELDS = {*_FIELDS["source"], *flux_objects.ACCESS}


@dataclass(frozen=True)
class Wanted:
    """What every run of a cluster has: the namespace of the team, and the repository that Flux watches.

    `operator` is the release of the training operator, empty where it is unknown.
    """

    team: str
    operator: str
    source: Object  # url, and access where the repository is private


def check(root: Path, cluster: Path, renderer: Renderer, live: Mapping[str, Live] | None) -> list[Verdict]:
    """Return the verdicts on a cluster's runs and facts. `live` is its state by run, or None if unknown."""
    added = git.added(root, (cluster / "runs").relative_to(root).as_posix())
    wanted = Wanted(flux_objects.team(cluster), fit.operator(cluster), flux_objects.source(cluster, renderer))
    found: list[Verdict] = []
    for path in sorted((cluster / "runs").glob("*.y*ml")):
        found += _run(root, path, wanted, added, renderer, live)
    return [*found, *_misplaced(root, cluster), _facts(root, cluster, renderer)]


def run_files(root: Path, cluster: Path) -> list[RunFile]:
    """Return the runs in a cluster's directory. Raises UserError for a file that is not a run."""
    return [_read(root, path) for path in sorted((cluster / "runs").glob("*.y*ml"))]


def _read(root: Path, path: Path) -> RunFile:
    name = path.relative_to(root).as_posix()
    return read(text_of(path, name), name)


def _misplaced(root: Path, cluster: Path) -> Iterator[Verdict]:
    """Yield verdicts on files below runs/ that Flux applies and this check would not read as a run."""
    folder = cluster / "runs"
    known = {path.with_suffix("").name: path for path in sorted(folder.glob("*.yaml"))}
    listed = (path for path in folder.rglob("*") if path.match("*.y*ml") or path.name in KUSTOMIZATION_NAMES)
    for path in sorted(listed):
        name = path.relative_to(root).as_posix()
        if path.name in KUSTOMIZATION_NAMES:
            summary, remedy = f"{name}: Flux would apply what it lists, unchecked", "remove it"
        elif path.parent != folder:
            remedy = f"git mv it into {folder.relative_to(root).as_posix()}; Flux applies subdirectories too"
            summary = f"{name}: a run must be directly in runs/; this file is not checked"
        elif path.suffix == ".yml" and path.stem in known:
            summary, remedy = f"{name}: {path.stem}.yaml is the same run", "keep one file for each run"
        else:
            continue
        yield Verdict(State.FAIL, summary, remedy=remedy, details={"rule": "run-file"})


def _run(
    root: Path,
    path: Path,
    wanted: Wanted,
    added: Mapping[str, str],
    renderer: Renderer,
    live: Mapping[str, Live] | None,
) -> Iterator[Verdict]:
    name = path.relative_to(root).as_posix()
    try:
        run = _read(root, path)
    except UserError as problem:
        yield Verdict(State.FAIL, problem.message, remedy=problem.hint, details={"rule": "run-file"})
        return
    faults = [*_faults(run), *_foreign(run, wanted)]
    yield _verdict("run-file", name, faults, "pinned and created once", "write it with: yard cluster run new")
    yield _edited(root, run, added, live)
    if not faults:
        yield _rendered(root, run, renderer, wanted.operator)


def _faults(run: RunFile) -> Iterator[str]:
    """Yield what is wrong in a run's file, a sentence each."""
    spec, source = run.spec, run.source.get("spec") or {}
    for item in (run.source, run.kustomization):
        if item["metadata"].get("name") != run.name:
            yield f"{item['kind']} is named {item['metadata'].get('name')}, but the file {run.name}"
        if item["metadata"].get("namespace") != run.namespace:
            yield f"{item['kind']} is not in {run.namespace}, where Flux may create a run"
    if not COMMIT.fullmatch(run.commit) or not isinstance((source.get("ref") or {}).get("commit"), str):
        yield f"spec.ref.commit is not a quoted commit of 40 digits: {run.commit or 'missing'}"
    if spec.get("sourceRef") != {"kind": "GitRepository", "name": run.name}:
        yield "spec.sourceRef is not the GitRepository of this file: the run would not be pinned"
    if not CELL.fullmatch(run.cell):
        yield f"spec.path is {_short(run.cell)}, which is not a cell: overlays/HARDWARE/MODEL"
    for component in spec.get("components") or []:
        if not FEATURE.fullmatch(component):
            yield f"spec.components has {_short(component)}, which is not in overlays/feature"
    if not spec.get("nameSuffix"):
        yield "no spec.nameSuffix: two runs of the cell would share one job"
    stem = run.cell.removeprefix("overlays/").replace("/", "-") + str(spec.get("nameSuffix", ""))
    if spec.get("nameSuffix") and stem != run.name:
        yield f"cell and nameSuffix give {stem}, but the run is {run.name}: two runs could share one job"
    if not spec.get("targetNamespace"):
        yield "no spec.targetNamespace"
    if not any(DIGEST.fullmatch(str(image.get("digest"))) for image in spec.get("images") or []):
        yield "no digest in spec.images: a tag can be another image when a pod restarts"
    if spec.get("force"):
        yield "spec.force: Flux would delete and restart the job when a change is rejected"
    if not spec.get("prune"):
        yield "no spec.prune: removing the file would not delete the job"
    is_checked = health_check(run.kind, run.job, run.namespace) in (spec.get("healthChecks") or [])
    if spec.get("wait") or not is_checked or JOBS[run.kind]["health"] not in (spec.get("healthCheckExprs") or []):
        yield f"spec.healthChecks must be only the job {run.job}: Ready would not mean that it is training"
    if spec.get("postBuild"):
        yield "spec.postBuild: Flux would replace ${...} in scripts of the job by facts of the cluster"


def _foreign(run: RunFile, wanted: Wanted) -> Iterator[str]:
    """Yield what would give a run another source, more rights, or another place than the team's."""
    source = run.source.get("spec") or {}
    access = {key: source[key] for key in ("url", *flux_objects.ACCESS) if key in source}
    for key in sorted({*access, *wanted.source}):
        found, own = access.get(key), wanted.source.get(key)
        if found != own:
            yield f"GitRepository spec.{key} is {_short(found)}, but that of flux-system is {_short(own)}"
    for item, fields in ((source, SOURCE_FIELDS), (run.spec, set(_FIELDS["spec"]))):
        yield from (f"spec.{key}: a run does not have this field" for key in sorted(set(item) - fields))
    if run.spec.get("serviceAccountName") != RUNNER:
        yield f"spec.serviceAccountName is not {RUNNER}: the run would not have the rights of the team"
    if run.namespace and run.namespace != wanted.team:
        yield f"spec.targetNamespace is {run.namespace}, but the team's namespace is {wanted.team}"


def _edited(root: Path, run: RunFile, added: Mapping[str, str], live: Mapping[str, Live] | None) -> Verdict:
    """Check that the file is unchanged since its first commit."""
    rule = {"rule": "run-edited"}
    first = added.get(run.path)
    if first is None:
        return Verdict(State.PASS, f"{run.path}: new", details=rule)
    try:
        before = read(git.text_at(root, first, run.path) or "", run.path)
    except UserError:
        return Verdict(State.PASS, f"{run.path}: was not a run in {first[:12]}", details=rule)
    changes = [
        *_changes(before.source, run.source, "GitRepository"),
        *_changes(before.kustomization, run.kustomization, "Kustomization"),
    ]
    if not changes and git.is_shallow(root):
        summary = f"{run.path}: this clone is shallow and lacks the first version of the file"
        return Verdict(State.CANNOT_TELL, summary, remedy="git fetch --unshallow", details=rule)
    if not changes:
        return Verdict(State.PASS, f"{run.path}: as committed in {first[:12]}", details=rule)
    own = None if live is None else live.get(run.name)
    if own is not None and own.job is None:
        summary = f"{run.path}: changed since {first[:12]}, before the cluster created its job"
        return Verdict(State.PASS, summary, changes, details=rule)
    state = f"its job is {own.state} in the cluster" if own is not None else "its job is running or has run"
    summary = f"{run.path} was changed since commit {first[:12]}, and {state}. Flux would keep the job but delete"
    summary += " the ConfigMaps that it was started with, so its next restart would fail"
    remedy = f"git checkout {first[:12]} -- {run.path}; for a change: yard cluster run new {run.cell}"
    return Verdict(State.FAIL, summary, changes, remedy, rule)


def _changes(before: Object, after: Object, kind: str) -> list[str]:
    """Return the fields of `spec` that differ, except `suspend`."""
    old, new = (dict(item.get("spec") or {}) for item in (before, after))
    keys = [key for key in {**old, **new} if key != "suspend" and old.get(key) != new.get(key)]
    return [f"{kind} spec.{key}: {_short(old.get(key))} -> {_short(new.get(key))}" for key in keys]


def _short(value: Any) -> str:
    return "not set" if value is None else output.short(value, 70)


def _rendered(root: Path, run: RunFile, renderer: Renderer, operator: str) -> Verdict:
    """Check the objects that Flux would create: no TTL, created once, and preflight passes."""
    rule = {"rule": "run-renders"}
    if not git.has(root, run.commit):
        summary = f"{run.path}: commit {run.commit[:12]} is not in this clone"
        return Verdict(State.CANNOT_TELL, summary, remedy="git fetch --unshallow, or push it", details=rule)
    try:
        manifests = render(root, run, renderer)
    except UserError as problem:
        return Verdict(State.FAIL, problem.message, remedy=problem.hint, details=rule)
    checked = evaluate(manifests, operator=operator)
    failed, unknown = (
        [f"{one.details['rule']}: {one.summary}" for one in checked.of(state)]
        for state in (State.FAIL, State.CANNOT_TELL)
    )
    faults = [*_job_faults(manifests, run.kind), *failed]
    if unknown and not faults:
        summary = f"{run.path}: preflight finds no fault, and does not know: {'; '.join(unknown)}"
        return Verdict(State.CANNOT_TELL, summary, remedy="yard preflight CELL shows the evidence", details=rule)
    return _verdict("run-renders", run.path, faults, "passes preflight", "fix the cell, then write a new run")


def _job_faults(manifests: Manifests, kind: str) -> Iterator[str]:
    jobs = kinds.find(manifests).workloads
    if len(jobs) != 1:
        yield f"creates {len(jobs)} jobs; a run is one"
    for job in jobs:
        if job.kind != kind:
            yield f"creates {job.title}, but spec.healthChecks has a {kind}: Ready would not mean that it is training"
    wanted = {patch["target"]["kind"] for patch in JOBS[kind]["patches"]}
    for item in (one for one in manifests.objects if one["kind"] in wanted):
        if (item["metadata"].get("annotations") or {}).get(SSA) != "IfNotPresent":
            yield f"the {item['kind']} has no annotation {SSA}: IfNotPresent: a change would reach a running job"
        for path, _ in (one for one in mappings(item) if TTL in one[1]):
            yield f"{path}.{TTL}: Flux would run the job again each time it is deleted after its end"


def _facts(root: Path, cluster: Path, renderer: Renderer) -> Verdict:
    """Check that every ${NAME} of the platform is a fact; Flux fails on the others after the push."""
    path = cluster / cluster_env.FILE
    facts = cluster_env.read(path)
    applied = flux_objects.kustomizations(cluster, renderer)
    filled = [one for one in applied if (one.spec.get("postBuild") or {}).get("substituteFrom")]
    faults = [fault for one in filled for file in one.files(root) for fault in _unknown(root, file, facts)]
    name = path.relative_to(root).as_posix()
    return _verdict("facts", name, list(dict.fromkeys(faults)), "sets every fact", f"set it in {name}")


def _unknown(root: Path, path: Path, facts: Mapping[str, Fact]) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path.resolve().relative_to(root).as_posix()}:{number}"
        if line.lstrip().startswith("#"):
            continue
        try:
            substitute(line, facts)
        except KeyError as missing:
            match = nearest(str(missing.args[0]), facts, cutoff=0.7)
            guess = f", did you mean {match}?" if match else ""
            yield f"{where}: ${{{missing.args[0]}}} is not set{guess}"


def _verdict(rule: str, name: str, faults: list[str], good: str, remedy: str) -> Verdict:
    if not faults:
        return Verdict(State.PASS, f"{name}: {good}", details={"rule": rule})
    return Verdict(State.FAIL, f"{name}: {faults[0]}", faults[1:], remedy, {"rule": rule})
