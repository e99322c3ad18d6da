"""Build tools/kube/schemas.zip: fetch the pinned sources and write one JSON schema for each kind.

    python -m tests.preflight.build_schemas

The file is in the checkout and in the wheel, so that checks need no network. It is built again after a
change of a version. All sources have the Apache License 2.0, and each is pinned by version and
SHA-256:
- Native kinds: the package kubernetes-validate. Its wheel has 22 MB in 17,000 files, for 13 versions of
  Kubernetes in four forms. Only the kinds of one version are kept, so it is not a dependency.
- Other kinds: CustomResourceDefinitions in the Go modules of schema_sources.yaml. Only field names, types, bounds
  and the keys of lists are kept, without descriptions. The PyTorchJob is that of the release that clusters here
  install.
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
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.core import go_build, output, repo
from tools.core.errors import UserError
from tools.core.go_build import Progress, Unusable
from tools.kube.schemas import LIST_KEYS, SHIPPED, file_name

KUBERNETES = "1.35.0"  # the version that operator 1.9.4 is tested with
NATIVE_PACKAGE = "kubernetes-validate"
NATIVE_VERSION = "1.37.0"
NATIVE_SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
NATIVE_FILE = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict/_definitions.json"
ABOUT = "about.json"
LICENSE = "Apache-2.0"
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"
NETWORK_SECONDS = 30
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of each file in the archive, so that its bytes are reproducible

Schema = dict[str, Any]


@dataclass(frozen=True)
class Definition:
    """CustomResourceDefinitions in a Go module: SHA-256 by file name, below `directory`.

    `repository` is used if the module cannot be fetched. `filled` are required fields that the project's
    webhook sets: a field's name by the path of the list that holds it.
    """

    module: str
    version: str
    directory: str
    files: Mapping[str, str]
    repository: str
    filled: Mapping[str, str] = field(default_factory=dict)

    def url(self, name: str) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/v{self.version}/{self.directory}/{name}"


DEFINITIONS = tuple(Definition(**row) for row in YAML(typ="safe").load(Path(__file__).with_name("schema_sources.yaml")))


def sources() -> dict[str, str]:
    """Return the sources of the schemas with their digests."""
    crds = {f"{one.module} {one.version} {name}": digest for one in DEFINITIONS for name, digest in one.files.items()}
    return {f"{NATIVE_PACKAGE} {NATIVE_VERSION}, Kubernetes {KUBERNETES}": NATIVE_SHA256} | crds


def digest(files: Mapping[str, str]) -> str:
    """Return the SHA-256 over the names and texts of the schemas."""
    text = "".join(f"{name}\n{files[name]}\n" for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def build(root: Path, target: Path, progress: Progress) -> None:
    """Fetch the sources and write the archive of schemas to `target`. Raises Unusable or OSError."""
    native = _native(root, progress)
    files = dict(_files(native))
    definitions = {name: _lean(schema) for name, schema in native.items()}
    for one in DEFINITIONS:
        for text in _texts(root, one, progress):
            files |= _custom(YAML(typ="safe").load(text), definitions, one.filled)
    about = {"license": LICENSE, "sha256": digest(files), "sources": sources()}
    _archive(target, files | {ABOUT: json.dumps(about, indent=1) + "\n"})


def _archive(target: Path, files: Mapping[str, str]) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part") as part:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(files):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), files[name], zipfile.ZIP_DEFLATED)
        part.flush()
        shutil.copyfile(part.name, target)


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


def _texts(root: Path, definition: Definition, progress: Progress) -> list[str]:
    """Return the texts of a module's definitions. Raises Unusable, also if a digest differs."""
    progress(f"fetching {definition.module} {definition.version}")
    names = list(definition.files)
    try:
        with go_build.workshop(root) as environment:
            module = go_build.module(definition.module, definition.version, environment, progress)
            contents = [(module / definition.directory / name).read_bytes() for name in names]
    except (Unusable, OSError) as first:
        try:
            contents = [_download(definition.url(name)) for name in names]
        except (OSError, http.client.HTTPException) as second:
            raise Unusable(f"{first}; {definition.url(names[0])}: {second}") from second
    for name, content in zip(names, contents, strict=True):
        found = hashlib.sha256(content).hexdigest()
        if found != definition.files[name]:
            raise Unusable(f"{name}: its SHA-256 is {found}, not {definition.files[name]}")
    return [content.decode() for content in contents]


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=NETWORK_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _files(definitions: dict[str, Schema]) -> Iterator[tuple[str, str]]:
    """Yield file name and text of each native kind that a manifest can contain."""
    lean = {name: _lean(schema) for name, schema in definitions.items()}
    for name, schema in definitions.items():
        if METADATA not in str((schema.get("properties") or {}).get("metadata")):
            continue  # a list, or the options of a call
        for kind in schema.get(GROUP_VERSION_KIND) or ():
            whole = {"$ref": f"#/$defs/{name}", "$defs": _reachable([name], lean)}
            yield file_name(kind["group"], kind["version"], kind["kind"]), _text(whole)


def _custom(crd: Schema, definitions: dict[str, Schema], filled: Mapping[str, str]) -> dict[str, str]:
    """Return file name and text of each version of a custom kind."""
    files = {}
    for version in crd["spec"]["versions"]:
        schema = _strict(_lean(version["schema"]["openAPIV3Schema"], (LIST_KEYS,)))
        schema["properties"].pop("status", None)
        for path, name in filled.items():
            holder = schema
            for key in path.split("."):
                holder = holder["properties"][key]
            holder["items"]["required"].remove(name)
        spec = schema["properties"].get("spec") or {}
        needed = ["metadata", "spec"] if "required" in spec else ["metadata"]
        schema["required"] = list(dict.fromkeys([*needed, *(schema.get("required") or [])]))
        schema["properties"] |= {"metadata": {"$ref": f"#/$defs/{METADATA}"}, "status": {}}
        schema["$defs"] = _reachable([METADATA], definitions)
        name = file_name(crd["spec"]["group"], version["name"], crd["spec"]["names"]["kind"])
        files[name] = _text(schema)
    return files


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n"


def _lean(value: Any, extensions: Sequence[str] = ()) -> Any:
    """Return a schema without the keys that validators do not read, such as descriptions and other extensions."""
    if isinstance(value, list):
        return [_lean(item, extensions) for item in value]
    if not isinstance(value, dict):
        return value
    properties = {name: _lean(item, extensions) for name, item in (value.get("properties") or {}).items()}
    kept = {
        key: _lean(item, extensions)
        for key, item in value.items()
        if key not in ("description", "default", "properties", "format")
        and (not key.startswith("x-") or key in extensions)
    }
    if value.get("x-kubernetes-preserve-unknown-fields"):
        kept["additionalProperties"] = True
    if isinstance(kept.get("required"), list):  # a default is set before the object is validated
        given = value.get("properties") or {}
        kept["required"] = [name for name in kept["required"] if "default" not in (given.get(name) or {})]
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


def main() -> int:
    """Build the archive of the checkout and print its path. Return the exit code."""
    try:
        build(repo.root(), SHIPPED, output.note)
    except (Unusable, OSError) as reason:
        problem = UserError(f"the schemas cannot be built: {reason}", "this needs the network and Go")
        output.error(problem.message, problem.hint)
        return problem.code
    output.line(repo.shown(SHIPPED))
    return 0


if __name__ == "__main__":
    sys.exit(main())
