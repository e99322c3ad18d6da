"""Apply all rules to a manifest, and sum up."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace

from tools.core.verdict import State, Verdict
from tools.kube.manifests import Manifests
from tools.preflight.rule import RULES, Rule
from tools.preflight.subject import subject

MODULES = (
    *("operator", "enums", "lifecycle", "resources", "nodes", "storage"),
    *("security", "names", "references", "environment", "config", "schema"),
)


@dataclass(frozen=True)
class Judgement:
    """The verdicts on one manifest, in the order of the rules."""

    source: str
    verdicts: list[Verdict]

    def of(self, state: State) -> list[Verdict]:
        """Return the verdicts of one state."""
        return [verdict for verdict in self.verdicts if verdict.state is state]

    @property
    def state(self) -> State:
        """Return FAIL where anything failed, CANNOT TELL where anything could not be told, else PASS."""
        found = {verdict.state for verdict in self.verdicts}
        return next(
            state
            for state in (State.FAIL, State.CANNOT_TELL, State.PASS)
            if state in found or state is State.PASS
        )

    @property
    def needs(self) -> list[str]:
        """Return what the manifest takes from the cluster, each once."""
        return sorted(
            {str(verdict.details["needs"]) for verdict in self.verdicts if "needs" in verdict.details}
        )


def rules() -> dict[str, Rule]:
    """Return all rules by name, in the order in which they are applied."""
    for name in MODULES:
        importlib.import_module(f"tools.preflight.rules.{name}")
    return RULES


def judge(manifests: Manifests) -> Judgement:
    """Apply every rule to a manifest that has been parsed."""
    looked_at = subject(manifests)
    verdicts = [
        replace(verdict, details={"rule": rule.id, **verdict.details})
        for rule in rules().values()
        for verdict in rule.check(looked_at)
    ]
    return Judgement(manifests.source, verdicts)
