"""What was submitted, kept with the job: a ConfigMap that the job owns, and a file below local/.

The ConfigMap goes with the job; the file stays. Both are readable by others than the submitter, so secrets
are masked in them.
"""

import copy
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core import UserError, repo, secret_patterns, tables
from tools.job.snapshot import LiveJob
from tools.job.snapshot.live_job import kind_of
from tools.job.snapshot.pod import template_specs
from tools.job.snapshot.references import needed
from tools.kube import Kubectl, Manifests, Object, name_of
from tools.kube.manifests import parse
from tools.workload import Workload

MANIFEST, FACTS = "manifest.yaml", "submitted.json"
LARGEST = 900 * 1024  # bytes of a kept manifest; the API server takes ConfigMaps of 1 MiB
HIDDEN = "***"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
QUEUE_MANAGER = "kueue.x-k8s.io/manager"  # of a TrainJob's runtimePatches
_TABLES: dict[str, Any] = tables.load("job/tables.yaml")
# What the API server, a controller or a queue writes into the spec of a job: the next one gets its own.
GENERATED: dict[str, list[list[str]]] = _TABLES["generated"]


@dataclass(frozen=True)
class Facts:
    """Where a manifest came from: the cell or file, the command, and when it was submitted (UTC)."""

    source: str
    command: str
    time: str


@dataclass(frozen=True)
class Submitted:
    """A manifest that was submitted, and `where` it was found. `facts` is None if they are unknown."""

    where: str
    manifests: Manifests
    facts: Facts | None = None

    def text(self) -> str:
        """Return the objects as YAML, with secrets masked."""
        return _text(self.manifests.objects)


def keep(kubectl: Kubectl, manifests: Manifests, top: Object, uid: str, command: str) -> list[str]:
    """Keep what a command submitted as the job `top`; return a sentence for each place that refused."""
    facts = Facts(manifests.source, secret_patterns.mask(command), datetime.now(UTC).isoformat(timespec="seconds"))
    text = _text(manifests.objects)
    problems = []
    for place in (_in_cluster, _here):
        try:
            place(kubectl, top, uid, text, json.dumps(asdict(facts)))
        except (UserError, OSError) as problem:
            problems.append(f"what was submitted is not kept: {getattr(problem, 'message', problem)}")
    return problems


def _in_cluster(kubectl: Kubectl, top: Object, uid: str, text: str, facts: str) -> None:
    if len(text.encode()) > LARGEST:
        raise UserError(f"the manifest is larger than {LARGEST >> 10} KiB")
    names = {"api": top["apiVersion"], "kind": top["kind"], "name": name_of(top), "uid": uid}
    item = tables.filled(_TABLES["submitted"], {**names, "manifest": text, "facts": facts})
    words = ("apply", "--server-side", "--force-conflicts", "--filename=-", "--output=name")
    kubectl.text(*words, stdin=json.dumps(item))


def _here(kubectl: Kubectl, top: Object, uid: str, text: str, facts: str) -> None:
    """Write the file that is left when the job and its ConfigMap are deleted."""
    repo.write(_path(str(kubectl.namespace), name_of(top)), f"# {facts}\n# UID {uid}\n{text}")


def _path(namespace: str, name: str) -> Path:
    return repo.local() / "submitted" / namespace / f"{name}.yaml"


def _name(top: Object) -> str:
    return f"{name_of(top)}-submitted"


def _text(objects: list[Object]) -> str:
    return str(yaml.safe_dump_all(map(_without_secrets, objects), sort_keys=False, width=120))


def _without_secrets(item: Object) -> Object:
    if item.get("kind") != "Secret":
        found: Object = secret_patterns.masked(item)
        return found
    hidden = {key: dict.fromkeys(item[key], HIDDEN) for key in ("data", "stringData") if item.get(key)}
    return {**item, **hidden}


def kept(kubectl: Kubectl, job: LiveJob) -> Submitted | None:
    """Return what was kept in the cluster for this very job, None if nothing was."""
    found = kubectl.items("configmap", "--ignore-not-found", names=[_name(job.top)])
    owners = [one.get("uid") for item in found for one in item["metadata"].get("ownerReferences") or []]
    if not found or job.top["metadata"].get("uid") not in owners:
        return None
    data = found[0].get("data") or {}
    where = f"ConfigMap/{_name(job.top)}, as submitted"
    return Submitted(where, parse(str(data.get(MANIFEST, "")), where), _facts(str(data.get(FACTS, ""))))


def kept_here(namespace: str, name: str) -> Submitted | None:
    """Return what was last submitted under this name from this directory, None if nothing was."""
    path = _path(namespace, name)
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    where = f"{repo.shown(path)}, as last submitted from here; the cluster has no such job"
    return Submitted(where, parse(text, str(path)), _facts(text.partition("\n")[0].removeprefix("# ")))


def live(kubectl: Kubectl, job: LiveJob) -> Submitted:
    """Return the job as the cluster has it, with its ConfigMaps, without what the cluster has added."""
    where = f"the live {job.title}, without the fields of the cluster; what was submitted was not kept"
    return Submitted(where, Manifests(job.title, [clean(job.top), *configuration(kubectl, job.workload)]))


def configuration(kubectl: Kubectl, job: Workload) -> list[Object]:
    """Return the ConfigMaps that a job's pods name, as they can be applied again."""
    references = [reference for spec in template_specs(job) for reference in needed(spec)]
    names = sorted({reference.name for reference in references if reference.kind == "ConfigMap"})
    found = kubectl.items("configmap", "--ignore-not-found", names=names) if names else []
    return [clean(one) for one in found]


def _facts(text: str) -> Facts | None:
    try:
        found = json.loads(text)
        return Facts(**{key: str(value) for key, value in found.items()})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def clean(item: Object) -> Object:
    """Return a copy of an object that can be applied again, without what the cluster has added to it."""
    found = copy.deepcopy(item)
    found.pop("status", None)
    for key in _TABLES["metadata of the cluster"]:
        found["metadata"].pop(key, None)
    (found["metadata"].get("annotations") or {}).pop(_APPLIED, None)
    for path in GENERATED.get(kind_of(item), []):
        _drop(found, path)
    patches = (found.get("spec") or {}).get("runtimePatches")
    if patches:
        found["spec"]["runtimePatches"] = [one for one in patches if one.get("manager") != QUEUE_MANAGER]
    return found


def _drop(item: Any, path: list[str]) -> None:
    """Remove the value at a path; `*` stands for every part of a list."""
    key, *rest = path
    if isinstance(item, list) and key == "*":
        for part in item:
            _drop(part, rest)
    elif isinstance(item, dict) and rest:
        _drop(item.get(key), rest)
    elif isinstance(item, dict):
        item.pop(key, None)
