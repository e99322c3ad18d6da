"""Check objects against the JSON schemas of Kubernetes' kinds, of PyTorchJob and of Volcano's Job.

    python -m tools.kube.schemas

builds `.cache/schemas` (once, about 10 s, over the network) and prints its path. Each kind has one
self-contained file, `<group>_<kind>_<version>.json`, which kubeconform can read too. The schemas are strict:
a field that the kind does not have is an error, as with `kubectl apply`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.go_build import Progress, Unusable
from tools.core.output import short
from tools.kube.manifests import Object
from tools.kube.schema_build import STAMP, build, file_name, sources

VALUE = 60  # characters of a value in a message
MOST_FAULTS = 100  # of one object; a person reads no more
COMMAND = "python -m tools.kube.schemas"


@dataclass(frozen=True)
class Fault:
    """A difference between an object and its schema: a path such as `spec.template`, and a message."""

    path: str
    message: str


class Schemas:
    """The schemas in one directory. Each is read when it is first used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._validators: dict[str, Draft202012Validator | None] = {}

    def faults(self, item: Object) -> list[Fault] | None:
        """Return the differences between `item` and its kind's schema, or None if there is no schema.

        After MOST_FAULTS a last one says that there are more: they are not computed.
        """
        group, _, version = str(item.get("apiVersion")).rpartition("/")
        validator = self._validator(file_name(group, version, str(item.get("kind"))))
        if validator is None:
            return None
        faults = (fault for error in validator.iter_errors(item) for fault in _faults(error))
        found = list(itertools.islice(faults, MOST_FAULTS + 1))
        more = [Fault("", f"has more than {MOST_FAULTS} faults; the others are not shown")]
        return found if len(found) <= MOST_FAULTS else found[:MOST_FAULTS] + more

    def _validator(self, name: str) -> Draft202012Validator | None:
        if name not in self._validators:
            path = self.directory / name
            schema = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
            self._validators[name] = None if schema is None else Draft202012Validator(schema)
        return self._validators[name]


def find(root: Path) -> Schemas | None:
    """Return the schemas in `root/.cache`, or None if they are missing or built from other versions."""
    directory = root / ".cache" / "schemas"
    try:
        stamp = json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Schemas(directory) if stamp == sources() else None


def ensure(root: Path, progress: Progress) -> Schemas:
    """Return the schemas, and build them if `root/.cache` does not have them. Raises UserError."""
    known = find(root)
    if known is not None:
        return known
    directory = root / ".cache" / "schemas"
    try:
        build(root, directory, progress)
    except (Unusable, OSError) as reason:
        if find(root) is None:  # else another process was faster
            message = f"the schemas cannot be built: {reason}"
            raise UserError(message, "this needs the network, once") from reason
    return Schemas(directory)


def _faults(error: Any) -> Iterator[Fault]:
    """Yield the faults in one of jsonschema's errors."""
    path = re.sub(
        r"\.\[",
        "[",
        ".".join(f"[{one}]" if isinstance(one, int) else str(one) for one in error.absolute_path),
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
        missing = [name for name in wanted if name not in error.instance]
        yield Fault(path, f"{', '.join(missing)} is missing")
        return
    value = short(json.dumps(error.instance, default=str), VALUE)
    if error.validator == "type":
        kinds = wanted if isinstance(wanted, list) else [wanted]
        yield Fault(path, f"{value} is not of type {' or '.join(kind for kind in kinds if kind != 'null')}")
    elif error.validator in ("anyOf", "oneOf"):
        yield Fault(path, f"{value} is of none of the types that are allowed here")
    else:
        yield Fault(
            path, f"{value}: {error.validator} {short(json.dumps(wanted, default=str), VALUE)} is not met"
        )


def main() -> int:
    """Build the schemas if they are missing, and print their path. Return the exit code."""
    try:
        output.line(str(ensure(repo.root(), output.note).directory))
    except UserError as problem:
        output.error(problem.message, problem.hint)
        return problem.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
