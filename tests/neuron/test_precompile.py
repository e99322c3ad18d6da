"""The job before the job: what it starts, what its log proves, and its manifest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.neuron.conftest import write_config
from tools.cells.kustomize import ensure
from tools.cli import invoke, precompile
from tools.core.repo import root
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import kinds
from training.neuron import compile_log
from training.neuron.compile_log import Summary
from training.run.failure import CODES

TWO_NODES = """\
2025-01-17 01:16:07.000970:  42821  INFO ||NEURON_CACHE||: Current remaining items are 0, locked are 2
2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total graphs: 2
2025-01-17 01:16:07.000981:  37654  INFO ||NEURON_PARALLEL_COMPILE||: Total graphs: 8
2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total successful compilations: 2
2025-01-17 01:16:38.000177:  37654  INFO ||NEURON_PARALLEL_COMPILE||: Total successful compilations: 7
2025-01-17 01:16:38.000177:  37654  INFO ||NEURON_PARALLEL_COMPILE||: Total failed compilations: 1
2025-01-17 01:16:38.000177:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total failed compilations: 0
"""
FIRST_RELEASES = """\
2022-12-21 00:07:10.000925: INFO ||PARALLEL_COMPILE||: Total graphs: 6
2022-12-21 00:07:10.000925: INFO ||PARALLEL_COMPILE||: Total successful compilations: 6
2022-12-21 00:07:10.000925: INFO ||PARALLEL_COMPILE||: Total failed compilations: 0
"""
NOTHING = "INFO ||NEURON_CACHE||: Compile cache path: /shared\nTotal graphs: 3\n"
# As AWS's program: the command with NEURON_EXTRACT_GRAPHS_ONLY, then a summary.
STAND_IN = """\
#!/bin/sh
NEURON_EXTRACT_GRAPHS_ONLY=1 "$@" || exit $?
printf '%s' "$SUMMARY"
"""


def test_summaries_of_several_nodes_are_told_apart() -> None:
    assert compile_log.summaries(TWO_NODES.splitlines()) == [Summary(8, 7, 1), Summary(2, 2, 0)]
    assert compile_log.summaries(FIRST_RELEASES.splitlines()) == [Summary(6, 6, 0)]
    assert compile_log.summaries(NOTHING.splitlines()) == []


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (FIRST_RELEASES, 0, "6 graphs: 6 compiled, 0 failed (1 summary)\n"),
        (TWO_NODES, 1, "10 graphs: 9 compiled, 1 failed (2 summaries)\n"),
        (NOTHING, 3, ""),
    ],
)
def test_job_metrics_reads_the_summary(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, code: int, said: str
) -> None:
    log = tmp_path / "graphs.log"
    log.write_text(text)
    assert invoke(["job", "metrics", str(log)]) == code
    assert capsys.readouterr().out == said


def start(tmp_path: Path, summary: str, *words: str, device: str = "neuron") -> subprocess.CompletedProcess[str]:
    """Run training.precompile with the stand-in for AWS's program on PATH."""
    program = tmp_path / "bin" / "neuron_parallel_compile"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    config = write_config(tmp_path / "config", "llama-tiny", tmp_path, {"device.type": device})
    environment = {
        "PATH": f"{program.parent}:{os.defpath}", "PYTHONPATH": str(root()), "SUMMARY": summary,
        "NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"), "TRAINYARD_RUN": str(tmp_path / "run"),
    }  # fmt: skip
    command = [sys.executable, "-m", "training.precompile", *words, "--config", str(config)]
    return subprocess.run(command, cwd=root(), env=environment, capture_output=True, text=True, timeout=180)


SHOWS = "import os; print(os.environ['NEURON_EXTRACT_GRAPHS_ONLY'], os.environ['NEURON_COMPILE_CACHE_URL'])"


def test_the_command_runs_under_the_compiler_with_the_cachesets_directory(tmp_path: Path) -> None:
    done = start(tmp_path, FIRST_RELEASES, sys.executable, "-c", SHOWS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    extracting, _, directory = lines[1].partition(" ")
    assert extracting == "1"
    assert Path(directory).parent == tmp_path / "cache"
    assert Path(directory).name.startswith("llama-")
    assert lines[-1] == f"6 graphs: 6 compiled, 0 failed; cache {directory}"


@pytest.mark.parametrize(
    ("summary", "program", "message"),
    [
        (TWO_NODES, "pass", "10 graphs: 9 compiled, 1 failed"),
        (NOTHING, "pass", "printed no summary"),
        (FIRST_RELEASES, "raise SystemExit(5)", "failed with exit code 5"),
    ],
)
def test_nothing_is_called_compiled_without_proof(tmp_path: Path, summary: str, program: str, message: str) -> None:
    done = start(tmp_path, summary, sys.executable, "-c", program)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_only_neuron_compiles_beforehand(tmp_path: Path) -> None:
    done = start(tmp_path, FIRST_RELEASES, sys.executable, "-c", "pass", device="cpu")
    assert done.returncode == CODES["config"]
    assert done.stderr == "config: device.type is cpu: only neuron compiles graphs in advance\n"


@pytest.fixture(scope="module")
def rendered() -> dict[str, Manifests]:
    """The cell's own job and its precompile job."""
    cell = root() / "overlays/trn1/bert-large"
    own = ensure(root(), lambda _: None).build(cell)
    return {"train": parse(own, "cell"), "precompile": parse(precompile.render(cell), "precompile")}


def test_the_job_before_is_the_cells_job_behind_the_compiler(rendered: dict[str, Manifests]) -> None:
    """Same arguments, image, nodes and configuration. Another name, and so another run directory."""
    train, before = rendered["train"].job(), rendered["precompile"].job()
    assert before["metadata"]["name"] == train["metadata"]["name"] + "-graphs"
    workers = [job["spec"]["pytorchReplicaSpecs"]["Worker"] for job in (train, before)]
    assert workers[0]["replicas"] == workers[1]["replicas"]
    own, other = (worker["template"]["spec"]["containers"][0] for worker in workers)
    assert other["command"] == [*own["command"][:-1], "python", "-m", "training.precompile", "torchrun"]
    changed = {key for key in own if own[key] != other[key]}
    assert changed == {"command", "env", "volumeMounts"}
    assert [one for one in other["env"] if one not in own["env"]] == []
    assert [one["name"] for one in own["env"] if one not in other["env"]] == ["TRAINYARD_GRAPHS"]
    (graphs,) = [one for one in own["volumeMounts"] if one not in other["volumeMounts"]]
    assert (graphs["subPathExpr"], graphs["readOnly"]) == ("runs/$(JOB_NAME)-graphs", True)
    texts = [
        sorted(text for item in found.of_kind("ConfigMap") for text in item["data"].values())
        for found in rendered.values()
    ]
    assert texts[0] == texts[1]


def test_the_job_before_passes_preflight_and_forms_one_world(rendered: dict[str, Manifests]) -> None:
    found = evaluate(rendered["precompile"])
    assert found.of(State.FAIL) == []
    (job,) = kinds.find(rendered["precompile"]).workloads
    analysis = wiring.analyse(job)
    assert analysis.verdict.state is State.PASS, analysis.verdict
    assert {node.launch.torchrun is not None for node in analysis.nodes} == {True}


def test_a_cell_of_other_hardware_has_no_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["precompile", "cpu/llama-tiny"]) == 2
    assert "overlays/cpu/llama-tiny is not a cell of the matrix for Neuron devices" in capsys.readouterr().err
