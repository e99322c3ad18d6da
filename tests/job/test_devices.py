"""The table of accelerators, from programs that answer as nvidia-smi and neuron-monitor do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.job.world import World, ago
from tools.job import devices
from tools.job.snapshot.pod import JobPod

ROW = "{n}, NVIDIA H100 80GB HBM3, GPU-{n}, 81559, {used}, 98, 61, 689.21"
GOOD = "0, 0, No, No"
# As neuron-monitor prints it, of two devices.
REPORT = Path(__file__).with_name("neuron_report.json").read_text(encoding="utf-8")
POD = JobPod({"metadata": {"name": "x-worker-0"}, "spec": {"nodeName": "n"}, "status": {}})
LOST = "Unable to determine the device handle for GPU"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose content nvidia-smi prints on this machine, which takes the place of the pods."""
    program = tmp_path / "programs/nvidia-smi"
    program.parent.mkdir()
    answer = tmp_path / "answer"
    program.write_text(f"#!/bin/sh\ncat {answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{program.parent}")
    return answer


def rows(number: int, end: str = f", {GOOD}") -> str:
    """Rows of that many good devices."""
    return "".join(f"{ROW.format(n=n, used=70000 + n)}{end}\n" for n in range(number))


def trained(world: NewWorld) -> World:
    """A job of four pods with eight cards each, and heartbeats of all ranks."""
    made = world("p5/llama-3-1-8b")
    made.training(ranks=32)
    return made


def test_a_table_by_rank(world: NewWorld, cluster: Cluster, smi: Path, yard: Yard) -> None:
    made = trained(world)
    home = cluster(made)
    assert made.run is not None
    (home / "volume/heartbeat").mkdir()
    for name, beat in made.run["heartbeats"].items():
        (home / "volume/heartbeat" / name).write_text(json.dumps(beat))
    smi.write_text(rows(8))
    found = yard.json("devices")["devices"]
    assert [row["ranks"] for row in found] == [[rank] for rank in range(32)]
    ninth = found[9]
    assert (ninth["pod"], ninth["index"], ninth["used_mib"], ninth["use"]) == ("worker-1", 1, 70001.0, 98.0)
    assert (found[0]["errors"], found[0]["watts"], found[0]["problems"]) == (0, 689.21, [])
    line = "9      worker-1  1    NVIDIA H100 80GB HBM3  68.4 of 79.6  98%  61 C  689 W  0"
    assert line in yard.out("devices")


def test_errors_missing_cards_and_faulty_nodes_fail(world: NewWorld, cluster: Cluster, smi: Path, yard: Yard) -> None:
    made = trained(world)
    made.nodes[3]["status"]["conditions"].append(
        {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error",
         "message": "fallen off the bus", "lastTransitionTime": ago(60)}
    )  # fmt: skip
    cluster(made)
    fifth, sixth = ROW.format(n=5, used=1), ROW.format(n=6, used="[Unknown Error]")
    smi.write_text(f"{rows(5)}{fifth}, 3, 12, Yes, No\n{sixth}, {GOOD}\n")
    printed = yard.out("devices", code=1)
    for line in (
        "worker-0 device 5: 3 uncorrected ECC errors",
        "worker-0 device 5: a memory row waits to be remapped: reset it",
        "worker-0 device 6: memory.used: [Unknown Error]",
        "worker-2 has 7 devices of 8",
        "worker-3 on node-3: AcceleratedHardwareReady is False: NvidiaXID79Error",
    ):
        assert f"FAIL: {line}" in printed


def test_an_error_message_between_the_rows_and_an_unknown_field(
    world: NewWorld, cluster: Cluster, smi: Path, yard: Yard
) -> None:
    """The other rows are kept. An old driver prints its refusal instead of rows."""
    cluster(trained(world))
    smi.write_text(f"{LOST}7: Unknown Error\n{rows(7)}")
    answer = yard.json("devices", code=1)
    assert len(answer["devices"]) == 28
    assert f"worker-0: {LOST}7: Unknown Error" in answer["wrong"]
    program = smi.parent / "programs/nvidia-smi"
    refusal = 'Field "remapped_rows.pending" is not a valid field to query.'
    program.write_text(f"#!/bin/sh\ncase $1 in *remapped*) echo '{refusal}'; exit 2;; esac\ncat {smi}\n")
    smi.write_text(rows(8, end=""))
    assert len(yard.json("devices")["devices"]) == 32


@pytest.mark.parametrize("text", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "61"])
def test_a_missing_value_is_not_a_fault(text: str) -> None:
    assert temperature_problems(text) == []


@pytest.mark.parametrize("text", ["ERR!", "[Unknown Error]", "[GPU requires reset]"])
def test_an_error_instead_of_a_value_is_a_fault(text: str) -> None:
    assert temperature_problems(text) == [f"temperature.gpu: {text}"]


def temperature_problems(text: str) -> list[str]:
    """The faults of a card that prints this temperature."""
    (one,) = devices.nvidia(f"0, NVIDIA A100, GPU-a, 40960, 1, 5, {text}, 60, 0, 0, No, No\n", POD)
    return one.problems


def test_no_program_is_no_verdict(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an nvidia-smi: run it on one without")
    cluster(trained(world))
    assert "worker-0: neither nvidia-smi nor neuron-monitor is in its image" in yard.out("devices", code=3)
    cluster(world())
    assert "requests an accelerator" in yard("devices", code=3).err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        ("No devices were found", 6),
        (f"{LOST}0: 0000:53:00.0: GPU is lost.", 0),
    ],
)
def test_a_program_that_fails_says_why(
    answer: str, code: int, world: NewWorld, cluster: Cluster, smi: Path, yard: Yard
) -> None:
    """nvidia-smi prints its error on standard output. Without it only the exit code would be known."""
    cluster(trained(world))
    (smi.parent / "programs/nvidia-smi").write_text(f'#!/bin/sh\necho "{answer}"\nexit {code}\n')
    assert f"FAIL: worker-0: {answer}" in yard.out("devices", code=1)


def test_slices_of_a_card_are_not_missing_cards(world: NewWorld, cluster: Cluster, smi: Path, yard: Yard) -> None:
    cluster(trained(world))
    smi.write_text(rows(4, end=f", {GOOD}, Disabled"))
    yard("devices", code=1)  # control
    smi.write_text(rows(4, end=f", {GOOD}, Enabled"))
    yard("devices")


def test_a_value_that_neuron_monitor_could_not_read_is_not_zero() -> None:
    broken = json.loads(REPORT)
    counters = {"neuroncores_in_use": None, "error": "no such process"}
    broken["neuron_runtime_data"][0]["report"]["neuroncore_counters"] = counters
    first, _ = devices.neuron(json.dumps(broken), POD)
    assert (first.use, first.used_mib) == (None, 2048.0)


def test_a_report_of_neuron_monitor() -> None:
    first, second = devices.neuron(REPORT, POD)
    assert (first.use, first.used_mib, first.total_mib) == (70.0, 2048.0, 32768.0)
    assert (first.errors, first.corrected, first.problems) == (0, 4, [])
    assert (second.errors, second.problems) == (3, ["3 uncorrected ECC errors"])


def test_cards_without_error_counters() -> None:
    """An old driver refuses the query for them, and is asked without."""
    (one,) = devices.nvidia("0, NVIDIA A10G, GPU-a, 23028, 100, [N/A], 30, [N/A]\n", POD)
    assert (one.errors, one.use, one.watts, one.problems) == (None, None, None, [])
