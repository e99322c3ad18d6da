"""Guidance on the environment variables of NCCL, EFA (libfabric), torch's collectives and Neuron.

The sources, one for each entry, were read in 2025 and 2026. Most variables in circulating manifests are no
longer needed: the network plugin (aws-ofi-nccl) detects the platform and sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from tools.facts.instances import NEURON, NVIDIA, Instance

_CHEATSHEET = "awslabs/awsome-distributed-training, 1.architectures/efa-cheatsheet.md (2025-08)"
_PLUGIN = "aws/aws-ofi-nccl at 2daf7d30 (2026-08), doc/efa-env-var.md and platform code"
_TORCH = "pytorch 2.13, ProcessGroupNCCL.hpp and FlightRecorder.hpp"
_NEURON = "AWS Neuron documentation"


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
    families: tuple[str, ...] = ()
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


def _each(variables: str, say: Say, reason: str, source: str) -> tuple[Guidance, ...]:
    return tuple(Guidance(variable, say, reason, source) for variable in variables.split())


GUIDANCE: tuple[Guidance, ...] = (
    Guidance(
        "NCCL_NET_PLUGIN", Say.SET, "makes a missing EFA plugin an error instead of a silent fallback to TCP",
        _PLUGIN, value="ofi", device=NVIDIA, needs_efa=True,
    ),
    Guidance(
        "NCCL_SHM_USE_CUDA_MEMCPY", Say.SET, "faster between the GPUs of a node without NVLink",
        _CHEATSHEET, value="1", families=("g5", "g6"), device=NVIDIA,
    ),
    Guidance(
        "PYTORCH_CUDA_ALLOC_CONF", Say.SET, "less fragmentation; True needs a capital T",
        "pytorch, CUDA semantics, memory management", value="expandable_segments:True", device=NVIDIA,
    ),
    Guidance(
        "NEURON_COMPILE_CACHE_URL", Say.SET, "keeps compiled graphs after the pod ends, for this job only",
        f"{_NEURON}, Neuron persistent cache", value="/shared/run/cache/neuron", device=NEURON,
    ),
    *_each(
        "FI_PROVIDER FI_EFA_USE_DEVICE_RDMA FI_EFA_FORK_SAFE FI_EFA_ENABLE_SHM_TRANSFER", Say.LEAVE_ALONE,
        "not needed since libfabric 1.18 and aws-ofi-nccl 1.7, which detect it", _CHEATSHEET,
    ),
    *_each(
        "NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_BUFFSIZE NCCL_P2P_NET_CHUNKSIZE NCCL_TUNER_PLUGIN",
        Say.LEAVE_ALONE,
        "the EFA plugin sets a tuned value for each platform, which this overrides", _PLUGIN,
    ),
    *_each(
        "NCCL_SOCKET_IFNAME CCOM_SOCKET_IFNAME", Say.LEAVE_ALONE,
        "only needed with hostNetwork; otherwise a pod has one real interface, eth0", _CHEATSHEET,
    ),
    *_each(
        "NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE", Say.WORKAROUND,
        "only works around single bugs and costs memory or speed", "NVIDIA/nccl #1749, #2024, #1906",
    ),
    Guidance(
        "FI_EFA_USE_HUGE_PAGE", Say.WORKAROUND,
        "only works around ENOMEM in forked data loaders and is slower",
        _CHEATSHEET, value="0",
    ),
    Guidance(
        "NCCL_ALGO", Say.NEVER, "hangs with it were reported on EFA", _CHEATSHEET, value="Tree",
    ),
    Guidance(
        "RDMAV_*", Say.NEVER, "a setting of libibverbs, which EFA does not use through libfabric",
        _CHEATSHEET,
    ),
    Guidance(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", Say.NEVER,
        "a failed collective would hang the job; torchrun sets 1 by default", _TORCH, value="0",
    ),
    *(
        Guidance(variable, Say.NEVER, "turns off the flight recorder, which shows what hung", _TORCH, "0")
        for variable in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    ),
    Guidance(
        "TORCH_NCCL_ABORT_IN_DESTROY_PG", Say.LEAVE_ALONE, "torch no longer reads it", _TORCH,
    ),
    Guidance(
        "NCCL_ASYNC_ERROR_HANDLING", Say.LEAVE_ALONE, "renamed to TORCH_NCCL_ASYNC_ERROR_HANDLING", _TORCH,
    ),
    *_each(
        "NEURON_RT_RESET_CORES", Say.LEAVE_ALONE,
        "from tutorials for Neuron's first releases; the default is correct", _NEURON,
    ),
    *_each(
        "XLA_DOWNCAST_BF16 XLA_USE_BF16", Say.NEVER,
        "also casts what the recipe keeps in fp32, such as the optimizer's state; use the precision key",
        _NEURON,
    ),
)  # fmt: skip


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
