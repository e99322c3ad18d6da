"""The table of instance types agrees with the answers of EC2, of which moto has a copy."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.parts.alone import alone
from tools.cells import instance_patch
from tools.core import repo
from tools.core.errors import UserError
from tools.facts.instances import EFA, INSTANCES, NEURON, NVIDIA, Instance, instance

MOTO = "moto==5.2.1"
# (instance, key): why the table differs from moto.
EXCEPTIONS = {
    ("trn2.48xlarge", "accelerator_memory_mib"): "moto has 512 GiB a device, Neuron's documentation 96",
    ("trn2.48xlarge", "cores_per_accelerator"): "moto has physical cores; two are one logical core",
    ("g6e.24xlarge", "network_mbps"): "moto sums up the cards; the machine has 200 Gbit/s",
    ("g6e.48xlarge", "network_mbps"): "moto sums up the cards; the machine has 400 Gbit/s",
    ("p6-b200.48xlarge", "network_mbps"): "moto sums up the cards; the machine has 3200 Gbit/s",
    ("p6-b300.48xlarge", "network_mbps"): "moto sums up the cards; the machine has 6400 Gbit/s",
}


@pytest.fixture(scope="session")
def answer() -> dict[str, Any]:
    """The answer of DescribeInstanceTypes in moto's data file, which is all that is used of moto."""
    target = repo.root() / ".cache" / MOTO.replace("==", "-")
    data = target / "moto/ec2/resources/instance_types.json.gz"
    with alone(target):
        if not data.exists():
            uv = Path(sys.executable).with_name("uv")
            command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(target), MOTO]
            got = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if got.returncode:
                pytest.skip(f"{MOTO} is not available here: {got.stderr.strip().rpartition(chr(10))[2]}")
    types: dict[str, Any] = json.loads(gzip.decompress(data.read_bytes()))
    return types


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Return EC2's answer for one type with the table's keys."""
    network = row["NetworkInfo"]
    cards = [card.get("BaselineBandwidthInGbps") or 0 for card in network.get("NetworkCards", [])]
    found = [*row.get("GpuInfo", {}).get("Gpus", []), *row.get("NeuronInfo", {}).get("NeuronDevices", [])]
    device = found[0] if found else {}
    return {
        "vcpus": row["VCpuInfo"]["DefaultVCpus"],
        "memory_mib": row["MemoryInfo"]["SizeInMiB"],
        "accelerator": device.get("Name"),
        "accelerators": device.get("Count", 0),
        "accelerator_memory_mib": device.get("MemoryInfo", {}).get("SizeInMiB", 0),
        "cores_per_accelerator": device.get("CoreInfo", {}).get("Count", 1),
        "efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "nvme_gb": row.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        "network_mbps": sum(cards) * 1000,
        "architecture": row["ProcessorInfo"]["SupportedArchitectures"][0].replace("x86_64", "amd64"),
    }


@pytest.mark.parametrize("name", INSTANCES)
def test_the_table_agrees_with_ec2(name: str, answer: dict[str, Any]) -> None:
    expected = numbers(answer[name])
    differing = {key for key, value in expected.items() if getattr(INSTANCES[name], key) != value}
    assert differing == {key for one, key in EXCEPTIONS if one == name}


def test_the_comparison_can_fail(answer: dict[str, Any]) -> None:
    """Control: another machine has other numbers."""
    assert numbers(answer["p5.48xlarge"]) != numbers(answer["p5en.48xlarge"])
    assert {one for one, _ in EXCEPTIONS} <= set(INSTANCES)


@pytest.mark.parametrize("found", INSTANCES.values(), ids=lambda one: one.name)
def test_rows_make_sense(found: Instance) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*\.(\d*x?large|metal)", found.name)
    assert 0.9 * found.vcpus * 1000 <= found.allocatable_cpu_m < found.vcpus * 1000
    assert 0.8 * found.memory_mib < found.allocatable_memory_mib < found.memory_mib
    assert (found.accelerator is None) == (found.accelerators == 0) == (found.device_resource is None)
    assert (found.hugepages_2mi_mib > 0) == (found.efa > 0 and found.accelerators > 0)
    assert found.price_usd_per_hour is None or found.price_usd_per_hour > 0
    assert found.node_names == (found.name, f"ml.{found.name}")


@pytest.mark.parametrize(
    ("name", "cpu", "memory"),
    [
        ("m5.large", 1930, 6903),
        ("g6e.24xlarge", 95690, 721682),
        ("g6.48xlarge", 191450, 718987),
        ("p5en.48xlarge", 191450, 1937332),
        ("trn1.32xlarge", 127610, 481894),
    ],
)
def test_the_formula_of_what_is_allocatable(name: str, cpu: int, memory: int) -> None:
    """The figures of Karpenter's instance type page, which computes them in the same way."""
    found = instance(name)
    assert (found.allocatable_cpu_m, found.allocatable_memory_mib) == (cpu, memory)


def test_lookups() -> None:
    unknown = {name for name, found in INSTANCES.items() if found.price_usd_per_hour is None}
    assert unknown == {"p5e.48xlarge", "trn2.48xlarge"}
    assert instance("ml.p5.48xlarge") is instance("p5.48xlarge") is INSTANCES["p5.48xlarge"]
    assert instance("trn1.32xlarge").processes == 32
    assert instance("c7i.8xlarge").processes == 1
    with pytest.raises(UserError, match=r"unknown instance type ml\.p5\.48xl") as caught:
        instance("ml.p5.48xl")
    assert caught.value.hint == "did you mean p5.48xlarge?"


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("p5.48xlarge", {"memory": "1813Gi", NVIDIA: "8", EFA: "32", "hugepages-2Mi": "5120Mi"}),
        ("g5.8xlarge", {"memory": "102Gi", NVIDIA: "1", EFA: "1", "hugepages-2Mi": "5120Mi"}),
        ("g5.xlarge", {"memory": "12Gi", NVIDIA: "1"}),
        ("trn1.32xlarge", {"memory": "450Gi", NEURON: "16", EFA: "8", "hugepages-2Mi": "5120Mi"}),
        ("c7i.8xlarge", {"memory": "54Gi"}),
    ],
)
def test_the_limits_of_a_pod(name: str, limits: dict[str, str]) -> None:
    """Computed by hand. g5.xlarge has no EFA, although many manifests request one."""
    assert instance_patch.limits(instance(name)) == limits


@pytest.mark.parametrize("found", INSTANCES.values(), ids=lambda one: one.name)
def test_a_pod_leaves_room_for_daemons(found: Instance) -> None:
    assert instance_patch.cpus(found) * 1000 <= found.allocatable_cpu_m - 250
    taken = instance_patch.memory_mib(found) + found.hugepages_2mi_mib
    assert taken <= found.allocatable_memory_mib - instance_patch.DAEMON_MEMORY_MIB
    assert instance_patch.shm_mib(found) < instance_patch.memory_mib(found) / 4
