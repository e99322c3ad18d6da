"""A cluster's entry in a kubeconfig; everything else in the file stays as it is, comments too."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tools.core.errors import UserError

Entry = dict[str, Any]


def paths() -> list[Path]:
    """Return the files that kubectl reads as one, the first to have a name wins: KUBECONFIG, or the usual."""
    names = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return [Path(name).expanduser() for name in names] or [Path.home() / ".kube" / "config"]


def target(context: str) -> Path:
    """Return the file to write a context to, as kubectl does.

    That which has it, else the first that exists, else the last. Raises UserError.
    """
    files = paths()
    having = [file for file in files if any(one["name"] == context for one in _rows(_read(file)[1]))]
    existing = [file for file in files if file.exists()]
    return [*having, *existing, files[-1]][0]


def entries(cluster: Entry, region: str, context: str, profile: str | None) -> dict[str, Entry]:
    """Return the `clusters`, `users` and `contexts` entries of an EKS cluster, as EKS describes it."""
    arn = str(cluster["arn"])
    arguments = [
        "--region",
        region,
        "eks",
        "get-token",
        "--cluster-name",
        cluster["name"],
        "--output",
        "json",
    ]
    execute: Entry = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": arguments,
    }
    execute["interactiveMode"] = "IfAvailable"
    if profile:
        execute["env"] = [{"name": "AWS_PROFILE", "value": profile}]
    server = {
        "server": cluster["endpoint"],
        "certificate-authority-data": cluster["certificateAuthority"]["data"],
    }
    return {
        "clusters": {"name": arn, "cluster": server},
        "users": {"name": arn, "user": {"exec": execute}},
        "contexts": {"name": context, "context": {"cluster": arn, "user": arn}},
    }


def merge(file: Path, wanted: dict[str, Entry], replace: bool, use: bool) -> bool:
    """Put entries into a kubeconfig and return whether that changed it.

    A context of the same name for another cluster is refused unless `replace`. The current context changes
    with `use`, or where there is none. Raises UserError; the file is then as it was.
    """
    before, document = _read(file)
    context = wanted["contexts"]
    old = next((one for one in _rows(document) if one["name"] == context["name"]), None)
    if old and old["context"].get("cluster") != context["context"]["cluster"] and not replace:
        raise UserError(
            f"{file}: the context {context['name']} is that of {old['context'].get('cluster')}",
            "--context NAME takes another name, --replace takes this one away from it",
        )
    for key, entry in wanted.items():
        _put(document, key, entry)
    elsewhere = [one for one in paths() if one != file and _read(one)[1].get("current-context")]
    if use or not (document.get("current-context") or elsewhere):
        document["current-context"] = context["name"]
    stream = io.StringIO()
    _yaml().dump(document, stream)
    if stream.getvalue() == before:
        return False
    _write(file, stream.getvalue())
    return True


def _yaml() -> YAML:
    yaml = YAML()
    yaml.width = 10_000
    return yaml


def _read(file: Path) -> tuple[str, Any]:
    """Return a kubeconfig's text and what it says; one that is not there is empty. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "not a UTF-8 text"
        raise UserError(f"{file}: {reason}", "another file: KUBECONFIG=PATH") from None
    try:
        document = _yaml().load(text) or {"apiVersion": "v1", "kind": "Config"}
    except YAMLError as problem:
        raise UserError(f"{file}: {str(problem).splitlines()[0]}", "kubectl config view reads it?") from None
    if not isinstance(document, dict) or not all(
        isinstance(one, dict) and "name" in one for one in _rows(document)
    ):
        raise UserError(f"{file} is no kubeconfig", "another file: KUBECONFIG=PATH")
    return text, document


def _rows(document: Any) -> list[Any]:
    return list(document.get("contexts") or [])


def _put(document: Any, key: str, entry: Entry) -> None:
    rows = document.get(key) or []
    index = next((at for at, row in enumerate(rows) if row["name"] == entry["name"]), len(rows))
    if index == len(rows):
        rows.append(entry)
    elif key == "contexts":
        rows[index]["context"].update(entry["context"])  # a namespace that somebody set stays
    else:
        rows[index] = entry
    document[key] = rows


def _write(file: Path, text: str) -> None:
    """Replace the file in one step, readable by its owner only. Raises UserError."""
    place = file.resolve()
    if place.exists() and not place.stat().st_mode & stat.S_IWUSR:
        raise UserError(f"{file} is read-only", f"chmod u+w {file}, or another file: KUBECONFIG=PATH")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".kubeconfig-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as new:
            new.write(text)
        os.replace(name, place)
    except OSError as problem:
        raise UserError(
            f"{file} cannot be written: {problem.strerror}", "another file: KUBECONFIG=PATH"
        ) from None
