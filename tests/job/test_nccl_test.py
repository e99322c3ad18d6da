"""The verdicts on an all-reduce log: its sums, its network, its bandwidth at its message size."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import NewWorld, Yard, workload
from tools.core.verdict import State
from tools.facts.bandwidth import MEASURED
from tools.facts.instances import INSTANCES
from tools.job import nccl_test
from tools.job.nccl_test import Row

EFA = "node:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)"
TCP = "node:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.1.7<0>"
# As nccl-tests prints them: release 2.13 and newer, then one before 2.8.
NEW = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum      -1   1947.9  160.00  300.00      0   1318.3  203.62  356.33    N/A
 17179869184    4294967296     float     sum      -1    65000  260.00  480.00      0    65000  260.00  487.00    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 390.0
"""
OLD = "    16777216       4194304     float     sum    549.8   30.51   57.21  5e-07    548.9   30.56   57.30  5e-07"
NCCOM = "        33554432        33554432    uint8         768          40.69          40.69"


@pytest.fixture
def job(world: NewWorld) -> dict[str, Any]:
    """The p5 cell's job as it would be on two p5.48xlarge, the machines that were measured."""
    found = copy.deepcopy(world("p5/llama-3-1-8b").job)
    worker = found["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = 2
    text = json.dumps(worker).replace("p5en.48xlarge", "p5.48xlarge")
    found["spec"]["pytorchReplicaSpecs"]["Worker"] = json.loads(text)
    return found


def states(job: dict[str, Any], text: str) -> dict[str, list[State]]:
    """The verdicts by what they are about."""
    found: dict[str, list[State]] = {}
    for one in nccl_test.check(workload(job), text.splitlines()):
        found.setdefault(one.details["check"], []).append(one.state)
    return found


def test_rows_of_every_program_that_prints_them() -> None:
    ours = [
        "       65536      0.500     0.13      0.25  right",
        "   67108864     30.000     2.24      4.48  WRONG",
    ]
    assert nccl_test.rows(ours) == [Row(65536, 0.25, True), Row(67108864, 4.48, False)]
    assert nccl_test.rows(NEW.splitlines()) == [Row(2**28, 300.0, True), Row(2**34, 480.0, True)]
    unchecked = NEW.replace("300.00      0", "300.00    N/A")
    assert nccl_test.rows(unchecked.splitlines())[0] == Row(2**28, 300.0, None)
    assert nccl_test.rows([OLD]) == [Row(2**24, 57.21, True)]
    assert nccl_test.rows([f"0: {NEW.splitlines()[3]}", f"[default0]:{OLD}"])[0] == Row(2**24, 57.21, True)
    assert nccl_test.rows([NCCOM]) == [Row(2**25, 40.69, None)]
    other = ["step 12/400 loss 3.0", "# Avg bus bandwidth    : 390.0", "65536 is a number"]
    assert nccl_test.rows(other) == []


def test_all_passes_over_efa_at_the_published_bandwidth(job: dict[str, Any]) -> None:
    good = State.PASS
    assert states(job, f"{EFA}\n{NEW}") == {"sums": [good], "network": [good], "bandwidth": [good, good]}


def test_tcp_instead_of_efa_fails(job: dict[str, Any]) -> None:
    assert states(job, f"{TCP}\n{NEW}")["network"] == [State.FAIL]
    assert states(job, f"{TCP}\n{EFA}\n{NEW}")["network"] == [State.PASS], "the bootstrap's own socket"
    assert states(job, NEW)["network"] == [State.CANNOT_TELL]


def test_a_bandwidth_is_compared_at_its_message_size(job: dict[str, Any]) -> None:
    """240 GB/s is enough at 128 MB and not at 16 GB; smaller messages than that say nothing."""
    slow = NEW.replace("480.00", "240.00")
    assert states(job, f"{EFA}\n{slow}")["bandwidth"] == [State.PASS, State.FAIL]
    small = "\n".join(NEW.splitlines()[:4])
    assert states(job, f"{EFA}\n{small}")["bandwidth"] == [State.PASS, State.CANNOT_TELL]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 16
    assert states(job, f"{EFA}\n{slow}")["bandwidth"] == [State.PASS, State.CANNOT_TELL], "other machines"


def test_a_measurement_of_the_same_number_of_machines_counts(job: dict[str, Any]) -> None:
    """Four p4d reach half of what two do at the same size: no reason to doubt them."""
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    text = json.dumps(worker).replace("p5.48xlarge", "p4d.24xlarge")
    job["spec"]["pytorchReplicaSpecs"]["Worker"] = json.loads(text) | {"replicas": 4}
    four = NEW.replace("17179869184", "1073741824").replace("480.00", "29.00")
    assert states(job, f"{EFA}\n{four}")["bandwidth"] == [State.PASS]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    assert states(job, f"{EFA}\n{four}")["bandwidth"] == [State.FAIL]


def test_machines_without_a_published_measurement_get_no_threshold(world: NewWorld) -> None:
    found = nccl_test.check(workload(world("p5/llama-3-1-8b").job), f"{EFA}\n{NEW}".splitlines())
    (verdict,) = (one for one in found if one.details["check"] == "bandwidth")
    assert verdict.state is State.CANNOT_TELL
    assert "p5en.48xlarge: 400.0 GB/s to the network" in verdict.evidence


@pytest.mark.parametrize(
    "text",
    [
        "   67108864     30.000     2.24      4.48  WRONG",
        NEW.replace("300.00      0", "300.00      7"),
        NEW.replace("values : 0 OK", "values : 3 FAILED"),
    ],
)
def test_wrong_sums_fail(text: str, job: dict[str, Any]) -> None:
    assert states(job, text)["sums"] == [State.FAIL]


def test_unchecked_sums_are_unknown(job: dict[str, Any]) -> None:
    assert states(job, NCCOM)["sums"] == [State.CANNOT_TELL]
    unchecked = NEW.replace(".00      0", ".00    N/A")
    assert states(job, unchecked)["sums"] == [State.CANNOT_TELL]


def test_every_measured_machine_is_one_of_the_table() -> None:
    assert {one.instance for one in MEASURED} <= set(INSTANCES)
    assert all(one.source and one.nodes > 1 for one in MEASURED)


def test_a_log_is_checked_without_a_cluster(tmp_path: Path, yard: Yard) -> None:
    log = tmp_path / "log"
    log.write_text(f"{TCP}\n{NEW}")
    answer = yard.json("nccl-test", "p5/llama-3-1-8b", "--log", str(log), code=1)
    assert [one["verdict"] for one in answer["verdicts"]] == ["PASS", "FAIL", "CANNOT TELL"]
    assert answer["rows"][1] == {"size": 2**34, "bus": 480.0, "right": True}
    log.write_text("nothing\n")
    printed = yard.out("nccl-test", "cpu/llama-tiny", "--log", str(log), code=3)
    assert "CANNOT TELL: the log has no measurement" in printed
    yard.err("nccl-test", "cpu/llama-tiny", "--log", str(tmp_path / "none"), code=2)
