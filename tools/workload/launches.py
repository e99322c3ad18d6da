"""Whether a pod template starts a distributed training."""

from collections.abc import Iterator
from typing import Any

from tools.core.tables import load
from tools.kube.manifests import Manifests, Object

_TABLE: dict[str, list[str]] = load("workload/kinds.yaml")


def launches(template: Object, manifests: Manifests) -> bool:
    """Return whether commands, variables, or mounted scripts of the same file start a launcher or set a rendezvous."""
    spec = template["spec"]
    if any(word in text for text in _texts(spec, manifests) for word in _TABLE["launchers"]):
        return True
    names = (entry.get("name") for container in spec["containers"] for entry in container.get("env") or [])
    return any(name in _TABLE["variables"] for name in names)


def _texts(spec: Object, manifests: Manifests) -> Iterator[str]:
    for container in spec["containers"]:
        yield " ".join(_words(container))
    for volume in spec.get("volumes") or []:
        name = (volume.get("configMap") or {}).get("name")
        data = manifests.texts("ConfigMap", name) if name else None
        yield from (text for text in (data or {}).values() if isinstance(text, str))


def _words(container: Object) -> Iterator[str]:
    for key in ("command", "args"):
        words: Any = container.get(key) or []
        yield from (word for word in words if isinstance(word, str))
