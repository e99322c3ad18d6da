"""What is said of variables: the verdicts that manifests are written and judged by."""

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
def test_what_each_machine_is_given(name: str, expected: set[str]) -> None:
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


def test_guidance_for_other_machines_is_silent() -> None:
    assert guidance("NCCL_NET_PLUGIN", "ofi", [instance("p5.48xlarge")]) is not None
    assert guidance("NCCL_NET_PLUGIN", "ofi", [instance("g5.xlarge")]) is None
    assert guidance("NCCL_NET_PLUGIN", "ofi", [instance("trn1.32xlarge")]) is None


def test_entries_are_whole() -> None:
    """Each has a reason and a source, what is set has its value, and nothing is told both ways."""
    assert all(item.reason and item.source for item in GUIDANCE)
    assert all(item.value for item in GUIDANCE if item.say is Say.SET)
    for found in INSTANCES.values():
        for variable, value in variables(found).items():
            said = [item for item in GUIDANCE if item.applies(found) and item.concerns(variable, value)]
            assert [item.say for item in said] == [Say.SET]
