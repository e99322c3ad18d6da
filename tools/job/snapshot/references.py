"""The ConfigMaps and Secrets that a pod cannot start without."""

from __future__ import annotations

from collections.abc import Iterator

from tools.kube.manifests import Object


def needed(spec: Object) -> Iterator[tuple[str, str, str | None, str]]:
    """Yield what a pod cannot start without: kind, name, key or None, and for what."""
    for volume in spec.get("volumes") or []:
        projected = (volume.get("projected") or {}).get("sources") or []
        for source in [volume, *projected]:
            for kind, field, label in (
                ("ConfigMap", "configMap", "name"),
                ("Secret", "secret", "secretName"),
            ):
                item = source.get(field)
                name = item and (item.get(label) or item.get("name"))
                if name and not item.get("optional"):
                    keys = [one["key"] for one in item.get("items") or []] or [None]
                    yield from ((kind, name, key, f"volume {volume['name']}") for key in keys)
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        for entry in container.get("env") or []:
            source = entry.get("valueFrom") or {}
            for kind, field in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
                item = source.get(field)
                if item and not item.get("optional"):
                    yield kind, item["name"], item["key"], f"variable {entry['name']}"
        for source in container.get("envFrom") or []:
            for kind, field in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                item = source.get(field)
                if item and not item.get("optional"):
                    yield kind, item["name"], None, "its environment"
