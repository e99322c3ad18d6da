"""The job as a whole: the bounds of its nodes, and which failures are tried again."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from training.config.base import Count, Section, Whole, wrong
from training.run.failure import CODES, PERMANENT


def _classes(value: Any) -> Any:
    """A list of classes as a tuple; each must be one that another attempt can help. `transient` covers all of them."""
    given = [value] if isinstance(value, str) else value
    known = ["transient", *(kind for kind in CODES if kind not in PERMANENT and kind not in ("done", "drained"))]
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError(f"{value!r} is neither transient nor a list of classes")
    for one in given:
        if one not in known:
            near = (difflib.get_close_matches(str(one), known, n=1, cutoff=0.0) or known)[0]
            reason = "fails in the same way again" if str(one) in PERMANENT else "is not a class that can be retried"
            raise ValueError(f"{one!r} {reason}; nearest value: {near}")
    return "transient" if "transient" in given else tuple(given)


class Nodes(Section):
    """The bounds of an elastic job: a lost node shrinks it, a returned one grows it; the global batch and the order of
    samples stay. `yard matrix sync` writes them from the cell's `nodes`."""

    min: Count
    """Fewest nodes with which the job trains; with fewer it waits."""

    max: Count
    """Most nodes of the job: those that it starts with."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.max < self.min:
            text = f"nodes.max {self.max} is below nodes.min {self.min}; nearest value: {self.min}"
            raise wrong("nodes.max", text)
        return self


class Retry(Section):
    """Which failures are tried again, and how often. A run that failed continues from its newest checkpoint."""

    classes: Annotated[Literal["transient"] | tuple[str, ...], BeforeValidator(_classes)] = "transient"
    """Classes of failures after which the ranks start again, such as `[killed, hang]`; `transient` are all that another
    attempt can help."""

    most: Whole = 3
    """Upper limit of the starts after failures, in each pod and of the whole job; a failure without a new step since
    the one before ends the run earlier."""

    def allows(self, kind: str) -> bool:
        """Return whether a failure of this class is tried again."""
        return self.classes == "transient" or kind in self.classes
