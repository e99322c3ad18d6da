"""The repairs of findings: which remedies are mechanical, as the operations of a JSON patch (RFC 6902).

A repair is made only where the finding leaves one good value. A finding whose remedy asks for a choice, such
as another image, the place of a secret or a smaller request, has none.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core import Verdict, nearest
from tools.core.tables import load
from tools.facts.instances import EFA
from tools.kube.json_patch import APPEND, Edit, Keys, Operation, operation, value_at
from tools.kube.manifests import Object
from tools.preflight.subject import INSTANCE_LABELS

LITERAL: list[str] = load("preflight/words.yaml")["literal remedies"]
SAME_SHAPE = {"PyTorchJob", "CronJob"}  # kinds whose older API versions have the fields of the served one
GRACE_MARGIN = 30  # seconds beyond the time that the workers need
SIMILAR = 0.8  # of a misspelt value to the allowed one


@dataclass(frozen=True)
class Finding:
    """A finding with its object, and that object with each scalar as the text in the file."""

    verdict: Verdict
    item: Object
    written: Any

    @property
    def path(self) -> str:
        return str(self.verdict.details.get("path", ""))

    @property
    def keys(self) -> Keys:
        return keys_of(self.item, self.path)

    @property
    def remedy(self) -> str:
        return self.verdict.remedy or ""


def operations(finding: Finding) -> list[Operation]:
    """Return the operations that repair a finding in its object; nothing if no repair is mechanical."""
    rule = str(finding.verdict.details["rule"])
    edits = [*_SPECIAL[rule](finding)] if rule in _SPECIAL else []
    if not edits and rule in LITERAL:
        edits = [*_literal(finding)]
    there = [one for one in edits if one.value is not None or value_at(finding.item, one.keys) is not None]
    return [operation(finding.item, edit) for edit in there]


def keys_of(item: Any, path: str) -> Keys:
    """Return a path such as `spec.env[NAME].value` as keys of `item`. A key may contain dots.

    A list is entered by a number, or by the name of an entry.
    """
    found: list[str | int] = []
    rest = path
    while rest:
        bracket = re.match(r"\[([^\]]*)\]\.?", rest)
        key: str | int
        if bracket:
            key, rest = bracket[1], rest[bracket.end() :]
        else:
            known = [str(one) for one in item] if isinstance(item, dict) else []
            fits = [one for one in known if re.match(rf"{re.escape(one)}(?=[.\[]|$)", rest)]
            key = max(fits, key=len, default=re.split(r"[.\[]", rest, maxsplit=1)[0])
            rest = rest[len(key) :].removeprefix(".")
        if isinstance(item, list):
            key = _index(item, str(key))
        found.append(key)
        item = value_at(item, (key,))
    return tuple(found)


def _index(entries: list[Any], key: str) -> str | int:
    if key.isdigit():
        return int(key)
    return next((at for at, one in enumerate(entries) if isinstance(one, dict) and one.get("name") == key), key)


def _literal(finding: Finding) -> Iterator[Edit]:
    """Yield the edit of a remedy that is `key: value` or `VARIABLE=value`, or that removes the value."""
    *_, last = finding.keys or ("",)
    given = re.fullmatch(r"(\w+): (.+)", finding.remedy)
    variable = re.fullmatch(r"[A-Z]\w*=(\S+)", finding.remedy)
    if re.fullmatch(r"(?:.*, or )?remove (\w+|it)", finding.remedy):
        yield Edit(finding.keys)
    elif variable:
        yield Edit((*finding.keys, "value"), variable[1])
    elif given:
        inside = isinstance(value_at(finding.item, finding.keys), dict)
        if inside or given[1] == last:
            yield Edit((*finding.keys, given[1]) if inside else finding.keys, yaml.safe_load(given[2]))


def _api_version(finding: Finding) -> Iterator[Edit]:
    if finding.item.get("kind") in SAME_SHAPE:
        yield from _literal(finding)


def _enums(finding: Finding) -> Iterator[Edit]:
    allowed = finding.verdict.summary.partition(" is not one of ")[2].split(", ")
    value = str(finding.verdict.details.get("value"))
    same = next((one for one in allowed if one.lower() == value.lower()), None)
    match = same or nearest(value, allowed, cutoff=SIMILAR)
    if match:
        yield Edit(finding.keys, match)


def _types(finding: Finding) -> Iterator[Edit]:
    """Yield the value with the wanted type: the text as it is written, in quotes, or what the text says."""
    value, text = finding.verdict.details.get("value"), value_at(finding.written, finding.keys)
    if not isinstance(text, str):
        return
    if finding.remedy == "use a string in quotes":
        yield Edit(finding.keys, text)
    elif finding.remedy == "use an integer" and isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        yield Edit(finding.keys, int(value))
    elif finding.remedy == "use true or false" and value in ("true", "false"):
        yield Edit(finding.keys, value == "true")


def _wiring(finding: Finding) -> Iterator[Edit]:
    """Yield the rendezvous of a PyTorchJob that has Workers only and no elasticPolicy."""
    spec = finding.item.get("spec") or {}
    replicas = spec.get("pytorchReplicaSpecs") or {}
    if finding.item.get("kind") == "PyTorchJob" and set(replicas) == {"Worker"} and not spec.get("elasticPolicy"):
        count = replicas["Worker"].get("replicas") or 1
        bounds = {"rdzvBackend": "c10d", "minReplicas": count, "maxReplicas": count}
        yield Edit(("spec", "elasticPolicy"), bounds)


def _shared_memory(finding: Finding) -> Iterator[Edit]:
    if finding.path.endswith(".volumeMounts"):
        yield from _mounted(finding, finding.keys[:-1], "dshm", {"medium": "Memory"}, "/dev/shm")


def _temporary(finding: Finding) -> Iterator[Edit]:
    if finding.remedy == "an emptyDir at /tmp":
        yield from _mounted(finding, finding.keys[:-2], "tmp", {}, "/tmp")


def _mounted(finding: Finding, container: Keys, name: str, empty: Object, path: str) -> Iterator[Edit]:
    """Yield a new emptyDir and its mount in a container."""
    volumes = (*container[:-2], "volumes")
    if name not in [one.get("name") for one in value_at(finding.item, volumes) or []]:
        yield Edit((*volumes, APPEND), {"name": name, "emptyDir": empty})
        yield Edit((*container, "volumeMounts", APPEND), {"name": name, "mountPath": path})


def _host_path(finding: Finding) -> Iterator[Edit]:
    if finding.remedy == "emptyDir: {medium: Memory}":
        yield Edit(finding.keys)
        yield Edit((*finding.keys[:-1], "emptyDir"), {"medium": "Memory"})


def _huge_pages(finding: Finding) -> Iterator[Edit]:
    """Yield huge pages for the container that requests EFA."""
    name, _, pages = finding.remedy.partition(": ")
    containers = keys_of(finding.item, f"{finding.path.partition(' ')[0]}.containers")
    for at, one in enumerate(value_at(finding.item, containers) or []):
        for kind in ("requests", "limits"):
            if EFA in ((one.get("resources") or {}).get(kind) or {}):
                yield Edit((*containers, at, "resources", kind, name), pages)


def _device_limit(finding: Finding) -> Iterator[Edit]:
    if finding.remedy == "set it under limits":
        name = str(finding.verdict.details["value"]).partition(": ")[0]
        amount = value_at(finding.item, (*finding.keys, "requests", name))
        yield Edit((*finding.keys, "limits", name), amount)


def _hyperpod(finding: Finding) -> Iterator[Edit]:
    """Yield the names with the prefix ml.: instead of the plain one in a selector, else beside them."""
    at = value_at(finding.item, finding.keys)
    if isinstance(at, str):
        yield Edit(finding.keys, f"ml.{at}")
        return
    required = (*finding.keys, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for number, term in enumerate(value_at(finding.item, required) or []):
        for place, one in enumerate(term.get("matchExpressions") or []):
            if one.get("key") in INSTANCE_LABELS and one.get("operator") == "In":
                values = [*one["values"], *(f"ml.{name}" for name in one["values"])]
                yield Edit((*required, number, "matchExpressions", place, "values"), values)


def _grace(finding: Finding) -> Iterator[Edit]:
    found = re.fullmatch(r"more than (\d+) s", finding.remedy)
    if found:
        yield Edit(finding.keys, int(found[1]) + GRACE_MARGIN)


def _old_label(finding: Finding) -> Iterator[Edit]:
    if finding.keys[-1] == "key":
        yield Edit(finding.keys, finding.remedy)
    else:
        yield Edit(finding.keys)
        yield Edit((*finding.keys[:-1], finding.remedy), value_at(finding.item, finding.keys))


def _auto_resume(finding: Finding) -> Iterator[Edit]:
    text = str(finding.verdict.details.get("value")).lower()
    if finding.remedy == 'write "true", in quotes' and text in ("true", "false"):
        yield Edit(finding.keys, text)


_SPECIAL: dict[str, Callable[[Finding], Iterator[Edit]]] = {
    "api-version": _api_version,
    "enums": _enums,
    "types": _types,
    "wiring": _wiring,
    "shm": _shared_memory,
    "read-only-root": _temporary,
    "host-path": _host_path,
    "efa-huge-pages": _huge_pages,
    "devices-whole": _device_limit,
    "hyperpod-nodes": _hyperpod,
    "grace-period": _grace,
    "old-labels": _old_label,
    "auto-resume": _auto_resume,
}
