"""JSON schemas of Kubernetes' own kinds, of the training operator's and Volcano's, and objects held to them.

    python -m tools.kube.schemas

builds `.cache/schemas` (once; about 10 s, needs the network) and prints where it is. One file a kind,
`<group>_<kind>_<version>.json`, whole in itself, so that `kubeconform` and Python read the same files. They
are strict: a field that the kind does not have is an error, as it is to `kubectl apply`.

Sources, each pinned by version and SHA-256:
- native kinds: the package kubernetes-validate. Its wheel has 22 MB and its 17,000 files 72 MB, for 13
  versions of Kubernetes in four forms; so it is taken apart here, once, and not installed. What is kept of it
  has 4 MB.
- PyTorchJob: the CRD in module github.com/kubeflow/trainer, from which the cluster's own is installed.
- Volcano's Job: the CRD in module volcano.sh/volcano, of the version in base/plugins/volcano.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from tools.core import go_build, repo
from tools.core.errors import UserError
from tools.core.go_build import Progress, Unusable

KUBERNETES = "1.35.0"  # what operator 1.9.4 is tested on
NATIVE_PACKAGE = "kubernetes-validate"
NATIVE_VERSION = "1.37.0"
NATIVE_SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
NATIVE_FILE = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict/_definitions.json"
OPERATOR_MODULE = "github.com/kubeflow/trainer"
OPERATOR_VERSION = "1.9.4"
OPERATOR_CRD = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
OPERATOR_SHA256 = "8b8a8a719cc94173169290251e817f7ac2bb425c20b6c2fa813397bcf4e932ed"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform"
KUBECONFORM_VERSION = "0.8.0"

LOCATION = "{{.Group}}_{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"  # kubeconform's names of our files
STAMP = "built-from.json"
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"
NETWORK_SECONDS = 30
HOW = "python -m tools.kube.schemas"

Schema = dict[str, Any]


@dataclass(frozen=True)
class Definition:
    """A CustomResourceDefinition in a Go module, and its repository where no module proxy is reached."""

    module: str
    version: str
    file: str
    sha256: str
    repository: str

    @property
    def url(self) -> str:
        """Return where the file is outside the module."""
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


@dataclass(frozen=True)
class Fault:
    """Where an object differs from its schema: a path such as `spec.template`, and one clause."""

    path: str
    message: str


class Schemas:
    """The schemas in one directory, read when they are first asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._validators: dict[str, Draft202012Validator | None] = {}

    def faults(self, item: Schema) -> list[Fault] | None:
        """Return where `item` differs from its kind's schema, or None where the kind has none here."""
        group, _, version = str(item.get("apiVersion")).rpartition("/")
        validator = self._validator(file_name(group, version, str(item.get("kind"))))
        if validator is None:
            return None
        return [fault for error in validator.iter_errors(item) for fault in _faults(error)]

    def _validator(self, name: str) -> Draft202012Validator | None:
        if name not in self._validators:
            path = self.directory / name
            schema = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
            self._validators[name] = None if schema is None else Draft202012Validator(schema)
        return self._validators[name]


def find(root: Path) -> Schemas | None:
    """Return the schemas that `root/.cache` holds, or None when they are not built or of other versions."""
    directory = root / ".cache" / "schemas"
    try:
        stamp = json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Schemas(directory) if stamp == sources() else None


def ensure(root: Path, progress: Progress) -> Schemas:
    """Return the schemas; build them where `root/.cache` has none. Raises UserError."""
    found = find(root)
    if found is not None:
        return found
    directory = root / ".cache" / "schemas"
    try:
        definitions = _native(root, progress)
        crds = [YAML(typ="safe", pure=True).load(_text(root, one, progress)) for one in DEFINITIONS]
    except (Unusable, OSError) as reason:
        raise UserError(f"the schemas cannot be had: {reason}", "this needs the network, once") from reason
    work = Path(tempfile.mkdtemp(prefix="schemas-", dir=directory.parent))
    try:
        _write(work, definitions, crds)
        shutil.rmtree(directory, ignore_errors=True)
        work.replace(directory)
    except OSError as problem:
        if find(root) is None:  # else another process was here first
            raise UserError(f"{repo.shown(directory)}: {problem.strerror}") from problem
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Schemas(directory)


def sources() -> dict[str, str]:
    """Return what the schemas are built from, with digests."""
    return {
        f"{NATIVE_PACKAGE} {NATIVE_VERSION}, Kubernetes {KUBERNETES}": NATIVE_SHA256,
        **{f"{one.module} {one.version}": one.sha256 for one in DEFINITIONS},
        "form": "1",
    }


def file_name(group: str, version: str, kind: str) -> str:
    """Return the name of a kind's file; kubeconform makes the same one from LOCATION.

    To kubeconform the group of a core kind (apiVersion v1) is v1.
    """
    return f"{group or version}_{kind.lower()}_{version}.json".replace("/", "_")


def ensure_kubeconform(root: Path, progress: Progress) -> Path:
    """Return the pinned kubeconform in `root/.cache/bin`; build it there with Go (half a minute, once).

    Raises Unusable where there is no Go or no network.
    """
    program = root / ".cache" / "bin" / f"kubeconform-{KUBECONFORM_VERSION}"
    if program.is_file():
        return program
    with go_build.workshop(root) as environment:
        progress(f"building kubeconform {KUBECONFORM_VERSION}: about half a minute, once")
        built = go_build.install(KUBECONFORM, "kubeconform", KUBECONFORM_VERSION, environment, progress)
        try:
            program.parent.mkdir(exist_ok=True)
            built.replace(program)
        except OSError as problem:
            raise Unusable(f"go install: {problem}") from problem
    return program


def kubeconform(program: Path, schemas: Schemas, manifests: str) -> subprocess.CompletedProcess[str]:
    """Run kubeconform over a YAML text: strict, from our files only, a kind without schema is an error."""
    location = f"{schemas.directory}/{LOCATION}"
    command = [str(program), "-strict", "-summary", "-output", "json", "-schema-location", location, "-"]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=120, check=False)


def _native(root: Path, progress: Progress) -> dict[str, Schema]:
    """Return the definitions of all native kinds, by name. Raises Unusable."""
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
    """Return the command that installs packages: the environment's uv, or pip."""
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
    """Return the text of a definition, checked by its digest. Raises Unusable."""
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
    """Return a schema without what no validator reads: descriptions, defaults, Kubernetes' extensions."""
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
    """Return a CRD's schema with unknown fields refused, as the API server's strict field validation does."""
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
    """Allow null: the API server takes a field that is null for one that is not there."""
    kind = schema.get("type")
    return schema if not isinstance(kind, str) else schema | {"type": [kind, "null"]}


def _reachable(names: Sequence[str], definitions: dict[str, Schema]) -> dict[str, Schema]:
    """Return the definitions that `names` need, themselves included."""
    found: dict[str, Schema] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = definitions[name]
            waiting += _references(definitions[name])
    return found


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


def _faults(error: Any) -> Iterator[Fault]:
    """Turn one of jsonschema's errors into faults of our own words."""
    path = _path(error.absolute_path)
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties") or ())
        for name in sorted(set(error.instance) - set(known)):
            match = repo.nearest(str(name), known, cutoff=0.7)
            yield Fault(
                f"{path}.{name}".lstrip("."), "unknown field" + (f"; did you mean {match}?" if match else "")
            )
        return
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        yield Fault(path, f"{', '.join(missing)} is missing")
        return
    if error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        wanted = " or ".join(kind for kind in kinds if kind != "null")
        yield Fault(path, f"{_short(error.instance)} is not of type {wanted}")
        return
    if error.validator in ("anyOf", "oneOf"):
        yield Fault(path, f"{_short(error.instance)} is of none of the types that are allowed here")
        return
    yield Fault(
        path, f"{_short(error.instance)}: {error.validator} {_short(error.validator_value)} is not met"
    )


def _path(parts: Any) -> str:
    return re.sub(
        r"\.\[", "[", ".".join(f"[{part}]" if isinstance(part, int) else str(part) for part in parts)
    )


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> int:
    """Build the schemas where they are missing and print where they are; return the exit code."""
    try:
        print(ensure(repo.root(), lambda line: print(line, file=sys.stderr, flush=True)).directory)
    except UserError as problem:
        print(f"error: {problem.message}\n  hint: {problem.hint}", file=sys.stderr)
        return problem.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
