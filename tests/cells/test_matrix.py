"""The matrix: what it writes, what it refuses, and the commands that show it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from tools import cli
from tools.cells import matrix
from tools.cells.kustomize import Renderer
from tools.core import repo
from tools.core.errors import UserError
from training.config import Nodes

LEAF = "overlays/cpu/llama-tiny"
WRONG = YAML(typ="safe", pure=True).load(Path(__file__).with_name("wrong_matrices.yaml"))
PARALLEL = "parallel: {micro_batch_size: 8}, checkpoint: {every: 50}"


def write_matrix(root: Path, text: str) -> None:
    (root / matrix.MATRIX).write_text(text, encoding="utf-8")


def add_component(root: Path, kind: str, name: str) -> None:
    """Add a hardware or model Component: a copy of the first one."""
    source = {"hardware": "cpu", "model": "llama-tiny"}[kind]
    shutil.copytree(root / f"overlays/{kind}/{source}", root / f"overlays/{kind}/{name}")


def refusal(act: Callable[[Path], object], root: Path) -> str:
    """Return message and hint of the UserError that `act` raises."""
    with pytest.raises(UserError) as caught:
        act(root)
    assert caught.value.code == 2
    assert "\n" not in caught.value.message
    return f"{caught.value.message} | {caught.value.hint}"


def bytes_of(root: Path) -> dict[str, bytes]:
    files = (path for path in (root / "overlays").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_this_checkout_is_in_step() -> None:
    assert matrix.check(repo.root()).changes == []


def test_sync_is_deterministic_and_then_has_nothing_to_do(checkout: Path) -> None:
    before = bytes_of(checkout)
    shutil.rmtree(checkout / LEAF)
    written = [change.path.name for change in matrix.sync(checkout).changes]
    assert written == ["cell.yaml", "kustomization.yaml"]
    assert bytes_of(checkout) == before
    stamp = (checkout / LEAF / "cell.yaml").stat().st_mtime_ns
    assert matrix.sync(checkout).changes == []
    assert (checkout / LEAF / "cell.yaml").stat().st_mtime_ns == stamp


def test_new_hardware_and_model_are_a_component_and_a_line(checkout: Path, renderer: Renderer) -> None:
    add_component(checkout, "hardware", "big")
    add_component(checkout, "model", "other")
    write_matrix(
        checkout,
        "cells:\n"
        f"  cpu: {{llama-tiny: {{nodes: 2, {PARALLEL}}}}}\n"
        f"  big: {{llama-tiny: {{nodes: 4, {PARALLEL}}}, other: {{nodes: 1, {PARALLEL}}}}}\n",
    )
    state = matrix.sync(checkout)
    assert [cell.name for cell in state.cells] == ["big/llama-tiny", "big/other", "cpu/llama-tiny"]
    text = renderer.build(checkout / "overlays/big/llama-tiny")
    assert "name: big-llama-tiny-train" in text
    assert re.search(r"maxReplicas: 4\n.*\n    minReplicas: 4", text)
    assert "backoffLimit: 12" in text
    assert not (checkout / "overlays/cpu/other").exists()


def test_an_elastic_cell_has_its_bounds_in_the_job_and_in_its_configuration(checkout: Path, renderer: Renderer) -> None:
    entry = f"{{nodes: {{min: 2, max: 4}}, retry: {{most: 5}}, {PARALLEL}}}"
    write_matrix(checkout, f"cells: {{cpu: {{llama-tiny: {entry}}}}}\n")
    (cell,) = matrix.sync(checkout).cells
    assert (cell.least, cell.nodes) == (2, 4)
    text = renderer.build(checkout / LEAF)
    job = next(one for one in yaml.safe_load_all(text) if one["kind"] == "PyTorchJob")
    assert job["metadata"]["annotations"]["trainyard/nodes"] == "2:4"
    elastic = {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 5, "rdzvBackend": "c10d"}
    assert job["spec"]["elasticPolicy"] == {**elastic, "rdzvConf": [{"key": "last_call_timeout", "value": "15"}]}
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4
    assert job["spec"]["runPolicy"]["backoffLimit"] == 20
    assert matrix.configuration(checkout, cell).nodes == Nodes(min=2, max=4)


def test_cells_that_left_the_matrix_are_removed_and_nothing_else(checkout: Path) -> None:
    add_component(checkout, "hardware", "big")
    entry = f"{{llama-tiny: {{nodes: 2, {PARALLEL}}}}}"
    write_matrix(checkout, f"cells:\n  cpu: {entry}\n  big: {entry}\n")
    matrix.sync(checkout)
    own = checkout / "overlays/big/mine"
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [../llama-tiny]\n", encoding="utf-8")
    write_matrix(checkout, f"cells:\n  cpu: {entry}\n  big: {{}}\n")
    removed = matrix.sync(checkout).changes
    assert [change.verb for change in removed] == ["remove", "remove"]
    assert not (checkout / "overlays/big/llama-tiny").exists()
    assert (own / "kustomization.yaml").exists()
    assert (checkout / LEAF / "kustomization.yaml").exists()


def test_sizes_are_components_of_their_own(checkout: Path, renderer: Renderer) -> None:
    """A size that a cell names is written beside its hardware, and removed when no cell names it."""
    plain = f"cells: {{cpu: {{llama-tiny: {{nodes: 2, {PARALLEL}}}}}}}\n"
    write_matrix(checkout, plain.replace("nodes: 2", "nodes: 2, instance: c7i.8xlarge"))
    written = [change.path.relative_to(checkout).as_posix() for change in matrix.sync(checkout).changes]
    size = "overlays/hardware/cpu/c7i.8xlarge"
    assert written == [
        f"{LEAF}/cell.yaml",
        f"{LEAF}/kustomization.yaml",
        f"{size}/kustomization.yaml",
        f"{size}/pytorchjob.yaml",
    ]
    text = renderer.build(checkout / LEAF)
    assert "- c7i.8xlarge\n" in text
    assert "- ml.c7i.8xlarge\n" in text
    assert "memory: 54Gi" in text  # in the place of the hardware's own 3 GiB
    assert "memory: 3Gi" not in text
    own = checkout / size / "pytorchjob.yaml"
    own.write_text(own.read_text(encoding="utf-8").replace("54Gi", "55Gi"), encoding="utf-8")
    (change,) = matrix.check(checkout).changes
    assert "-      memory: 55Gi\n" in change.diff(checkout)
    write_matrix(checkout, plain)
    matrix.sync(checkout)
    assert not (checkout / size).exists()
    assert "c7i.8xlarge" not in renderer.build(checkout / LEAF)


def test_a_hand_written_size_is_not_overwritten(checkout: Path) -> None:
    path = checkout / "overlays/hardware/cpu/c7i.8xlarge/pytorchjob.yaml"
    path.parent.mkdir()
    path.write_text("[]\n", encoding="utf-8")
    write_matrix(checkout, f"cells: {{cpu: {{llama-tiny: {{nodes: 2, instance: c7i.8xlarge, {PARALLEL}}}}}}}\n")
    assert "c7i.8xlarge/pytorchjob.yaml was not generated" in refusal(matrix.sync, checkout)
    assert path.read_text(encoding="utf-8") == "[]\n"


OWN_NODE = (
    "{labels: {pool: a100}, cpus: 62500m, memory: 500Gi, devices: {nvidia.com/gpu: 4}, device: A100,"
    " device_memory: 80Gi}"
)


def test_a_hardware_of_your_own_is_an_entry(checkout: Path, renderer: Renderer) -> None:
    """Its Component, and the size of its machine, are written and removed with the entry."""
    cells = f"cells: {{cpu: {{}}, lab: {{llama-tiny: {{nodes: 2, {PARALLEL}, instance: {{}}}}}}}}\n"
    cells = cells.replace(", instance: {}", "").replace("micro_batch_size: 8", "micro_batch_size: 2")
    write_matrix(checkout, f"hardware: {{lab: {{node: {OWN_NODE}}}}}\n{cells}")
    names = {change.path.relative_to(checkout).as_posix() for change in matrix.sync(checkout).changes}
    assert {
        "overlays/hardware/lab/hardware.yaml",
        "overlays/hardware/lab/kustomization.yaml",
        "overlays/hardware/lab/lab/pytorchjob.yaml",
        "overlays/lab/llama-tiny/kustomization.yaml",
    } <= names
    (job,) = (
        one
        for one in YAML(typ="safe").load_all(renderer.build(checkout / "overlays/lab/llama-tiny"))
        if one["kind"] == "PyTorchJob"
    )
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expression = {"key": "pool", "operator": "In", "values": ["a100"]}
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    resources = pod["containers"][0]["resources"]
    assert resources["limits"] == {"memory": "489Gi", "nvidia.com/gpu": "4"}
    assert resources["requests"]["cpu"] == "61"
    assert job["spec"]["nprocPerNode"] == "4"
    assert "trainer-cuda" in pod["containers"][0]["image"]
    write_matrix(checkout, f"cells: {{cpu: {{llama-tiny: {{nodes: 2, {PARALLEL}}}}}}}\n")
    matrix.sync(checkout)
    assert not (checkout / "overlays/hardware/lab").exists()
    assert (checkout / "overlays/hardware/cpu").exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "{instance: c7.8xlarge}",
            r"instance: unknown .* c7\.8xlarge \| did you mean c7i\.8xlarge\?",
        ),
        ("{}", r"one key is needed \| instance: TYPE, or node"),
        ("{machine: p5.48xlarge}", "one key is needed"),
        ("{node: 5}", r"node: "),
        (f"{{node: {OWN_NODE.replace('pool: a100', '')}}}", r"node\.labels: .* at least 1 item"),
        (f"{{node: {OWN_NODE.replace('500Gi', '500GB')}}}", r"node\.memory: .*500GB"),
        (
            f"{{node: {OWN_NODE.replace('nvidia.com/gpu', 'amd.com/gpu')}}}",
            r"node\.devices: .* for amd",
        ),
        (f"{{node: {OWN_NODE.replace('device: A100,', '')}}}", r"node\.devices: device and device_memory"),
        (f"{{node: {OWN_NODE.replace('cpus', 'cpu')}}}", r"node\.cpu"),
    ],
)
def test_a_wrong_hardware_is_one_clear_error(entry: str, said: str, checkout: Path) -> None:
    write_matrix(checkout, f"hardware:\n  lab: {entry}\ncells: {{}}\n")
    assert re.search(rf"overlays/matrix\.yaml:2: hardware\.lab: .*{said}", refusal(matrix.check, checkout))


def test_a_hand_written_leaf_is_not_overwritten(checkout: Path) -> None:
    path = checkout / LEAF / "kustomization.yaml"
    path.write_text("resources: []\n", encoding="utf-8")
    assert "kustomization.yaml was not generated" in refusal(matrix.sync, checkout)
    assert path.read_text(encoding="utf-8") == "resources: []\n"


def test_a_place_that_cannot_be_written(checkout: Path) -> None:
    shutil.rmtree(checkout / LEAF)
    (checkout / LEAF).write_text("a file where a directory belongs\n", encoding="utf-8")
    assert f"{LEAF}/cell.yaml: " in refusal(matrix.sync, checkout)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong["said"])
def test_a_wrong_matrix_is_one_clear_error(wrong: dict[str, str], checkout: Path) -> None:
    before = bytes_of(checkout)
    write_matrix(checkout, wrong["text"])
    assert re.search(wrong["said"], refusal(matrix.sync, checkout))
    assert {**bytes_of(checkout), matrix.MATRIX: b""} == {**before, matrix.MATRIX: b""}


def test_no_matrix(checkout: Path) -> None:
    (checkout / matrix.MATRIX).unlink()
    assert "overlays/matrix.yaml: No such file or directory" in refusal(matrix.check, checkout)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Big", r"Big-llama-tiny cannot be a Service's name \(DNS-1035\)"),
        ("5p", "5p-llama-tiny cannot be"),
        ("g5.8xlarge", r"g5\.8xlarge-llama-tiny cannot be"),
        ("h" * 36, "has 64 characters; a Service's name has at most 63"),
    ],
)
def test_names_that_no_service_can_have(name: str, said: str, checkout: Path) -> None:
    entry = f"{{llama-tiny: {{nodes: 2, {PARALLEL}}}}}"
    add_component(checkout, "hardware", name)
    write_matrix(checkout, f"cells:\n  cpu: {entry}\n  {name}: {entry}\n")
    assert re.search(
        rf"matrix\.yaml:3: cells\.{re.escape(name)}\.llama-tiny: .*{said}", refusal(matrix.check, checkout)
    )


def test_the_longest_name_is_taken(checkout: Path) -> None:
    """Control: one character less than the refused name."""
    name = "h" * 35
    entry = f"{{llama-tiny: {{nodes: 2, {PARALLEL}}}}}"
    add_component(checkout, "hardware", name)
    write_matrix(checkout, f"cells:\n  cpu: {entry}\n  {name}: {entry}\n")
    matrix.sync(checkout)
    assert len(f"{name}-llama-tiny-train-worker-999") == 63


def test_a_component_reached_twice_is_refused(checkout: Path, renderer: Renderer) -> None:
    """Two Components that both include a third: kustomize applies it twice without a warning."""
    shared = checkout / "overlays/feature/debug"
    shared.mkdir(parents=True)
    path = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/env/-"
    patch = f'[{{"op": "add", "path": "{path}", "value": {{"name": "TWICE", "value": "1"}}}}]'
    (shared / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
        f"patches: [{{target: {{kind: PyTorchJob}}, patch: '{patch}'}}]\n",
        encoding="utf-8",
    )
    for part in ("hardware/cpu", "model/llama-tiny"):
        with (checkout / f"overlays/{part}/kustomization.yaml").open("a", encoding="utf-8") as file:
            file.write("components: [../../feature/debug]\n")
    assert renderer.build(checkout / LEAF).count("name: TWICE") == 2  # what is refused
    said = refusal(matrix.check, checkout)
    assert "overlays/feature/debug is reached twice" in said
    assert f"{LEAF} -> overlays/hardware/cpu -> overlays/feature/debug" in said
    assert f"{LEAF} -> overlays/model/llama-tiny -> overlays/feature/debug" in said


@pytest.mark.parametrize(
    ("part", "section", "owner"),
    [
        ("hardware/cpu/hardware.yaml", "checkpoint: {every: 7}", "cell"),
        ("model/llama-tiny/model.yaml", "device: {type: cpu}", "hardware"),
        ("hardware/cpu/hardware.yaml", "sequence_length: 8", "model"),
    ],
)
def test_a_section_with_two_owners_is_refused(part: str, section: str, owner: str, checkout: Path) -> None:
    path = checkout / "overlays" / part
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}{section}\n", encoding="utf-8")
    line = len(text.splitlines()) + 1
    said = refusal(matrix.check, checkout)
    assert f"overlays/{part}:{line}: {section.split(':')[0]} belongs in {owner}.yaml" in said


def test_commands_show_the_difference(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repo, "root", lambda: checkout)
    assert cli.invoke(["matrix", "check"]) == 0
    assert capsys.readouterr().out == "1 cell as in overlays/matrix.yaml\n  cpu: llama-tiny\n"
    path = checkout / LEAF / "kustomization.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("Worker/replicas, value: 2", "Worker/replicas, value: 3"),
        encoding="utf-8",
    )
    assert cli.invoke(["matrix", "check"]) == 1
    shown = capsys.readouterr()
    path_of = "{op: replace, path: /spec/pytorchReplicaSpecs/Worker/replicas"
    assert f"-      - {path_of}, value: 3}}\n+      - {path_of}, value: 2}}\n" in shown.out
    assert shown.err == "error: 1 file differs from overlays/matrix.yaml\n  hint: run: yard matrix sync\n"
    assert cli.invoke(["matrix", "check", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["cells"] == ["cpu/llama-tiny"]
    assert [change["file"] for change in told["changes"]] == [f"{LEAF}/kustomization.yaml"]
    assert cli.invoke(["matrix", "sync"]) == 0
    assert capsys.readouterr().out == f"write {LEAF}/kustomization.yaml\n1 cell, 1 file changed\n"
    assert cli.invoke(["matrix", "check"]) == 0


def test_render_prints_yaml_and_nothing_else(renderer: Renderer, capsys: pytest.CaptureFixture[str]) -> None:
    expected = renderer.build(repo.root() / LEAF)
    for name in (LEAF, "cpu/llama-tiny"):
        assert cli.invoke(["render", name]) == 0
        assert capsys.readouterr() == (expected, "")
    assert cli.invoke(["render", "cpu/llama-tiny", "--json"]) == 0
    kinds = [one["kind"] for one in json.loads(capsys.readouterr().out)]
    assert sorted(set(kinds)) == ["ConfigMap", "NetworkPolicy", "PyTorchJob", "ServiceAccount"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cpu/lama-tiny", "did you mean overlays/cpu/llama-tiny?"),
        ("llama-tiny", "a cell is HARDWARE/MODEL: cpu/llama-tiny, g5/llama-tiny"),
        (
            "cpu/llama-3-1-8b",
            "70.8 GiB a process needed, 3.0 there, on 2 x pod (yard matrix memory cpu/llama-3-1-8b)",
        ),
        ("cpu/llama-3-1-8b", "cells of cpu: cpu/bert-tiny, cpu/llama-tiny"),
    ],
)
def test_render_of_an_unknown_cell_says_what_there_is(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["render", name]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"no such cell: {name}\n" in shown.err
    assert hint in shown.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("../../hardware/cpu,", "../../hardware/gpu,", "overlays/hardware/gpu"),
        ("patches:", "patch:", "patch"),
        ("resources: [", "resources: [[", "line"),
        ("- {op: replace,", "- {op: replaceit,", "replaceit"),
    ],
)
def test_a_cell_that_does_not_render_is_one_clear_error(
    old: str, new: str, said: str, checkout: Path, builder: Renderer
) -> None:
    path = checkout / LEAF / "kustomization.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        builder.build(checkout / LEAF)
    message = caught.value.message
    assert "overlays/cpu/llama-tiny does not render: " in message
    assert said in message.partition("does not render: ")[2]
    assert "\n" not in message
    assert len(message) < 800
