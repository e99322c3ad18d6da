"""Measured bus bandwidth of all-reduce between AWS machines, by message size.

Bus bandwidth is defined by nccl-tests (doc/PERFORMANCE.md). It depends on the message size: the same two
machines reach 289 GB/s at 128 MB and 487 GB/s at 16 GB. Other machines have no known measurement and no
threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

_AWSOME = "awslabs/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md (read 2026)"
_NCCL_527 = "NVIDIA/nccl issue 527, a user's comment of 2022-07-25, EFA (read 2026)"


@dataclass(frozen=True)
class Measured:
    """A measurement between machines of one type."""

    instance: str
    nodes: int
    size: int  # of the message, bytes
    bus: float  # bus bandwidth, 10^9 bytes/s
    source: str


MEASURED = (
    Measured("p4d.24xlarge", 2, 2**30, 57.17, _NCCL_527),
    Measured("p4d.24xlarge", 4, 2**30, 29.61, _NCCL_527),
    Measured("p5.48xlarge", 2, 128 * 10**6, 289.0, _AWSOME),
    Measured("p5.48xlarge", 2, 16 * 10**9, 487.0, _AWSOME),
)


def measured(instance: str) -> tuple[Measured, ...]:
    """Return the measurements of an instance type, by message size."""
    return tuple(sorted((one for one in MEASURED if one.instance == instance), key=lambda one: one.size))
