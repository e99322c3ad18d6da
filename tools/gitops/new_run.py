"""Creates a run's file: renders the cell as Flux would, checks it, and only then writes the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import KUSTOMIZATION_NAMES, NOT_CELLS
from tools.cluster import cluster_env
from tools.core.errors import UserError
from tools.core.repo import did_you_mean, shown
from tools.gitops import flux_objects, git
from tools.gitops.render import render
from tools.gitops.run_file import CELL, DIGEST, SUFFIX, Image, Run, RunFile, read
from tools.kube.images import is_local
from tools.kube.manifests import Manifests, Object
from tools.kube.selectors import REQUIRED
from tools.preflight.evaluate import Evaluation, evaluate

INSTANCE_TYPE = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class Wanted:
    """The options of `yard cluster run new`; None means the default."""

    cell: str
    cluster: str
    suffix: str | None = None
    commit: str = "HEAD"
    image: str | None = None  # NAME@sha256:..., or only the digest
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """A run that can be written, with the result of preflight."""

    path: Path
    text: str
    cell: str  # overlays/<hardware>/<model>
    evaluation: Evaluation
    job: str
    commit: str
    strange: list[str]  # instance types of the job, if cluster.env has node groups but none of these types


def make(root: Path, wanted: Wanted, renderer: Renderer) -> Made:
    """Return a run without writing its file. Raises UserError."""
    cluster = flux_objects.find(root, wanted.cluster)
    commit = git.commit(root, wanted.commit)
    cell = _cell(root, wanted.cell, commit)
    suffix = _suffix(root, cluster, cell, wanted.suffix)
    name = f"{cell.removeprefix('overlays/').replace('/', '-')}-{suffix}"
    path = cluster / "runs" / f"{name}.yaml"
    parts: dict[str, Any] = {"name": name, "suffix": suffix, "cell": cell, "commit": commit}
    parts |= {"namespace": flux_objects.team(cluster), "source": flux_objects.source(cluster, renderer)}
    parts |= {"components": [_feature(root, one, commit) for one in wanted.features]}
    draft = Run(**parts, image=Image("", "", ""))
    image = _image(_container_image(_rendered(root, draft, path, renderer)), wanted.image)
    run = Run(**parts, image=image)
    manifests = _rendered(root, run, path, renderer)
    job = str(manifests.job()["metadata"]["name"])
    return Made(path, run.text(), cell, evaluate(manifests), job, commit, _strange(cluster, manifests))


def _rendered(root: Path, run: Run, path: Path, renderer: Renderer) -> Manifests:
    source, kustomization = run.objects()
    if not run.image.name:
        kustomization["spec"]["images"] = []
    return render(root, RunFile(shown(path), source, kustomization), renderer)


def _cell(root: Path, text: str, commit: str) -> str:
    """Return the cell as overlays/<hardware>/<model>. Raises UserError where the commit lacks it."""
    name = text.strip("/").removeprefix("./")
    cell = name if name.startswith("overlays/") else f"overlays/{name}"
    tops = {file.rsplit("/", 1)[0] for file in git.files_at(root, commit, "overlays") if _is_leaf(file)}
    if cell in tops:
        return cell
    hint = did_you_mean(cell, tops) or "a run needs a committed cell; choose the --commit"
    raise UserError(f"commit {commit[:12]} has no cell {cell}", hint)


def _is_leaf(file: str) -> bool:
    directory, _, name = file.rpartition("/")
    found = CELL.fullmatch(directory)
    return found is not None and name in KUSTOMIZATION_NAMES and found[1] not in NOT_CELLS


def _feature(root: Path, name: str, commit: str) -> str:
    known = {
        file.split("/")[2] for file in git.files_at(root, commit, "overlays/feature") if file.count("/") > 2
    }
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
        raise UserError(
            f"--name {wanted}: only lower-case letters, digits and dashes", "such as r1 or lr-3e-4"
        )
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
    affinity = (_pod(manifests).get("affinity") or {}).get("nodeAffinity") or {}
    wanted = [
        value
        for term in (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
        for rule in term.get("matchExpressions") or []
        if rule["key"] == INSTANCE_TYPE and rule["operator"] == "In"
        for value in rule["values"]
    ]
    return wanted if there and not there & set(wanted) else []


def _pod(manifests: Manifests) -> Object:
    pod: Object = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return pod


def _container_image(manifests: Manifests) -> str:
    return str(next(one["image"] for one in _pod(manifests)["containers"] if one["name"] == "pytorch"))


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
        hint = "NAME@sha256:<64 hexadecimal digits>, or only the digest"
        raise UserError(f"--image {wanted}: not a digest", hint)
    pulled = re.sub(r":[^:/]+$", "", new_name) or name
    if is_local(pulled):
        host = pulled.partition("/")[0]
        message = (
            f"the image {pulled}@{digest}: {host} is another machine on each node, so no node can pull it"
        )
        raise UserError(message, "push it (yard image push), then --image REGISTRY/NAME@sha256:...", 1)
    return Image(name, pulled, digest)


def write(made: Made) -> None:
    made.path.parent.mkdir(exist_ok=True)
    read(made.text, shown(made.path))
    with made.path.open("x", encoding="utf-8") as file:
        file.write(made.text)
