"""The table of accelerators, from programs that answer as nvidia-smi and neuron-monitor do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld
from tests.job.world import World, ago
from tools.cli import invoke
from tools.job import devices
from tools.job.snapshot.pod import JobPod

ROW = "{n}, NVIDIA H100 80GB HBM3, GPU-{n}, 81559, {used}, 98, 61, 689.21"
WELL = "0, 0, No, No"
REPORT = {
    "neuron_runtime_data": [
        {
            "pid": 17,
            "report": {
                "neuroncore_counters": {
                    "neuroncores_in_use": {
                        "0": {"neuroncore_utilization": 90.0},
                        "1": {"neuroncore_utilization": 50.0},
                    }
                },
                "memory_used": {
                    "neuron_runtime_used_bytes": {
                        "usage_breakdown": {
                            "neuroncore_memory_usage": {"0": {"tensors": 2**30, "model_code": 2**30}}
                        }
                    }
                },
            },
        }
    ],
    "system_data": {
        "neuron_hw_counters": {
            "neuron_devices": [
                {"neuron_device_index": 0, "mem_ecc_corrected": 4, "mem_ecc_uncorrected": 0,
                 "sram_ecc_uncorrected": 0, "sram_ecc_corrected": 0},
                {"neuron_device_index": 1, "mem_ecc_corrected": 0, "mem_ecc_uncorrected": 1,
                 "sram_ecc_uncorrected": 2, "sram_ecc_corrected": 0},
            ]
        }
    },
    "neuron_hardware_info": {
        "neuron_device_type": "trainium", "neuron_device_count": 2, "neuroncore_per_device_count": 2,
        "neuron_device_memory_size": 34359738368,
    },
}  # fmt: skip


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file: what it holds is what nvidia-smi answers on this machine, which plays the pods."""
    program = tmp_path / "programs/nvidia-smi"
    program.parent.mkdir()
    answer = tmp_path / "answer"
    program.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/asked-smi\ncat {answer}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{program.parent}")
    return answer


def trained(world: NewWorld) -> World:
    """A job of four pods with eight cards each, and heartbeats of all ranks."""
    made = world("p5/llama-3-1-8b")
    made.training(ranks=32)
    return made


def test_a_table_by_rank(
    world: NewWorld, cluster: Cluster, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trained(world)
    home = cluster(made)
    heartbeats(home, made)
    smi.write_text("".join(f"{ROW.format(n=n, used=70000 + n)}, {WELL}\n" for n in range(8)))
    assert invoke(["job", "devices", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = said["devices"]
    assert [row["ranks"] for row in rows] == [[rank] for rank in range(32)]
    assert (rows[9]["pod"], rows[9]["index"], rows[9]["used_mib"], rows[9]["use"]) == (
        "worker-1", 1, 70001.0, 98.0,
    )  # fmt: skip
    assert (rows[0]["errors"], rows[0]["watts"], rows[0]["problems"]) == (0, 689.21, [])
    assert invoke(["job", "devices"]) == 0
    assert "9      worker-1  1    NVIDIA H100 80GB HBM3  68.4 of 79.6  98%  61 C  689 W  0" in (
        capsys.readouterr().out
    )


def heartbeats(home: Path, made: World) -> None:
    """Put the world's heartbeats onto the volume that the stand-in's pods share."""
    assert made.run is not None
    (home / "volume/heartbeat").mkdir()
    for name, beat in made.run["heartbeats"].items():
        (home / "volume/heartbeat" / name).write_text(json.dumps(beat))


def test_errors_missing_cards_and_ill_nodes_are_bad(
    world: NewWorld, cluster: Cluster, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trained(world)
    made.nodes[3]["status"]["conditions"].append(
        {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error",
         "message": "fallen off the bus", "lastTransitionTime": ago(60)}
    )  # fmt: skip
    cluster(made)
    rows = [f"{ROW.format(n=n, used=1)}, {WELL}" for n in range(5)]
    rows += [
        f"{ROW.format(n=5, used=1)}, 3, 12, Yes, No",
        f"{ROW.format(n=6, used='[Unknown Error]')}, {WELL}",
    ]
    smi.write_text("\n".join(rows) + "\n")
    assert invoke(["job", "devices"]) == 1
    said = capsys.readouterr().out
    assert "FAIL: worker-0 device 5: 3 uncorrected ECC errors" in said
    assert "FAIL: worker-0 device 5: a memory row waits to be remapped: reset it" in said
    assert "FAIL: worker-0 device 6: memory.used: [Unknown Error]" in said
    assert "FAIL: worker-2 has 7 devices of 8" in said
    assert "FAIL: worker-3 on node-3: AcceleratedHardwareReady is False: NvidiaXID79Error" in said


def test_a_complaint_beside_the_rows_and_a_field_that_the_driver_does_not_know(
    world: NewWorld, cluster: Cluster, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others' rows stay; an old driver writes its refusal where the rows would be."""
    cluster(trained(world))
    rows = "".join(f"{ROW.format(n=n, used=1)}, {WELL}\n" for n in range(7))
    smi.write_text(f"Unable to determine the device handle for GPU7: Unknown Error\n{rows}")
    assert invoke(["job", "devices", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert len(told["devices"]) == 28
    assert "worker-0: Unable to determine the device handle for GPU7: Unknown Error" in told["wrong"]
    program = smi.parent / "programs/nvidia-smi"
    refusal = 'Field "remapped_rows.pending" is not a valid field to query.'
    program.write_text(f"#!/bin/sh\ncase $1 in *remapped*) echo '{refusal}'; exit 2;; esac\ncat {smi}\n")
    smi.write_text("".join(f"{ROW.format(n=n, used=1)}\n" for n in range(8)))
    assert invoke(["job", "devices", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 32


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        *((text, []) for text in ("[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "61")),
        *(
            (text, [f"temperature.gpu: {text}"])
            for text in ("ERR!", "[Unknown Error]", "[GPU requires reset]")
        ),
    ],
)
def test_what_stands_in_a_numbers_place(text: str, problems: list[str]) -> None:
    pod = JobPod({"metadata": {"name": "x-worker-0"}, "spec": {}, "status": {}})
    (one,) = devices.nvidia(f"0, NVIDIA A100, GPU-a, 40960, 1, 5, {text}, 60, 0, 0, No, No\n", pod)
    assert one.problems == problems


def test_a_lost_card_is_what_nvidia_smi_says_of_it(
    world: NewWorld, cluster: Cluster, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(trained(world))
    smi.write_text("Unable to determine the device handle for GPU0: 0000:53:00.0: GPU is lost.\n")
    assert invoke(["job", "devices"]) == 1
    assert "FAIL: worker-0: Unable to determine the device handle" in capsys.readouterr().out


def test_no_program_is_no_verdict(
    world: NewWorld, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an nvidia-smi of its own: run it on one without")
    cluster(trained(world))
    assert invoke(["job", "devices"]) == 3
    assert "worker-0: neither nvidia-smi nor neuron-monitor is in its image" in capsys.readouterr().out
    cluster(world())
    assert invoke(["job", "devices"]) == 3
    assert "requests an accelerator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        ("No devices were found", 6),
    ],
)
def test_a_program_that_fails_says_why(
    answer: str,
    code: int,
    world: NewWorld,
    cluster: Cluster,
    smi: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """nvidia-smi writes its complaint to standard output; the exit code alone would be all that is left."""
    cluster(trained(world))
    (smi.parent / "programs/nvidia-smi").write_text(f'#!/bin/sh\necho "{answer}"\nexit {code}\n')
    assert invoke(["job", "devices"]) == 1
    assert f"FAIL: worker-0: {answer}" in capsys.readouterr().out


def test_slices_of_a_card_are_no_missing_cards(
    world: NewWorld, cluster: Cluster, smi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(trained(world))
    smi.write_text("".join(f"{ROW.format(n=n, used=1)}, {WELL}, Disabled\n" for n in range(4)))
    assert invoke(["job", "devices"]) == 1, "control"
    smi.write_text("".join(f"{ROW.format(n=n, used=1)}, {WELL}, Enabled\n" for n in range(4)))
    assert invoke(["job", "devices"]) == 0
    capsys.readouterr()


def test_what_neuron_monitor_could_not_read_is_not_zero() -> None:
    pod = JobPod({"metadata": {"name": "x-worker-0"}, "spec": {}, "status": {}})
    ill = json.loads(json.dumps(REPORT))
    report = ill["neuron_runtime_data"][0]["report"]
    report["neuroncore_counters"] = {"neuroncores_in_use": None, "error": "no such process"}
    first, _ = devices.neuron(json.dumps(ill), pod)
    assert (first.use, first.used_mib) == (None, 2048.0)


def test_a_report_of_neuron_monitor() -> None:
    pod = JobPod({"metadata": {"name": "x-worker-0"}, "spec": {"nodeName": "n"}, "status": {}})
    first, second = devices.neuron(json.dumps(REPORT), pod)
    assert (first.use, first.used_mib, first.total_mib) == (70.0, 2048.0, 32768.0)
    assert (first.errors, first.corrected, first.problems) == (0, 4, [])
    assert (second.errors, second.problems) == (3, ["3 uncorrected ECC errors"])


def test_cards_without_error_counters() -> None:
    """An old driver refuses the query of them, and is asked without."""
    pod = JobPod({"metadata": {"name": "x-worker-0"}, "spec": {}, "status": {}})
    (one,) = devices.nvidia("0, NVIDIA A10G, GPU-a, 23028, 100, [N/A], 30, [N/A]\n", pod)
    assert (one.errors, one.use, one.watts, one.problems) == (None, None, None, [])
