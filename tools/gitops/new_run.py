"""Creates a run's file: renders the cell as Flux would, checks it, and only then writes the file."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.cells.knobs import Knobs, applied
from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import KUSTOMIZATION_NAMES, NOT_CELLS
from tools.cells.renaming import HASH
from tools.cluster import cluster_env, fit
from tools.core import State, UserError, Verdict, git
from tools.core.repo import did_you_mean, shown
from tools.facts.instances import INSTANCE_LABEL
from tools.gitops import flux_objects
from tools.gitops.render import built, unpacked
from tools.gitops.run_file import CELL, DIGEST, JOBS, SUFFIX, Image, Run, RunFile, dumped, read
from tools.kube.images import is_local
from tools.kube.json_patch import difference, operation
from tools.kube.manifests import Manifests, name_of, parse
from tools.kube.selectors import allowed_values
from tools.preflight.evaluate import Evaluation, evaluate
from tools.workload import kinds

LOCAL_IMAGE = "local-image"  # the rule: a warning in a cell, whose nodes may have the image


@dataclass(frozen=True)
class Wanted:
    """The options of `yard cluster run new`. The knob `image` is NAME@sha256:..., or only the digest."""

    cell: str
    cluster: str
    commit: str = "HEAD"
    knobs: Knobs = field(default_factory=Knobs)


@dataclass(frozen=True)
class Made:
    """A run that can be written, with the result of preflight."""

    path: Path
    text: str
    run: RunFile
    rendered: str
    evaluation: Evaluation
    strange: list[str]  # instance types of the job, if cluster.env has node groups but none of these types

    def failed(self) -> list[Verdict]:
        """Return what no run may have: the failures of preflight, and images that no node can pull."""
        local = [one for one in self.evaluation.of(State.WARN) if one.details["rule"] == LOCAL_IMAGE]
        return [*self.evaluation.of(State.FAIL), *(replace(one, state=State.FAIL) for one in local)]


def make(root: Path, wanted: Wanted, renderer: Renderer) -> Made:
    """Return a run without writing its file. Raises UserError."""
    cluster, knobs = flux_objects.find(root, wanted.cluster), wanted.knobs
    commit = git.commit(root, wanted.commit)
    cell = _cell(root, wanted.cell, commit)
    suffix = _suffix(root, cluster, cell, knobs.name)
    name = f"{cell.removeprefix('overlays/').replace('/', '-')}-{suffix}"
    path = cluster / "runs" / f"{name}.yaml"
    parts: dict[str, Any] = {"name": name, "suffix": suffix, "cell": cell, "commit": commit}
    parts |= {"namespace": flux_objects.team(cluster), "source": flux_objects.source(cluster, renderer)}
    parts |= {"components": [_feature(root, one, commit) for one in knobs.features]}
    changes = replace(knobs, name=None, image=None, features=())
    with unpacked(root, commit) as tree:

        def rendered(run: Run) -> str:
            return built(tree, _file(run, path), renderer)

        job = kinds.job_of(parse(rendered(Run(**parts, image=Image("", "", ""))), shown(path)))
        if job.kind not in JOBS:
            raise UserError(f"{cell} makes a {job.title}: a run is one of {', '.join(JOBS)}", "leave out its --feature")
        image = _image(str(job.training_containers()[0]["image"]), knobs.image)
        run = Run(**parts, image=image, kind=job.kind)
        text = rendered(run)
        if changes:
            run, text = _changed(run, parse(text, shown(path)), changes, rendered)
    manifests = parse(text, shown(path))
    checked = evaluate(manifests, operator=fit.operator(cluster))
    return Made(path, run.text(), _file(run, path), text, checked, _strange(cluster, manifests))


def _changed(run: Run, before: Manifests, changes: Knobs, rendered: Callable[[Run], str]) -> tuple[Run, str]:
    """Return a run with patches for the changes, and what it renders to. Raises UserError."""
    after = applied(before, changes)
    text = json.dumps(after.objects)
    for old, new in zip(before.objects, after.objects, strict=True):
        text = text.replace(f'"{name_of(new)}"', f'"{name_of(old)}"')  # kustomize computes the hashes itself
    patches = []
    for old, new in zip(before.objects, json.loads(text), strict=True):
        made = [operation(old, edit) for edit in difference(old, new)]
        if made:
            stem = HASH.fullmatch(name_of(old))
            name = (stem[1] if stem else name_of(old)).removesuffix(f"-{run.suffix}")
            target = {"kind": old["kind"], "name": name.removeprefix(run.name.removesuffix(run.suffix))}
            patches.append({"target": target, "patch": dumped(made)})
    run = replace(run, changes=shlex.join(changes.arguments()), patches=patches)
    changed = rendered(run)
    if sorted(map(str, parse(changed, before.source).objects)) != sorted(map(str, after.objects)):
        raise UserError(f"{run.changes}: patches of {run.cell} cannot make this change", "change the cell")
    return run, changed


def _file(run: Run, path: Path) -> RunFile:
    source, kustomization = run.objects()
    if not run.image.name:
        kustomization["spec"]["images"] = []
    return RunFile(shown(path), source, kustomization)


def _cell(root: Path, text: str, commit: str) -> str:
    """Return the cell as overlays/<hardware>/<model>. Raises UserError where the commit lacks it."""
    name = text.strip("/").removeprefix("./")
    cell = name if name.startswith("overlays/") else f"overlays/{name}"
    files = (Path(file) for file in git.files_at(root, commit, "overlays"))
    found = (CELL.fullmatch(file.parent.as_posix()) for file in files if file.name in KUSTOMIZATION_NAMES)
    tops = {one[0] for one in found if one and one[1] not in NOT_CELLS}
    if cell in tops:
        return cell
    hint = did_you_mean(cell, tops) or "a run needs a committed cell; choose the --commit"
    raise UserError(f"commit {commit[:12]} has no cell {cell}", hint)


def _feature(root: Path, name: str, commit: str) -> str:
    known = {file.split("/")[2] for file in git.files_at(root, commit, "overlays/feature") if file.count("/") > 2}
    if name not in known:
        hint = did_you_mean(name, known) or f"features: {', '.join(sorted(known))}"
        raise UserError(f"commit {commit[:12]} has no feature {name}", hint)
    return f"../../feature/{name}"


def _suffix(root: Path, cluster: Path, cell: str, wanted: str | None) -> str:
    """Return the suffix of the run's name. Raises UserError for a name that the cluster ever had."""
    stem = cell.removeprefix("overlays/").replace("/", "-")
    folder = (cluster / "runs").relative_to(root).as_posix()
    used = {Path(file).stem: revision for file, revision in git.added(root, folder).items()}
    used |= {path.stem: "" for path in (cluster / "runs").glob("*.y*ml")}
    if wanted is None:
        numbers = [int(found[1]) for name in used if (found := re.fullmatch(rf"{stem}-r(\d+)", name))]
        return f"r{max(numbers, default=0) + 1}"
    if not SUFFIX.fullmatch(wanted):
        raise UserError(f"--name {wanted}: only lower-case letters, digits and dashes", "such as r1 or lr-3e-4")
    if f"{stem}-{wanted}" in used:
        when = used[f"{stem}-{wanted}"]
        where = f"since commit {when[:12]}" if when else "not committed"
        raise UserError(
            f"{folder}/{stem}-{wanted}.yaml already exists or existed ({where}); a second run with this name"
            " would continue from its checkpoints",
            "choose another --name, or leave it out for the next number",
        )
    return wanted


def _strange(cluster: Path, manifests: Manifests) -> list[str]:
    """Return the job's instance types if the facts NODES_...=TYPE have none of them."""
    facts = cluster_env.read(cluster / cluster_env.FILE)
    groups = (fact.value.split() for name, fact in facts.items() if name.startswith("NODES_"))
    there = {words[0] for words in groups if words}
    wanted = allowed_values(kinds.job_of(manifests).training_specs()[0], INSTANCE_LABEL)
    return wanted if there and not there & set(wanted) else []


def _image(rendered: str, wanted: str | None) -> Image:
    """Return the cell's image with a digest, its own or that of `wanted`. Raises UserError."""
    base, _, known = rendered.partition("@")
    name = re.sub(r":[^:/]+$", "", base)
    new_name, at, digest = (wanted or known).rpartition("@")
    if not digest:
        raise UserError(
            f"no digest for the image {rendered}: a tag can be another image tomorrow",
            "--image NAME@sha256:..., as `yard image push` printed it",
        )
    if not DIGEST.fullmatch(digest) or (at and not new_name):
        raise UserError(f"--image {wanted}: not a digest", "NAME@sha256:<64 hexadecimal digits>, or only the digest")
    pulled = re.sub(r":[^:/]+$", "", new_name) or name
    if is_local(pulled):
        host = pulled.partition("/")[0]
        message = f"the image {pulled}@{digest}: {host} is another machine on each node, so no node can pull it"
        raise UserError(message, "push it (yard image push), then --image REGISTRY/NAME@sha256:...", 1)
    return Image(name, pulled, digest)


def write(made: Made) -> None:
    made.path.parent.mkdir(exist_ok=True)
    read(made.text, shown(made.path))
    with made.path.open("x", encoding="utf-8") as file:
        file.write(made.text)
