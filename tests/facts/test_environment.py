"""Guidance on variables, which manifests are written and checked by."""

from __future__ import annotations

import pytest

from tools.facts.environment import GUIDANCE, Say, guidance, variables
from tools.facts.instances import INSTANCES, instance


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p5.48xlarge", {"NCCL_NET_PLUGIN", "PYTORCH_CUDA_ALLOC_CONF"}),
        ("g5.8xlarge", {"NCCL_NET_PLUGIN", "NCCL_SHM_USE_CUDA_MEMCPY", "PYTORCH_CUDA_ALLOC_CONF"}),
        ("g5.xlarge", {"NCCL_SHM_USE_CUDA_MEMCPY", "PYTORCH_CUDA_ALLOC_CONF"}),
        ("trn1.32xlarge", {"NEURON_COMPILE_CACHE_URL"}),
        ("m5.large", set()),
    ],
)
def test_variables_of_a_machine(name: str, expected: set[str]) -> None:
    assert set(variables(instance(name))) == expected


@pytest.mark.parametrize(
    ("variable", "value", "say"),
    [
        ("RDMAV_FORK_SAFE", "1", Say.NEVER),
        ("NCCL_ALGO", "Tree", Say.NEVER),
        ("NCCL_ALGO", "Ring", None),
        ("FI_PROVIDER", "efa", Say.LEAVE_ALONE),
        ("NCCL_BUFFSIZE", "8388608", Say.LEAVE_ALONE),
        ("FI_EFA_USE_HUGE_PAGE", "0", Say.WORKAROUND),
        ("NCCL_NVLS_ENABLE", "0", Say.WORKAROUND),
        ("TORCH_FR_BUFFER_SIZE", "0", Say.NEVER),
        ("TORCH_FR_BUFFER_SIZE", "2000", None),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true", Say.SET),
        ("NCCL_DEBUG", "INFO", None),
    ],
)
def test_verdicts(variable: str, value: str, say: Say | None) -> None:
    found = guidance(variable, value)
    assert (found.say if found else None) is say


def test_guidance_for_other_machines_does_not_apply() -> None:
    for name, applies in (("p5.48xlarge", True), ("g5.xlarge", False), ("trn1.32xlarge", False)):
        assert bool(guidance("NCCL_NET_PLUGIN", "ofi", [instance(name)])) is applies


def test_entries_are_complete() -> None:
    """Each has a reason and a source, SET has a value, and no entries contradict each other."""
    assert all(item.reason and item.source for item in GUIDANCE)
    assert all(item.value for item in GUIDANCE if item.say is Say.SET)
    for machine in INSTANCES.values():
        for variable, value in variables(machine).items():
            entries = [one for one in GUIDANCE if one.applies(machine) and one.concerns(variable, value)]
            assert [one.say for one in entries] == [Say.SET]
