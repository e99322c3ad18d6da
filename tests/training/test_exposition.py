"""What a run's metrics say to Prometheus: rendered from a run directory, and served by process 1 of a real pod."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.parts.ports import free_port
from training.pod import metrics_server
from training.pod.exposition import FAMILIES, Exposition, Here
from training.run.directory import RunDir, write_json
from training.run.heartbeat import PHASES, Beat, Heartbeat, changes_of, path_of
from training.run.phases import Reader

HERE = Here("worker-0", "host-a", first=True)
ROOT = Path(__file__).parents[2]


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Parsed by Prometheus' own library: name and label values without the run's, to the value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = {key: value for key, value in one.labels.items() if key != "run"}
            found[(one.name, *labels.values())] = one.value
    return found


def beat(rank: int, host: str, step: int, phase: str = "training") -> Beat:
    return Beat(rank, phase, step, 1000.0, host, os.getpid(), "a", 5, 2.5, 9)  # type: ignore[arg-type]


def a_run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tiny")
    write_json(run.run, {"config": {"train": {"steps": 40}}})
    for one in (beat(0, "host-a", 7), beat(1, "host-b", 6)):
        write_json(path_of(run.heartbeat, one.rank), dict(one.__dict__))
    rows = [
        {"step": step, "loss": 9.0 - step, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": 100.0 * step, "mfu": None,
         "memory_gib": 2.0, "step_s": float(step), "data_wait_s": 0.1, "rank_step_s": [1.0, 3.0], "time": 990.0 + step}
        for step in range(1, 8)
    ]  # fmt: skip
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 8, "lo')
    run.heldout.write_text('{"step": 0, "loss": 9.5}\n{"step": 5, "loss": 4.25}\n')
    (run.checkpoints / "step-00000005").mkdir(parents=True)
    (run.checkpoints / "step-00000005" / "MANIFEST.json").write_text("{}")
    (run.checkpoints / "step-00000006.1a.tmp").mkdir()
    (run.path / "attempts.jsonl").write_text('{"pod": "worker-0", "restarts": 2}\n{"pod": "worker-1", "restarts": 9}\n')
    return run


def test_the_pod_of_rank_0_tells_the_run_and_its_own_ranks(tmp_path: Path) -> None:
    told = samples(Exposition(a_run(tmp_path)).text(Here("worker-0", "host-a", first=True, restarts=1)))
    assert {key: told[key] for key in [
        ("trainyard_step",), ("trainyard_steps_wanted",), ("trainyard_loss",), ("trainyard_heldout_loss",),
        ("trainyard_tokens_per_second",), ("trainyard_step_seconds", "0.5"), ("trainyard_step_seconds", "0.99"),
        ("trainyard_rank_step_seconds", "1"), ("trainyard_memory_bytes",), ("trainyard_checkpoint_step",),
        ("trainyard_restarts_total",), ("trainyard_rank_step", "0"), ("trainyard_step_timestamp_seconds",),
    ]} == {
        ("trainyard_step",): 7, ("trainyard_steps_wanted",): 40, ("trainyard_loss",): 2.0,
        ("trainyard_heldout_loss",): 4.25, ("trainyard_tokens_per_second",): 400.0,
        ("trainyard_step_seconds", "0.5"): 4.0, ("trainyard_step_seconds", "0.99"): 7.0,
        ("trainyard_rank_step_seconds", "1"): 3.0, ("trainyard_memory_bytes",): 2 * 2.0**30,
        ("trainyard_checkpoint_step",): 5, ("trainyard_restarts_total",): 1 + 2 + 1,
        ("trainyard_rank_step", "0"): 7, ("trainyard_step_timestamp_seconds",): 997.0,
    }  # fmt: skip
    assert {name for name, *_ in told} <= FAMILIES.keys()
    assert ("trainyard_mfu_ratio",) not in told, "an unknown MFU is not told"
    assert ("trainyard_rank_step", "1") not in told, "rank 1 is of another pod"
    assert [told["trainyard_phase", phase] for phase in PHASES] == [float(p == "training") for p in PHASES]


def test_another_pod_tells_only_its_own_ranks(tmp_path: Path) -> None:
    told = samples(Exposition(a_run(tmp_path)).text(Here("worker-1", "host-b", first=False)))
    assert {name for name, *_ in told} == {
        "trainyard_restarts_total", "trainyard_rank_step", "trainyard_rank_heartbeat_timestamp_seconds",
        "trainyard_rank_silent_seconds_max",
    }  # fmt: skip


def test_seconds_of_a_phase_never_shrink_over_attempts(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    changes = changes_of(run.heartbeat, 0)

    def change(at: float, phase: str, attempt: str) -> None:
        with changes.open("a") as file:
            file.write(json.dumps({"time": at, "phase": phase, "step": None, "attempt": attempt}) + "\n")

    shown = Exposition(run)
    change(900.0, "loading", "a")
    change(940.0, "training", "a")
    first = samples(shown.text(HERE))
    assert first["trainyard_phase_seconds_total", "loading"] == 40.0
    assert first["trainyard_phase_seconds_total", "training"] == 60.0, "up to the heartbeat at 1000"
    changes.open("a").write('{"time": "soon"}\nnonsense\n{"time": 1, "phase": "flying", "step": 1, "attempt": ""}\n')
    change(1100.0, "loading", "b")
    later = samples(shown.text(HERE))
    assert later["trainyard_phase_seconds_total", "training"] == 60.0, "what happened until 1100 is unknown"
    assert later["trainyard_phase_seconds_total", "loading"] >= 40.0
    assert samples(Exposition(run).text(HERE))["trainyard_phase_seconds_total", "loading"] >= 40.0


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").mkdir()
    path = changes_of(tmp_path / "heartbeat", 0)
    path.write_bytes(b"x" * 3_000_000)
    reader = Reader(path)
    for _ in range(4):
        assert list(reader.new()) == []
        assert len(reader._half) <= 4096
    with path.open("a") as file:
        file.write('\n{"time": 1, "phase": "loading", "step": null, "attempt": "a"}\n')
    assert [change.phase for change in reader.new()] == ["loading"], "what follows is read again"


def test_a_heartbeat_notes_each_change_of_its_phase(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, 0)
    heart.enter("loading")
    heart.enter("training", 3)
    heart.beat(4)
    with heart.during("saving"):
        pass
    lines = [json.loads(line) for line in changes_of(tmp_path, 0).read_text().splitlines()]
    expected = [("loading", None), ("training", 3), ("saving", 4), ("training", 4)]
    assert [(line["phase"], line["step"]) for line in lines] == expected


def test_a_script_without_a_configuration_tells_its_steps_and_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.metrics.write_text('{"step": 3, "steps": 9, "loss": "nan", "grad_norm": "inf"}\n')
    text = Exposition(run).text(HERE)
    told = samples(text)
    assert told[("trainyard_steps_wanted",)] == 9
    assert told[("trainyard_gradient_norm",)] == math.inf
    assert math.isnan(told[("trainyard_loss",)])
    assert ("trainyard_step",) not in samples(Exposition(run).text(Here("w-1", "host-b", first=False)))


@pytest.mark.parametrize("content", ["", "[1]", '{"step": "x"}', '{"step": 1e999}', '{"step": 1, "rank_step_s": [{}]}'])
def test_a_hostile_run_directory_gives_sound_text(tmp_path: Path, content: str) -> None:
    run = RunDir(tmp_path / 'a"b\nc')
    run.path.mkdir()
    for path in (run.run, run.metrics, run.heldout, run.path / "attempts.jsonl"):
        path.write_text(f"{content}\n")
    run.checkpoints.write_text("a file")
    assert ("trainyard_restarts_total",) in samples(Exposition(run).text(HERE))


@pytest.mark.parametrize("text", ["9464", ":9464", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:x"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="for example 10"):
        metrics_server.address({metrics_server.VARIABLE: text})


def get(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_process_1_serves_the_metrics_while_its_command_runs(tmp_path: Path) -> None:
    run, port = a_run(tmp_path), free_port()
    write_json(path_of(run.heartbeat, 0), {**beat(0, socket.gethostname(), 7).__dict__})
    environment = {
        "PATH": os.environ["PATH"], "TRAINYARD_RUN": str(run.path), "TRAINYARD_METRICS": f"127.0.0.1:{port}",
    }  # fmt: skip
    command = [sys.executable, "-m", "training.entrypoint", sys.executable, "-c", "input()"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                told = samples(get(port))
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert told[("trainyard_step",)] == 7
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/run.json")
    finally:
        _, printed = process.communicate(b"\n", timeout=180)
    assert process.returncode == 0, printed
    with pytest.raises(urllib.error.URLError):
        get(port)


def test_an_address_that_is_taken_does_not_end_the_run(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told: list[str] = []
        with metrics_server.served(("127.0.0.1", taken.getsockname()[1]), str, told.append):
            assert "no metrics at 127.0.0.1" in told[0]
