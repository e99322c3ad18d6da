"""A cluster's entry in a kubeconfig; everything else in the file stays as it is, comments too."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tools.errors import UserError

Entry = dict[str, Any]


def path() -> Path:
    """Return the file that kubectl writes to: the first of KUBECONFIG, else ~/.kube/config."""
    names = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return Path(names[0]).expanduser() if names else Path.home() / ".kube" / "config"


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
    yaml = YAML()
    yaml.width = 10_000
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    try:
        document = yaml.load(before) or {"apiVersion": "v1", "kind": "Config"}
    except YAMLError as problem:
        raise UserError(f"{file}: {str(problem).splitlines()[0]}", "kubectl config view reads it?") from None
    if not isinstance(document, dict):
        raise UserError(f"{file} is no kubeconfig", "another file: KUBECONFIG=PATH")
    context = wanted["contexts"]
    old = next((one for one in document.get("contexts") or [] if one["name"] == context["name"]), None)
    if old and old["context"].get("cluster") != context["context"]["cluster"] and not replace:
        raise UserError(
            f"{file}: the context {context['name']} is that of {old['context'].get('cluster')}",
            "--context NAME takes another name, --replace takes this one away from it",
        )
    for key, entry in wanted.items():
        _put(document, key, entry)
    if use or not document.get("current-context"):
        document["current-context"] = context["name"]
    stream = io.StringIO()
    yaml.dump(document, stream)
    if stream.getvalue() == before:
        return False
    _write(file, stream.getvalue())
    return True


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
    """Replace the file in one step, readable by its owner only."""
    target = file.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".kubeconfig-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as new:
        new.write(text)
    os.replace(name, target)
