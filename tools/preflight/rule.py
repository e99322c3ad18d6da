"""The registry of the rules, and the places in objects that they name."""

from dataclasses import dataclass, replace
from typing import Any

from tools.core.output import short
from tools.core.rules import Rules
from tools.core.verdict import Verdict

rule = Rules(
    "preflight",
    *("operator", "enums", "lifecycle", "resources", "nodes", "storage", "container"),
    *("security", "names", "references", "environment", "config", "schema"),
)


@dataclass(frozen=True)
class Place:
    """A path in an object with its value, such as `PyTorchJob/train`, `spec.runPolicy.cleanPodPolicy`."""

    object: str
    path: str
    value: Any = None

    def evidence(self) -> str:
        return f"{self.object}: {self.path}" + ("" if self.value is None else f": {short(self.value)}")

    def details(self) -> dict[str, Any]:
        return {"object": self.object, "path": self.path, "value": self.value}


def needed(verdict: Verdict, what: str) -> Verdict:
    """Return a verdict that names something the job needs from the cluster."""
    return replace(verdict, details={**verdict.details, "needs": what})
