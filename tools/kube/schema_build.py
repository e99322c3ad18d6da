"""Build the JSON schemas: fetch the pinned sources and write one file for each kind.

Sources, each pinned by version and SHA-256:
- Native kinds: the package kubernetes-validate. Its wheel has 22 MB in 17,000 files, for 13 versions of
  Kubernetes in four forms. Only 4 MB of it are kept, so it is not a dependency.
- PyTorchJob: the CRD in the module github.com/kubeflow/trainer, from which the cluster's CRD is installed.
- Volcano's Job: the CRD in the module volcano.sh/volcano, of the version in base/plugins/volcano.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.core import go_build
from tools.core.go_build import Progress, Unusable

KUBERNETES = "1.35.0"  # the version that operator 1.9.4 is tested with
NATIVE_PACKAGE = "kubernetes-validate"
NATIVE_VERSION = "1.37.0"
NATIVE_SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
NATIVE_FILE = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict/_definitions.json"
OPERATOR_MODULE = "github.com/kubeflow/trainer"
OPERATOR_VERSION = "1.9.4"
OPERATOR_CRD = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
OPERATOR_SHA256 = "8b8a8a719cc94173169290251e817f7ac2bb425c20b6c2fa813397bcf4e932ed"
STAMP = "built-from.json"
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"
NETWORK_SECONDS = 30

Schema = dict[str, Any]


@dataclass(frozen=True)
class Definition:
    """A CustomResourceDefinition in a Go module. `repository` is used if the module cannot be fetched."""

    module: str
    version: str
    file: str
    sha256: str
    repository: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/v{self.version}/{self.file}"


DEFINITIONS = (
    Definition(OPERATOR_MODULE, OPERATOR_VERSION, OPERATOR_CRD, OPERATOR_SHA256, "kubeflow/trainer"),
    Definition(
        "volcano.sh/volcano",
        "1.15.1",
        "config/crd/volcano/bases/batch.volcano.sh_jobs.yaml",
        "a03feedc265bc8c9d71240063a37e0e818fa70fcad7b8a113b0875dc53fffa90",
        "volcano-sh/volcano",
    ),
)


def sources() -> dict[str, str]:
    """Return the sources of the schemas with their digests."""
    return {
        f"{NATIVE_PACKAGE} {NATIVE_VERSION}, Kubernetes {KUBERNETES}": NATIVE_SHA256,
        **{f"{one.module} {one.version}": one.sha256 for one in DEFINITIONS},
        "form": "1",
    }


def file_name(group: str, version: str, kind: str) -> str:
    """Return the name of a kind's file. As in kubeconform, the group of a core kind is its version."""
    return f"{group or version}_{kind.lower()}_{version}.json".replace("/", "_")


def build(root: Path, directory: Path, progress: Progress) -> None:
    """Fetch the sources and write the schemas to `directory`, which may exist. Raises Unusable or OSError."""
    definitions = _native(root, progress)
    crds = [YAML(typ="safe", pure=True).load(_text(root, one, progress)) for one in DEFINITIONS]
    work = Path(tempfile.mkdtemp(prefix="schemas-", dir=directory.parent))
    try:
        _write(work, definitions, crds)
        shutil.rmtree(directory, ignore_errors=True)
        work.replace(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _native(root: Path, progress: Progress) -> dict[str, Schema]:
    """Return the definitions of all native kinds by name. Raises Unusable."""
    progress(f"fetching {NATIVE_PACKAGE} {NATIVE_VERSION} (22 MB)")
    cache = root / ".cache"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="native-", dir=cache) as name:
        work = Path(name)
        wanted = work / "requirements.txt"
        wanted.write_text(f"{NATIVE_PACKAGE}=={NATIVE_VERSION} --hash=sha256:{NATIVE_SHA256}\n")
        command = [*_installer(), "--no-deps", "--require-hashes", "--target", str(work / "package")]
        done = _call([*command, "-r", str(wanted)])
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unusable(f"{NATIVE_PACKAGE}: {last.strip()}")
        text = (work / "package" / NATIVE_FILE).read_text(encoding="utf-8")
    definitions: dict[str, Schema] = json.loads(text)["$defs"]
    return definitions


def _installer() -> list[str]:
    """Return the command that installs packages: uv, or pip."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir"]


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unusable(f"{command[0]}: {problem}") from problem


def _text(root: Path, definition: Definition, progress: Progress) -> str:
    """Return the text of a definition. Raises Unusable, also if its digest differs."""
    progress(f"fetching {definition.module} {definition.version}")
    try:
        with go_build.workshop(root) as environment:
            directory = go_build.module(definition.module, definition.version, environment, progress)
            content = (directory / definition.file).read_bytes()
    except (Unusable, OSError) as first:
        try:
            with urllib.request.urlopen(definition.url, timeout=NETWORK_SECONDS) as answer:
                content = answer.read()
        except (OSError, http.client.HTTPException) as second:
            raise Unusable(f"{first}; {definition.url}: {second}") from second
    digest = hashlib.sha256(content).hexdigest()
    if digest != definition.sha256:
        raise Unusable(f"{definition.file}: its SHA-256 is {digest}, not {definition.sha256}")
    return content.decode()


def _write(directory: Path, definitions: dict[str, Schema], crds: Sequence[Schema]) -> None:
    lean: dict[str, Schema] = {name: _lean(schema) for name, schema in definitions.items()}
    for name, schema in definitions.items():
        for kind in schema.get(GROUP_VERSION_KIND) or ():
            whole = {"$ref": f"#/$defs/{name}", "$defs": _reachable([name], lean)}
            _put(directory / file_name(kind["group"], kind["version"], kind["kind"]), whole)
    for crd in crds:
        _write_custom(directory, crd, lean)
    _put(directory / STAMP, sources())


def _write_custom(directory: Path, crd: Schema, lean: dict[str, Schema]) -> None:
    for version in crd["spec"]["versions"]:
        schema = _strict(_lean(version["schema"]["openAPIV3Schema"]))
        schema["properties"]["metadata"] = {"$ref": f"#/$defs/{METADATA}"}
        schema["required"] = ["metadata", "spec"]
        schema["$defs"] = _reachable([METADATA], lean)
        name = file_name(crd["spec"]["group"], version["name"], crd["spec"]["names"]["kind"])
        _put(directory / name, schema)


def _put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


def _lean(value: Any) -> Any:
    """Return a schema without the keys that validators do not read, such as descriptions and extensions."""
    if isinstance(value, list):
        return [_lean(item) for item in value]
    if not isinstance(value, dict):
        return value
    properties = {name: _lean(item) for name, item in (value.get("properties") or {}).items()}
    kept = {
        key: _lean(item)
        for key, item in value.items()
        if key not in ("description", "default", "properties", "format") and not key.startswith("x-")
    }
    if value.get("x-kubernetes-preserve-unknown-fields"):
        kept["additionalProperties"] = True
    return kept | ({"properties": properties} if properties else {})


def _strict(value: Any) -> Any:
    """Return a CRD's schema that refuses unknown fields, as the API server's strict validation does."""
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if not isinstance(value, dict):
        return value
    strict = {key: _strict(item) for key, item in value.items()}
    if isinstance(value.get("properties"), dict) and value.get("type") == "object":
        strict.setdefault("additionalProperties", False)
        strict["properties"] = {name: _nullable(item) for name, item in strict["properties"].items()}
    return strict


def _nullable(schema: Schema) -> Schema:
    """Allow null, which the API server treats as a missing field."""
    kind = schema.get("type")
    return schema if not isinstance(kind, str) else schema | {"type": [kind, "null"]}


def _reachable(names: Sequence[str], definitions: dict[str, Schema]) -> dict[str, Schema]:
    """Return the definitions `names` and those that they refer to."""
    reached: dict[str, Schema] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = definitions[name]
            waiting += _references(definitions[name])
    return reached


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref" and isinstance(item, str):
                yield item.rpartition("/")[2]
            else:
                yield from _references(item)
