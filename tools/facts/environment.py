"""Guidance on the environment variables of NCCL, EFA (libfabric), torch's collectives and Neuron.

Read in 2025 and 2026; each entry names where. Most variables that circulate in manifests are no longer
needed: the network plugin (aws-ofi-nccl) knows the platform and sets them itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from tools.facts.instances import NEURON, NVIDIA, Instance

_CHEATSHEET = "awslabs/awsome-distributed-training, 1.architectures/efa-cheatsheet.md (2025-08)"
_PLUGIN = "aws/aws-ofi-nccl at 2daf7d30 (2026-08), doc/efa-env-var.md and platform code"
_TORCH = "pytorch 2.13, ProcessGroupNCCL.hpp and FlightRecorder.hpp"
_NEURON = "AWS Neuron documentation"


class Say(Enum):
    """What to do with a variable; the value is how it is printed."""

    SET = "set"
    NEVER = "never"
    LEAVE_ALONE = "leave alone"
    WORKAROUND = "only as workaround"


@dataclass(frozen=True)
class Guidance:
    """One piece of guidance.

    `variable` may be a pattern (`RDMAV_*`). `value` is the one that SET sets, or the only one that the
    verdict speaks of; None means any. `families` are instance families (`g5`); none means all that have
    `device`.
    """

    variable: str
    say: Say
    reason: str
    source: str
    value: str | None = None
    families: tuple[str, ...] = ()
    device: str | None = None  # the accelerator's resource that the variable is for; None: any machine
    needs_efa: bool = False

    def applies(self, instance: Instance) -> bool:
        """Say whether the guidance is about `instance`."""
        family = instance.name.partition(".")[0]
        return (
            (self.device is None or self.device == instance.device_resource)
            and (not self.families or family in self.families)
            and (not self.needs_efa or instance.efa > 0)
        )

    def concerns(self, variable: str, value: str | None) -> bool:
        """Say whether `variable` set to `value` is what the guidance speaks of; SET speaks of any value."""
        named = fnmatchcase(variable, self.variable)
        return named and (self.say is Say.SET or self.value is None or self.value == value)


def _each(variables: str, say: Say, reason: str, source: str) -> tuple[Guidance, ...]:
    return tuple(Guidance(variable, say, reason, source) for variable in variables.split())


GUIDANCE: tuple[Guidance, ...] = (
    Guidance(
        "NCCL_NET_PLUGIN", Say.SET, "a missing EFA plugin is then an error, and not silent TCP",
        _PLUGIN, value="ofi", device=NVIDIA, needs_efa=True,
    ),
    Guidance(
        "NCCL_SHM_USE_CUDA_MEMCPY", Say.SET, "faster between the cards of a node without NVLink",
        _CHEATSHEET, value="1", families=("g5", "g6"), device=NVIDIA,
    ),
    Guidance(
        "PYTORCH_CUDA_ALLOC_CONF", Say.SET, "less fragmentation; the T of True is a capital one",
        "pytorch, CUDA semantics, memory management", value="expandable_segments:True", device=NVIDIA,
    ),
    Guidance(
        "NEURON_COMPILE_CACHE_URL", Say.SET, "compiled graphs outlive the pod, and jobs share them",
        f"{_NEURON}, Neuron persistent cache", value="/shared/cache/neuron", device=NEURON,
    ),
    *_each(
        "FI_PROVIDER FI_EFA_USE_DEVICE_RDMA FI_EFA_FORK_SAFE FI_EFA_ENABLE_SHM_TRANSFER", Say.LEAVE_ALONE,
        "not needed since libfabric 1.18 and aws-ofi-nccl 1.7, which find out by themselves", _CHEATSHEET,
    ),
    *_each(
        "NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_BUFFSIZE NCCL_P2P_NET_CHUNKSIZE NCCL_TUNER_PLUGIN",
        Say.LEAVE_ALONE,
        "the EFA plugin sets it for each platform; a value from elsewhere overrides a tuned one", _PLUGIN,
    ),
    *_each(
        "NCCL_SOCKET_IFNAME CCOM_SOCKET_IFNAME", Say.LEAVE_ALONE,
        "a pod has one real interface, eth0; needed only with hostNetwork", _CHEATSHEET,
    ),
    *_each(
        "NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE", Say.WORKAROUND,
        "costs memory or speed and helps against single bugs only", "NVIDIA/nccl #1749, #2024, #1906",
    ),
    Guidance(
        "FI_EFA_USE_HUGE_PAGE", Say.WORKAROUND,
        "against ENOMEM in forked data loaders, and slower otherwise",
        _CHEATSHEET, value="0",
    ),
    Guidance(
        "NCCL_ALGO", Say.NEVER, "hangs were reported with it on EFA", _CHEATSHEET, value="Tree",
    ),
    Guidance(
        "RDMAV_*", Say.NEVER, "a setting of libibverbs, which EFA through libfabric does not use",
        _CHEATSHEET,
    ),
    Guidance(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", Say.NEVER,
        "a failed collective would hang the job; torchrun sets 1 where it is unset", _TORCH, value="0",
    ),
    *(
        Guidance(variable, Say.NEVER, "switches off the record of what hung", _TORCH, "0")
        for variable in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    ),
    Guidance(
        "TORCH_NCCL_ABORT_IN_DESTROY_PG", Say.LEAVE_ALONE, "torch reads it no longer", _TORCH,
    ),
    Guidance(
        "NCCL_ASYNC_ERROR_HANDLING", Say.LEAVE_ALONE, "now TORCH_NCCL_ASYNC_ERROR_HANDLING", _TORCH,
    ),
    *_each(
        "NEURON_RT_RESET_CORES", Say.LEAVE_ALONE,
        "from tutorials of Neuron's first releases; the default is right", _NEURON,
    ),
    *_each(
        "XLA_DOWNCAST_BF16 XLA_USE_BF16", Say.NEVER,
        "casts what the recipe keeps in fp32, the optimizer's state too; the trainer's precision key says it",
        _NEURON,
    ),
)  # fmt: skip


def guidance(variable: str, value: str | None, instance: Instance | None = None) -> Guidance | None:
    """Return what is to be said of `variable` set to `value`, or None; on `instance` where one is given."""
    return next(
        (
            item
            for item in GUIDANCE
            if item.concerns(variable, value) and (instance is None or item.applies(instance))
        ),
        None,
    )


def variables(instance: Instance, known: Iterable[Guidance] = GUIDANCE) -> dict[str, str]:
    """Return the variables that a container on `instance` is given, by name in their order."""
    chosen = (item for item in known if item.say is Say.SET and item.applies(instance))
    return {item.variable: item.value for item in chosen if item.value is not None}
