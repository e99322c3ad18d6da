"""Guidance on the environment variables of NCCL, EFA (libfabric), torch's collectives and Neuron.

environment.yaml has the rows, each with its source. Most variables in circulating manifests are no
longer needed: the network plugin (aws-ofi-nccl) detects the platform and sets them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from tools.core.tables import load
from tools.facts.instances import Instance


class Say(Enum):
    """What to do with a variable. The value is printed."""

    SET = "set"
    NEVER = "never"
    LEAVE_ALONE = "leave alone"
    WORKAROUND = "only as workaround"


@dataclass(frozen=True)
class Guidance:
    """Guidance on one variable.

    `variable` may be a pattern (`RDMAV_*`). `value` is the value to set, or the only value that the guidance
    is about; None means any. `families` are instance families (`g5`); empty means all that have `device`.
    """

    variable: str
    say: Say
    reason: str
    source: str
    value: str | None = None
    families: Sequence[str] = ()
    device: str | None = None  # the resource name of the accelerator; None: any machine
    needs_efa: bool = False

    def applies(self, instance: Instance) -> bool:
        family = instance.name.partition(".")[0]
        return (
            (self.device is None or self.device == instance.device_resource)
            and (not self.families or family in self.families)
            and (not self.needs_efa or instance.efa > 0)
        )

    def concerns(self, variable: str, value: str | None) -> bool:
        """Return whether the guidance is about `variable` with `value`. SET is about any value."""
        named = fnmatchcase(variable, self.variable)
        return named and (self.say is Say.SET or self.value is None or self.value == value)


GUIDANCE: tuple[Guidance, ...] = tuple(
    Guidance(name, Say(row["say"]), **{key: row[key] for key in row if key not in ("variables", "say")})
    for row in load("facts/environment.yaml")
    for name in row["variables"]
)


def guidance(variable: str, value: str | None, instances: Sequence[Instance] = ()) -> Guidance | None:
    """Return the first guidance on `variable` with `value`, if any for at least one of `instances`."""
    for item in GUIDANCE:
        if item.concerns(variable, value) and (not instances or any(map(item.applies, instances))):
            return item
    return None


def variables(instance: Instance) -> dict[str, str]:
    """Return the variables to set in a container on `instance`, by name in their order."""
    chosen = (item for item in GUIDANCE if item.say is Say.SET and item.applies(instance))
    return {item.variable: item.value for item in chosen if item.value is not None}
