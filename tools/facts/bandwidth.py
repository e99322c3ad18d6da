"""All-reduce bus bandwidth that was measured between AWS machines, each figure at its message size.

Bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md there). A figure without its message size says
nothing: the same two machines give 289 GB/s at 128 MB and 487 at 16 GB. A machine that is not here was not
measured by anybody we know of, and gets no threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

_AWSOME = "awslabs/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md (read 2026)"

_NCCL_527 = "NVIDIA/nccl issue 527, a user's comment of 2022-07-25, EFA (read 2026)"


@dataclass(frozen=True)
class Measured:
    """One measurement: machines of a type, how many, message size in bytes, bus bandwidth in 10^9 bytes/s."""

    instance: str
    nodes: int
    size: int
    bus: float
    source: str


MEASURED = (
    Measured("p4d.24xlarge", 2, 2**30, 57.17, _NCCL_527),
    Measured("p4d.24xlarge", 4, 2**30, 29.61, _NCCL_527),
    Measured("p5.48xlarge", 2, 128 * 10**6, 289.0, _AWSOME),
    Measured("p5.48xlarge", 2, 16 * 10**9, 487.0, _AWSOME),
)


def measured(instance: str) -> tuple[Measured, ...]:
    """Return what was measured with an instance type, by message size."""
    found = (one for one in MEASURED if one.instance == instance)
    return tuple(sorted(found, key=lambda one: one.size))
