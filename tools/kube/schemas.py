"""Check objects against the JSON schemas of Kubernetes' kinds and of the kinds around training.

The schemas are in `tools/kube/schemas.zip`, which `make schemas` builds. Each kind has one self-contained
file, `<group>_<kind>_<version>.json`, which kubeconform can read too. The schemas are strict: a field that
the kind does not have is an error, as with `kubectl apply`.
"""

import functools
import itertools
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators  # type: ignore[import-untyped]

from tools.core import repo
from tools.core.output import short
from tools.kube.manifests import Object

SHIPPED = Path(__file__).with_name("schemas.zip")
VALUE = 60  # characters of a value in a message
MISSING = "the field is missing"
LIST_KEYS = "x-kubernetes-list-map-keys"  # the fields by which the API server knows the entries of a custom kind's list
TWICE = "an earlier entry of the list has the same"
MOST_FAULTS = 100  # of one object; a person reads no more


@dataclass(frozen=True)
class Fault:
    """A difference between an object and its schema: a path such as `spec.template`, and a message."""

    path: str
    message: str


class Schemas:
    """The schemas in an archive. Each is read when it is first used."""

    def __init__(self, archive: Path) -> None:
        self._archive = zipfile.ZipFile(archive)
        self._names = set(self._archive.namelist())
        self._validators: dict[str, Any] = {}

    def faults(self, item: Object) -> list[Fault] | None:
        """Return the differences between `item` and its kind's schema, or None if there is no schema.

        After MOST_FAULTS a last one says that there are more: they are not computed.
        """
        validator = self._validator(_file_of(item))
        if validator is None:
            return None
        faults = (fault for error in validator.iter_errors(item) for fault in _faults(error))
        found = list(itertools.islice(faults, MOST_FAULTS + 1))
        more = [Fault("", f"has more than {MOST_FAULTS} faults; the others are not shown")]
        return found if len(found) <= MOST_FAULTS else found[:MOST_FAULTS] + more

    def knows(self, item: Object) -> bool:
        """Return whether there is a schema for the object's kind."""
        return _file_of(item) in self._names

    def _validator(self, name: str) -> Any:
        if name not in self._validators:
            schema = json.loads(self._archive.read(name)) if name in self._names else None
            self._validators[name] = None if schema is None else _VALIDATOR(schema)
        return self._validators[name]


@functools.cache
def shipped() -> Schemas:
    """Return the schemas that are in the checkout and in the wheel."""
    return Schemas(SHIPPED)


def file_name(group: str, version: str, kind: str) -> str:
    """Return the name of a kind's file. As in kubeconform, the group of a core kind is its version."""
    return f"{group or version}_{kind.lower()}_{version}.json".replace("/", "_")


def _file_of(item: Object) -> str:
    group, _, version = str(item.get("apiVersion")).rpartition("/")
    return file_name(group, version, str(item.get("kind")))


def _distinct(_: Any, keys: list[str], entries: Any, __: Any) -> Iterator[ValidationError]:
    """Yield an error for each entry of a list whose keys an earlier one has, as the API server does."""
    seen = set()
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        found = json.dumps([entry.get(key) for key in keys], default=str) if isinstance(entry, dict) else None
        if found in seen:
            yield ValidationError(f"{TWICE} {' and '.join(keys)}", path=[index])
        seen.add(found)


_VALIDATOR = validators.extend(Draft202012Validator, {LIST_KEYS: _distinct})


def _faults(error: Any) -> Iterator[Fault]:
    """Yield the faults in one of jsonschema's errors."""
    path = re.sub(
        r"\.\[", "[", ".".join(f"[{one}]" if isinstance(one, int) else str(one) for one in error.absolute_path)
    )
    wanted = error.validator_value
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties") or ())
        for name in sorted(set(error.instance) - set(known)):
            match = repo.nearest(str(name), known, cutoff=0.7)
            hint = f"; did you mean {match}?" if match else ""
            yield Fault(f"{path}.{name}".lstrip("."), f"unknown field{hint}")
        return
    if error.validator == "required":
        for name in wanted:
            if name not in error.instance:
                yield Fault(f"{path}.{name}".lstrip("."), MISSING)
        return
    if error.validator == LIST_KEYS:
        yield Fault(path, error.message)
        return
    value = short(json.dumps(error.instance, default=str), VALUE)
    if error.validator == "type":
        kinds = wanted if isinstance(wanted, list) else [wanted]
        yield Fault(path, f"{value} is not of type {' or '.join(kind for kind in kinds if kind != 'null')}")
    elif error.validator in ("anyOf", "oneOf"):
        yield Fault(path, f"{value} does not have a type that is allowed here")
    else:
        yield Fault(path, f"{value}: {error.validator} {short(json.dumps(wanted, default=str), VALUE)} is not met")
