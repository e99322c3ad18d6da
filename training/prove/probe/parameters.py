"""The parameters of an optimizer: read in full after each step, and sampled before the next one.

A script may write parameters between two steps. A changed address, version or sample shows it; then they are read in
full again. A write through `.data` does not change the version, and a sample may miss it: the parameters are read in
full before the first steps, and before every step once such a write was seen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .digest import Group, digests, grouped

_FULL = 3  # steps
_QUICK = 64  # one row in so many is sampled: a write that does not change the version usually covers the tensor


class _Held(NamedTuple):
    """What was read after a step."""

    marks: list[tuple[int, int, int]]
    found: list[str]
    quick: str  # of one row in _QUICK of all of them


class Parameters:
    """The digests of the parameters of one optimizer."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.steps = 0
        self.hidden = False  # the script writes without a new version
        self.held: _Held | None = None

    def before(self, parameters: list[Any], more: list[Group]) -> tuple[list[str], list[str]]:
        """Return a digest of each parameter and of each other group, before a step."""
        held, marks = self.held, _marks(parameters)
        if held is None or self.hidden or self.steps < _FULL or held.marks != marks:
            found, others = self._read([Group([one]) for one in parameters], more)
            self.hidden |= held is not None and held.marks == marks and held.found != found
            return found, others
        (quick,), others = self._read([Group(parameters, _QUICK)], more)
        if quick == held.quick:
            return held.found, others
        self.hidden = True
        return digests(self.torch, parameters), others

    def after(self, parameters: list[Any]) -> list[str]:
        """Return a digest of each parameter, after a step."""
        found, (quick,) = self._read([Group([one]) for one in parameters], [Group(parameters, _QUICK)])
        self.held = _Held(_marks(parameters), found, quick)
        self.steps += 1
        return found

    def _read(self, groups: list[Group], more: list[Group]) -> tuple[list[str], list[str]]:
        found = grouped(self.torch, groups + more)
        return found[: len(groups)], found[len(groups) :]


def _marks(parameters: list[Any]) -> list[tuple[int, int, int]]:
    """Return the identity, the address and the version of each parameter."""
    plain = [getattr(one, "_local_tensor", one) for one in parameters]
    return [(id(one), inner.data_ptr(), inner._version) for one, inner in zip(parameters, plain)]
