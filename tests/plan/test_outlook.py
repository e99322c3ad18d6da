"""A plan's cards, machines and interval between checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.runs import run
from tools.cells import hardware
from tools.cells.memory import room_on
from tools.plan.layout import card_of
from tools.plan.outlook import Plan, on_instance


def test_young_and_daly() -> None:
    """A save of 80 s on 32 GPUs: Daly's interval is Young's, somewhat less the save itself."""
    plan = Plan(run())
    mean = 3600 / (1.97e-5 * 32)
    assert plan.between_failures_s == pytest.approx(mean)
    assert plan.best_interval_s == pytest.approx((2 * plan.stall_s * mean) ** 0.5, rel=0.02)
    assert plan.ettr is not None
    best = replace(plan.run, save_every=round((plan.best_interval_s or 0) / (plan.step_s or 1)))
    assert (Plan(best).ettr or 0) > plan.ettr


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"), ("NVIDIA-A100-SXM4-40GB", "A100-40"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA-H100-PCIe", None), ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", None), ("NVIDIA-L40", None), ("MI300X", None),
    ],
)  # fmt: skip
def test_cards_as_nodes_name_them(name: str, card: str | None) -> None:
    found = card_of(name, 40_960)
    assert (found.name if found else None) == card


def test_a_node_of_your_own_without_a_known_network(tmp_path: Path) -> None:
    node = {"labels": {"pool": "a"}, "cpus": "64", "memory": "500Gi", "devices": {"nvidia.com/gpu": 8}}
    node |= {"device": "NVIDIA-H100-80GB-HBM3", "device_memory": "80Gi"}
    for more, known in (({}, False), ({"network_mbps": 400_000, "price_usd_per_hour": 20.0}, True)):
        machine = hardware.machine("lab", {"node": {**node, **more}})
        plan = Plan(on_instance(run(), machine, 4, room_on(machine)))
        assert (plan.step_s is not None) is known
        assert ("network_mbps" in plan.why_unknown) is not known
        assert plan.place.prices["on demand"] == (80.0 if known else None)
        assert Plan(on_instance(run(), machine, 1, room_on(machine))).step_s  # one node needs no network
