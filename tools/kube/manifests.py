"""Read manifests as objects, with clear errors."""

import base64
import binascii
import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml  # type: ignore[import-untyped]
from yaml.constructor import ConstructorError  # type: ignore[import-untyped]

from tools.core import UserError
from tools.core.nested import mapped
from tools.core.tables import load
from training.run import bounds
from training.run.files import read_bounded

HELM = re.compile(r"\{\{-? {0,9}(?:if|range|include|with|end|define|\.Values|\$)\b")
LARGEST = 10 * 2**20  # bytes of a manifest; etcd takes objects of 1.5 MiB, a rendered cell has 20 KiB
MOST_PODS = 4096  # of an object, and processes of a pod
STANDARD_INPUT = "-"
GENERATED = "00000"  # for the five characters that the API server appends to a generateName
_TAGS = (None, "!", "tag:yaml.org,2002:str")  # the reader decides all other types by the value's form

_NUMERIC = (*"0123456789+-.~=<",)  # readers differ in which texts that begin so are numbers or times

Object = dict[str, Any]

_TABLE: dict[str, Any] = load("kube/manifests.yaml")


class _Reader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML as kubectl does: `yes` and `on` are booleans, 0444 is octal, 08 and 1_000 are numbers, a date is text.

    libyaml's parser, if PyYAML has it, reads a rendered cell in 4 ms instead of 50 ms.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def flatten_mapping(self, node: Any) -> None:
        """Refuse duplicate keys, of which the last one would silently win, before `<<` adds those of other mappings.

        A mapping that others merge may come here before its own turn.
        """
        if getattr(node, "flat", False):
            return
        node.flat = True
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "found a key that is not a scalar", key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"found duplicate key {key.value!r}", key.start_mark)
            seen.add(key.value)
        super().flatten_mapping(node)


for _name, _pattern, _first in _TABLE["scalars"]:
    _firsts = [*_first, ""] if _name == "null" else [*_first]
    _Reader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _firsts)


class _Writer(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes YAML that kubectl reads as the same values: a text such as `on` or `1e-4` gets quotes."""

    yaml_implicit_resolvers = _Reader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, value: str) -> Any:
        style = "|" if "\n" in value else "'" if value[:1] in _NUMERIC else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Writer.add_representer(str, _Writer.text)


@dataclass(frozen=True)
class Manifests:
    """The objects of a rendered cell or a file. `source` is its name in messages."""

    source: str
    objects: list[Object]

    def as_list(self) -> str:
        """Return the objects as a List for kubectl."""
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": self.objects})

    def of_kind(self, kind: str) -> list[Object]:
        return [item for item in self.objects if item.get("kind") == kind]

    def jobs(self) -> list[Object]:
        """Return the PyTorchJobs of the training operator (apiVersion kubeflow.org/v1)."""
        return [item for item in self.of_kind("PyTorchJob") if item.get("apiVersion") == "kubeflow.org/v1"]

    def job(self) -> Object:
        """Return the only PyTorchJob. Raises UserError if there is none or more than one."""
        jobs = self.jobs()
        if len(jobs) == 1:
            return jobs[0]
        if jobs:
            names = ", ".join(name_of(job) for job in jobs)
            raise UserError(f"{self.source}: contains {len(jobs)} PyTorchJobs, one is needed: {names}")
        kinds = ", ".join(sorted({str(item.get("kind")) for item in self.objects})) or "nothing"
        raise UserError(f"{self.source}: contains no PyTorchJob (kubeflow.org/v1), only {kinds}")

    def texts(self, kind: str, name: str, namespace: str | None = None) -> dict[str, str] | None:
        """Return the texts of a ConfigMap or a Secret by key, or None if there is no such object.

        Values of a Secret that are not texts are left out. Raises UserError for one that is not base64.
        """
        item = self.named(kind, name, namespace)
        if item is None:
            return None
        data = item.get("data") or {}
        if kind == "ConfigMap":
            return dict(data)
        decoded = {key: text for key, value in data.items() if (text := self._decoded(name, key, value)) is not None}
        return decoded | dict(item.get("stringData") or {})

    def named(self, kind: str, name: str, namespace: str | None) -> Object | None:
        """Return the object of a kind and a name; one without a namespace is in every namespace."""
        for item in self.of_kind(kind):
            here = item["metadata"].get("namespace")
            if name_of(item) == name and (not here or not namespace or here == namespace):
                return item
        return None

    def _decoded(self, name: str, key: str, value: str) -> str | None:
        if (found := from_base64(value)) is None:
            raise UserError(f"{self.source}: Secret {name}, data.{key}: not base64")
        with contextlib.suppress(UnicodeDecodeError):
            return found.decode()
        return None


def from_base64(value: Any) -> bytes | None:
    """Return what a value of a Secret's `data` stands for, which may have line ends; None if it is not base64."""
    try:
        return base64.b64decode(re.sub(r"[\r\n]", "", value), validate=True)
    except (binascii.Error, TypeError, ValueError):
        return None


def written(documents: Iterable[Any]) -> str:
    """Return objects as YAML documents, their keys in the order that they have."""
    text = yaml.dump_all(documents, Dumper=_Writer, sort_keys=False, width=120)
    return str(text)


def parse(text: str, source: str) -> Manifests:
    """Return the objects of a YAML text, with the items of each `List`.

    Raises UserError with `source` and the line of a fault in the YAML.
    """
    objects: list[Object] = []
    for number, document in enumerate(documents(text, source), start=1):
        objects += _objects(document, f"{source}, document {number}")
    return Manifests(source, objects)


def documents(text: str, source: str) -> list[Any]:
    """Return the documents of a YAML text that are not empty; each alias is a value of its own.

    Raises UserError as `parse` does.
    """
    if len(text) > LARGEST:
        raise UserError(f"{source}: is larger than {LARGEST >> 20} MiB, the most that is read")
    try:
        bounds.check(_plain(yaml.parse(text, _Reader)))
        return [mapped(one, str) for one in yaml.load_all(text, _Reader) if one is not None]
    except bounds.UnboundedError as problem:
        raise UserError(f"{source}:{problem.line}: {problem}") from None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        hint = "fill in its {{...}} first" if "{{" in text else None
        tabs = "any token" in str(problem.problem) and "\t" in text
        hint = "YAML takes no tabs for indentation: use spaces" if tabs else hint
        hint = "render it first: helm template CHART | yard preflight -" if HELM.search(text) else hint
        raise UserError(f"{where}: not valid YAML: {problem.problem or problem.context}", hint) from None
    except yaml.YAMLError as problem:
        raise UserError(f"{source}: not valid YAML: {str(problem).splitlines()[0]}") from None


def _plain(events: Iterable[Any]) -> Iterator[Any]:
    """Yield the events of a text without tags, which Kubernetes' objects do not have."""
    for event in events:
        if getattr(event, "tag", None) not in _TAGS:
            raise ConstructorError(None, None, f"found the tag {event.tag[:80]!r}", event.start_mark)
        yield event


def read(name: str | Path, source: str | None = None) -> Manifests:
    """Parse a manifest file, or standard input for `-`. Raises UserError if it cannot be read."""
    if str(name) == STANDARD_INPUT:
        source = "standard input"
    return parse(text_of(name, source or str(name)), source or str(name))


def text_of(name: str | Path, source: str) -> str:
    """Return the text of a regular file, of standard input for `-`, or of a shell's `<(COMMAND)`.

    No more is read than one byte or character above LARGEST. Raises UserError, which names `source`.
    """
    try:
        if str(name) == STANDARD_INPUT:
            return sys.stdin.read(LARGEST + 1)
        if is_from_shell(name):
            with open(name, encoding="utf-8-sig") as pipe:
                return pipe.read(LARGEST + 1)
        return read_bounded(Path(name), LARGEST, follow=True).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{source}: not UTF-8 text") from None
    except OSError as problem:
        raise UserError(f"{source}: {problem.strerror or problem}") from None


def is_from_shell(name: str | Path) -> bool:
    """Return whether a path is what a shell makes of `<(COMMAND)`: a pipe that is read once."""
    return str(name).startswith(("/dev/fd/", "/proc/self/fd/"))


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def _objects(document: Any, where: str) -> list[Object]:
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List") and "items" in document:
        items = document["items"] or []
        if not isinstance(items, list):
            raise UserError(f"{where}: items of the {document['kind']} must be a list")
        return [item for part in items for item in _objects(part, where)]
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise UserError(f"{where}: not a Kubernetes object (a mapping with a kind)")
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("generateName"), str):
        metadata.setdefault("name", metadata["generateName"] + GENERATED)
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if name is not None and not isinstance(name, str):
        raise UserError(f"{where}: metadata.name of the {document['kind']} must be a string in quotes, not {name!r}")
    if name is None:
        hint = "name its directory: yard preflight DIRECTORY" if document["kind"] == "Kustomization" else None
        raise UserError(f"{where}: {document['kind']} has no metadata.name", hint)
    for name, value in counts(document.get("spec")):
        if value > MOST_PODS:
            raise UserError(f"{where}: {name} is {value:.3g}, more than {MOST_PODS}, the most that is read")
    return [document]


def counts(value: Any) -> Iterator[tuple[str, float]]:
    """Yield the fields that say how many pods or processes there are, with their numbers."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    for key in _TABLE["counts"] if isinstance(value, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            yield key, float(value.get(key))
    for part in parts:
        yield from counts(part)
