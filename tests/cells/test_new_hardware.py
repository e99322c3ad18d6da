"""`yard new hardware`: an instance type or a node of one's own becomes a hardware with cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tools import cli
from tools.cells import matrix
from tools.cells.kustomize import Renderer
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import parse
from tools.new import component, hardware
from tools.preflight.evaluate import evaluate

OWN = [
    *("--cpus", "62", "--memory", "500Gi", "--devices", "nvidia.com/gpu=4", "--device", "A100"),
    *("--device-memory", "80Gi", "--select", "example.com/pool=a100"),
]
NODE = {
    "kind": "Node",
    "metadata": {
        "name": "gpu-17",
        "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"},
    },
    "status": {
        "allocatable": {
            "cpu": "191450m", "memory": "1984931840Ki", "nvidia.com/gpu": "8", "pods": "110",
            "hugepages-2Mi": "10256Mi", "vpc.amazonaws.com/efa": "32",
        }
    },
}  # fmt: skip


@pytest.fixture
def here(whole_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one's own that the commands work on."""
    monkeypatch.setattr(repo, "root", lambda: whole_checkout)
    monkeypatch.setattr(repo, "project", lambda: whole_checkout)
    return whole_checkout


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "where"), [(OWN, "1 x mine"), (["--instance", "ml.p5.4xlarge"], "1 x p5.4xlarge")])
def test_a_hardware_gets_a_cell_that_passes(
    words: list[str], where: str, here: Path, builder: Renderer, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "deepseek-r1-distill-qwen-1-5b-lora"
    assert cli.invoke(["new", "hardware", "mine", *words, "--model", model]) == 0
    assert f"cell overlays/mine/{model}: {where}, " in capsys.readouterr().out
    assert matrix.check(here).changes == []
    rendered = parse(builder.build(here / f"overlays/mine/{model}"), "mine")
    assert evaluate(rendered).of(State.FAIL) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine"], "give --instance, or --node, or at least --cpus, --memory and --select"),
        (["mine", "--instance", "p5.4xlarge", "--cpus", "4"], "--instance stands alone"),
        (["mine", "--instance", "p5.4xl"], "unknown instance type p5.4xl"),
        (["p5", "--instance", "p5.4xlarge"], "the hardware p5 exists"),
        (["a/../b", "--instance", "p5.4xlarge"], "cannot be a hardware's name"),
        (["mine", *OWN[:-1], "pool"], "'pool' is not KEY=VALUE"),
        (["mine", *OWN, "--memory", "many"], "node.memory: "),
        (["mine", *OWN, "--memory", "2Gi"], "error: node.memory: 2Gi is less than 2.25Gi"),  # 1 GiB for a pod
        (["mine", *OWN, "--model", "lama-tiny"], "no such model: lama-tiny"),
        (["mine", *OWN, "--model", "llama-3-1-70b"], "mine/llama-3-1-70b does not fit"),
        (["mine", *OWN, "--select", "a b=c"], "error: node.labels.a b: 'a b' is not a name of letters"),
    ],
)
def test_bad_input_is_one_error_and_changes_nothing(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(here)
    assert cli.invoke(["new", "hardware", *words]) == 2
    assert said in capsys.readouterr().err
    assert bytes_of(here) == before


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_matrix_may_have_comments_and_another_order(here: Path, end: str) -> None:
    """A key that was not found got a second line, which the matrix may not have."""
    path = here / matrix.MATRIX
    _, machines, cells = re.split(r"(?m)^(?=(?:hardware|cells):)", path.read_text(encoding="utf-8"))
    text = cells.replace("cells:", "cells:   # all", 1).replace("  cpu:\n", "  cpu:  # laptops\n", 1)
    text += "\n# what there is\n" + machines.replace("hardware:", "hardware: # ours", 1)
    path.write_bytes(hardware._with_hardware(text, "mine", {"instance": "p5.4xlarge"}).replace("\n", end).encode())
    matrix.sync(here)
    before = len(matrix.read(here).cells)
    entry = {"nodes": 1, "parallel": {"micro_batch_size": 1}, "checkpoint": {"every": 100}}
    component.add_cell(path, "mine", "llama-tiny", entry, here)
    component.add_cell(path, "cpu", "bert-large", entry, here)
    found = matrix.read(here)
    assert len(found.cells) == before + 2
    assert {"mine/llama-tiny", "cpu/bert-large"} <= {one.name for one in found.cells}


def test_a_node_of_the_cluster_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kubectl, "json", lambda *_, **__: NODE)
    assert cli.invoke(["new", "hardware", "own", "--node", "gpu-17"]) == 0
    machine = matrix.read(here).machines["own"]
    assert machine is not None
    assert machine.node_labels == {"nvidia.com/gpu.product": ["NVIDIA-H100-80GB-HBM3"]}
    assert (machine.accelerators, machine.accelerator_memory_mib, machine.efa) == (8, 81559, 32)
    # The kubelet's figure is without huge pages.
    assert machine.allocatable_memory_mib - machine.hugepages_2mi_mib == 1984931840 // 1024
    assert machine.allocatable_cpu_m == 191450


@pytest.mark.parametrize("broken", [{}, {"status": {"allocatable": {"cpu": "lots", "memory": "1Gi"}}}])
def test_a_node_that_shows_too_little_is_refused(
    broken: dict[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kubectl, "json", lambda *_, **__: broken)
    before = bytes_of(here)
    with pytest.raises(UserError, match=r"^node\.(labels|cpus)"):
        hardware.write(here, "own", {"node": hardware.of_node(Kubectl(), "gpu-17")}, ())
    assert bytes_of(here) == before


@pytest.mark.parametrize(
    ("devices", "labels", "said"),
    [
        ({"amd.com/gpu": "8"}, {}, "node.devices: the trainer has no image for amd.com/gpu"),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}, {}, "no image for nvidia.com/mig-1g.10gb"),
        ({"nvidia.com/gpu": "32"}, {"nvidia.com/gpu.replicas": "4"}, "gives each GPU to 4 pods"),
    ],
)
def test_devices_that_no_cell_can_take_are_not_left_out(
    devices: dict[str, str],
    labels: dict[str, str],
    said: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such a node became a hardware of processors."""
    node = {"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": "64", "memory": "500Gi", **devices}}}
    monkeypatch.setattr(Kubectl, "json", lambda *_, **__: node)
    before = bytes_of(here)
    assert cli.invoke(["new", "hardware", "own", "--node", "gpu-17", "--select", "pool=a"]) == 2
    assert said in capsys.readouterr().err
    assert bytes_of(here) == before
