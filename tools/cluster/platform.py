"""The platform of a cluster: plugins, storage and queues of `clusters/<name>`, rendered with its facts.

Only base/plugins and base/storage hold `${NAME}`. Substitution is that of Flux's postBuild in strict mode (fluxcd/pkg,
envsubst and kustomize/kustomize_varsub.go): `${NAME}` becomes the value as it stands, `$$` becomes `$`, `$NAME` and
`$(NAME)` are text, and an object with `kustomize.toolkit.fluxcd.io/substitute: disabled` is not changed. Two rules are
stricter than Flux's: an empty value is an error, and so is a function such as `${NAME:=default}`.

What Flux would build of the directories of other projects is printed in place of the objects that fetch them.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import is_kustomization, reached
from tools.cluster import cluster_env
from tools.cluster.cluster_env import Fact
from tools.core import UserError, did_you_mean, nearest, repo

# In the order of application: drivers and operators, volumes, then what needs the types of the operators.
PARTS = ("plugins", "storage", "queues")
DISABLED = "kustomize.toolkit.fluxcd.io/substitute"
# Kustomize drops the quotes of "${NAME}", so quotes in the manifest do not help.
_UNQUOTABLE = "Flux would read it the same way; keep such a value in a Secret, not in cluster.env"
# `$$`, or a `${` with the text up to its closing brace.
_REFERENCE = re.compile(r"\$\$|\$\{(?:(?P<name>[^}\n]{0,100})\}|\w*)")

_FLUX = re.compile(r"^apiVersion: (?:kustomize|source)\.toolkit\.fluxcd\.io/", re.MULTILINE)
# A directory of a repository at a commit, as kustomize takes it.
_REMOTE = re.compile(r"https://[\w.-]+(?:/[\w.-]+)+//[\w./-]+\?ref=[0-9a-f]{40}")
# Fields of a Flux Kustomization by their names in a kustomization.yaml.
_BUILT_WITH = {"namespace": "targetNamespace", "images": "images", "patches": "patches"}


@dataclass(frozen=True)
class Cluster:
    """A directory with a cluster.env, and those of PARTS that it has."""

    path: Path
    facts: Mapping[str, Fact]
    parts: list[Path]

    @property
    def source(self) -> str:
        return repo.shown(self.path / cluster_env.FILE)


def load(root: Path, text: str) -> Cluster:
    """Return the cluster that `text` names: `example`, or `example/storage` for one of its parts.

    Raises UserError, with the nearest name where the cluster or the part does not exist.
    """
    name, _, part = text.strip("/").removeprefix("clusters/").partition("/")
    path = cluster_env.find(root, name)
    if part and part not in PARTS:
        hint = did_you_mean(part, PARTS) or f"parts: {', '.join(PARTS)}"
        raise UserError(f"no such part of a platform: {part}", hint)
    parts = [path / one for one in PARTS if part in ("", one) and is_kustomization(path / one)]
    if not parts:
        raise UserError(f"clusters/{name} has no {part or ' or '.join(PARTS)} with a kustomization.yaml")
    return Cluster(path, cluster_env.read(path / cluster_env.FILE), parts)


def render(root: Path, cluster: Cluster, renderer: Renderer) -> str:
    """Return the YAML of the cluster's parts, in their order, with its facts filled in.

    Raises UserError with kustomize's message, or with file and line of a `${...}` that cannot be filled in.
    """
    texts = []
    for part in cluster.parts:
        sources = [file for directory in reached(root, part) for file in sorted(directory.glob("*.y*ml"))]
        documents = re.split(r"^---\n", renderer.build(part), flags=re.MULTILINE)
        _refuse_unset(documents, cluster, sources)
        filled = [_fill(document, cluster) for document in documents if document.strip()]
        texts += _without_flux(filled, renderer)
    return "---\n".join(text if text.endswith("\n") else text + "\n" for text in texts)


def substitute(text: str, facts: Mapping[str, Fact]) -> str:
    """Return `text` with `${NAME}` and `$$` replaced. References inside a value are not replaced.

    Raises KeyError for a name that is not a fact.
    """
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else facts[found["name"]].value, text)


def _without_flux(documents: list[str], renderer: Renderer) -> list[str]:
    """Return `documents` with directories of other repositories in place of the Flux objects that fetch them.

    Raises UserError for a directory that is not at a commit, or does not render.
    """
    objects = {index: _parsed(text) for index, text in enumerate(documents) if _FLUX.search(text)}
    sources = {one["metadata"]["name"]: at for at, one in objects.items() if one["kind"] == "GitRepository"}
    kept = list(documents)
    for index, one in objects.items():
        at = sources.get(one["spec"].get("sourceRef", {}).get("name"))
        if one["kind"] == "Kustomization" and at is not None:
            kept[index], kept[at] = _remote_build(one, objects[at]["spec"], renderer), ""
    return [text for text in kept if text]


def _remote_build(one: Mapping[str, Any], source: Mapping[str, Any], renderer: Renderer) -> str:
    """Return what Flux makes of a Kustomization of another repository."""
    spec = one["spec"]
    path, commit = spec.get("path", "").removeprefix("./"), source.get("ref", {}).get("commit")
    base = f"{source['url']}//{path}?ref={commit}"
    if not _REMOTE.fullmatch(base):
        name = one["metadata"]["name"]
        raise UserError(f"Kustomization {name} of Flux: {base} must name a directory and a commit of 40 digits")
    build = {key: spec[field] for key, field in _BUILT_WITH.items() if field in spec}
    with tempfile.TemporaryDirectory() as directory:
        text = json.dumps({"resources": [base], **build})
        (Path(directory) / "kustomization.yaml").write_text(text, encoding="utf-8")
        try:
            return renderer.build(Path(directory))
        except UserError as problem:
            raise UserError(problem.message.replace(directory, base), problem.hint) from None


def _refuse_unset(documents: list[str], cluster: Cluster, sources: list[Path]) -> None:
    """Raise UserError for the first reference that cannot be filled in; the hint lists the others."""
    problems: dict[str, str | None] = {}
    for document in documents:
        if _is_disabled(document):
            continue
        for reference, name in _references(document):
            reason = _reason(reference, name, cluster)
            if reason:
                place = _place(reference, sources) or f"the rendered {_title(document)}"
                problems.setdefault(f"{place}: {reason}", _near(name, cluster))
    if problems:
        (first, near), *others = problems.items()
        hints = [f"did you mean {near}?" if near else f"the facts of this cluster are in {cluster.source}"]
        hints += [f"and {len(others)} more: {'; '.join(problem for problem, _ in others)}"] if others else []
        raise UserError(first, "; ".join(hints))


def _references(text: str) -> Iterator[tuple[str, str]]:
    """Yield each `${...}` that is not escaped, and the text in its braces."""
    for found in _REFERENCE.finditer(text):
        if found[0] != "$$":
            yield found[0], found["name"] or ""


def _reason(reference: str, name: str, cluster: Cluster) -> str | None:
    if not cluster_env.NAME.fullmatch(name):
        return f"{reference} is not ${{NAME}}; cluster facts take no defaults and no functions"
    fact = cluster.facts.get(name)
    if fact is None:
        return f"${{{name}}} is not set in {cluster.source}"
    return None if fact.value.strip() else f"${{{name}}} is empty in {cluster.source}:{fact.line}"


def _near(name: str, cluster: Cluster) -> str | None:
    return None if name in cluster.facts else nearest(name, cluster.facts, cutoff=0.7)


def _place(reference: str, sources: list[Path]) -> str | None:
    """Return file and line of the first use of `reference` in the target's files."""
    for path in sources:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            used = [found for found, _ in _references(line)]
            if reference in used and not line.lstrip().startswith("#"):
                return f"{repo.shown(path)}:{number}"
    return None


def _title(document: str) -> str:
    kind = re.search(r"^kind: *(.+)$", document, re.MULTILINE)
    name = re.search(r"^metadata:\n(?: .*\n)*?  name: *(.+)$", document, re.MULTILINE)
    return f"{kind[1] if kind else 'object'} {name[1] if name else ''}".strip()


def _fill(document: str, cluster: Cluster) -> str:
    if "$" not in document or _is_disabled(document):
        return document
    filled = substitute(document, cluster.facts)
    if any(True for _ in _references(document)):
        _prove(document, filled, cluster)
    return filled


def _is_disabled(document: str) -> bool:
    if DISABLED not in document:
        return False
    metadata = _parsed(document).get("metadata") or {}
    return any((metadata.get(key) or {}).get(DISABLED) == "disabled" for key in ("annotations", "labels"))


def _prove(before: str, after: str, cluster: Cluster) -> None:
    """Raise UserError for a value that YAML reads differently than it is written, such as one with ` #`."""
    try:
        meant, read = _parsed(before), _parsed(after)
    except YAMLError as problem:
        where = f"{_title(before)} with the facts of {cluster.source} is not valid YAML"
        raise UserError(f"{where}: {str(problem).splitlines()[0]}", _UNQUOTABLE) from problem
    difference = _difference(meant, read, cluster, "")
    if difference:
        raise UserError(f"{_title(before)}{difference}: YAML changes the value from {cluster.source}", _UNQUOTABLE)


def _parsed(document: str) -> Any:
    return YAML(typ="safe", pure=True).load(document)


def _difference(meant: Any, read: Any, cluster: Cluster, path: str) -> str | None:
    """Return the path of the first value that differs from its template with the facts filled in."""
    if isinstance(meant, Mapping) and isinstance(read, Mapping):
        keys = [substitute(str(key), cluster.facts) for key in meant]
        if keys != [str(key) for key in read]:
            return path or " (its keys)"
        pairs = zip(keys, meant.values(), read.values(), strict=True)
        return next(filter(None, (_difference(m, r, cluster, f"{path}.{key}") for key, m, r in pairs)), None)
    if isinstance(meant, list) and isinstance(read, list) and len(meant) == len(read):
        pairs_ = enumerate(zip(meant, read, strict=True))
        return next(filter(None, (_difference(m, r, cluster, f"{path}[{i}]") for i, (m, r) in pairs_)), None)
    if not isinstance(meant, str) or "$" not in meant:
        return None if meant == read else path
    # `replicas: ${COUNT}` may become a number, but only one that prints as it is written.
    same = substitute(meant, cluster.facts) == (str(read) if isinstance(read, int | str) else None)
    return None if same and not isinstance(read, bool) else path
