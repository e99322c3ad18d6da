"""Measured bus bandwidth of all-reduce between AWS machines, by message size.

Bus bandwidth is defined by nccl-tests (doc/PERFORMANCE.md). It depends on the message size: the same two
machines reach 289 GB/s at 128 MB and 487 GB/s at 16 GB. Other machines have no known measurement and no
threshold.
"""

from dataclasses import dataclass

from tools.core.tables import load


@dataclass(frozen=True)
class Measured:
    """A measurement between machines of one type."""

    instance: str
    nodes: int
    size: int  # of the message, bytes
    bus: float  # bus bandwidth, 10^9 bytes/s
    source: str


MEASURED = tuple(Measured(**row) for row in load("facts/bandwidth.yaml"))


def measured(instance: str) -> tuple[Measured, ...]:
    """Return the measurements of an instance type, by message size."""
    return tuple(sorted((one for one in MEASURED if one.instance == instance), key=lambda one: one.size))
