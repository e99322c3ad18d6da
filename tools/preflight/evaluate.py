"""Apply all rules to a manifest."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, replace

from tools.core.verdict import State, Verdict, worst
from tools.kube.manifests import Manifests
from tools.preflight.rule import RULES, Rule
from tools.preflight.subject import subject

MODULES = (
    *("operator", "enums", "lifecycle", "resources", "nodes", "storage"),
    *("security", "names", "references", "environment", "config", "schema"),
)


@dataclass(frozen=True)
class Evaluation:
    """The verdicts on one manifest, in the order of the rules."""

    source: str
    verdicts: list[Verdict]

    def of(self, state: State) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.state is state]

    @property
    def state(self) -> State:
        return worst(verdict.state for verdict in self.verdicts)

    @property
    def needs(self) -> list[str]:
        """Return the objects that the manifest needs and does not contain."""
        return sorted(
            {str(verdict.details["needs"]) for verdict in self.verdicts if "needs" in verdict.details}
        )


@functools.cache
def rules() -> dict[str, Rule]:
    """Return all rules by name, in the order in which they are applied."""
    modules = [f"tools.preflight.rules.{name}" for name in MODULES]
    for name in modules:
        importlib.import_module(name)
    # One of the modules may have been imported, and its rules registered, before this.
    return dict(sorted(RULES.items(), key=lambda item: modules.index(item[1].check.__module__)))


def evaluate(manifests: Manifests) -> Evaluation:
    """Apply every rule to a parsed manifest."""
    checked = subject(manifests)
    verdicts = [
        replace(verdict, details={"rule": rule.id, **verdict.details})
        for rule in rules().values()
        for verdict in rule.check(checked)
    ]
    return Evaluation(manifests.source, verdicts)
