"""The ConfigMaps and Secrets that a pod cannot start without."""

from collections.abc import Iterator
from typing import NamedTuple

from tools.kube import Object

_VOLUMES = (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName"))


class Reference(NamedTuple):
    """One required object: its kind and name, a key of it or None, and the field that uses it."""

    kind: str
    name: str
    key: str | None
    used_by: str


def needed(spec: Object) -> Iterator[Reference]:
    """Yield what a pod of this spec requires; optional references are left out."""
    for volume in spec.get("volumes") or []:
        projected = (volume.get("projected") or {}).get("sources") or []
        for source in [volume, *projected]:
            for kind, field, label in _VOLUMES:
                item = source.get(field)
                name = item and (item.get(label) or item.get("name"))
                if name and not item.get("optional"):
                    keys = [one["key"] for one in item.get("items") or []] or [None]
                    yield from (Reference(kind, name, key, f"volume {volume['name']}") for key in keys)
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        variables = container.get("env") or []
        sources = [(entry.get("valueFrom") or {}, f"variable {entry['name']}") for entry in variables]
        for source, used_by in [*sources, *((source, "its environment") for source in container.get("envFrom") or [])]:
            for kind, prefix in (("ConfigMap", "configMap"), ("Secret", "secret")):
                item = source.get(f"{prefix}KeyRef") or source.get(f"{prefix}Ref")
                if item and not item.get("optional"):
                    yield Reference(kind, item["name"], item.get("key"), used_by)
