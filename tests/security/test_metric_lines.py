"""Lines of metrics.jsonl and report.json that no trainer writes are skipped and counted."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from tools.cli import invoke
from tools.job import charts
from tools.job.metrics import plot, series
from tools.job.metrics.series import RunMetrics
from tools.local import report
from training.run.directory import RunDir
from training.trainer import metrics

GOOD = {"step": 6, "loss": 2.0, "tokens_per_s": 100.0, "mfu": 0.25, "step_s": 0.5}
KEYS = (*GOOD, "steps", "time", "lr", "epoch", "rank_step_s", "memory_gib", "data_wait_s")
VALUES = (
    *("1e999", "NaN", "-Infinity", "true", "null", '"x"', "[]", "{}", '["x"]', '{"a": 1}', "1e308", "-1"),
    *("[" * 5000, "1" + "0" * 400, "1" + "0" * 5000, f'"{"9" * 500}"', f'"{"a" * 1_000_000}"'),
)
LINES = [json.dumps({**GOOD, key: "@"}).replace('"@"', value) for key in KEYS for value in VALUES]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run whose metrics.jsonl has three lines of steps between all others."""
    good = json.dumps(GOOD)
    (tmp_path / "metrics.jsonl").write_text("\n".join([good, *LINES, good, *VALUES, good, ""]))
    return RunDir(tmp_path)


def test_the_final_report_of_the_trainer_skips_and_counts_them(run: RunDir) -> None:
    found = metrics.summary(run)
    assert (found["tokens_per_s"], found["mfu"]) == (100.0, 0.25)
    assert (found["skipped_lines"] or 0) > len(VALUES)
    (run.path / "metrics.jsonl").write_text(json.dumps(GOOD) + "\n")
    assert metrics.summary(run) == {"tokens_per_s": 100.0, "mfu": 0.25, "seconds": 0.5}, "control"
    (run.path / "metrics.jsonl").write_text("x\n")
    assert metrics.summary(run)["tokens_per_s"] is None
    run.heldout.write_text('[]\n{"step": 0, "loss": "x"}\n{"step": 0, "loss": 4.5}\n')
    assert metrics.heldout_loss(run, 0) == 4.5


def test_a_log_is_read_line_by_line_when_a_run_continues(run: RunDir) -> None:
    """That of 1,024 ranks has 1 GiB after 50,000 steps."""
    lines = [json.dumps({**GOOD, "step": step, "rank_step_s": [0.5] * 1000}) + "\n" for step in range(1, 801)]
    run.metrics.write_text("".join(lines) + "half a line")
    tracemalloc.start()
    try:
        metrics._drop_after(run.metrics, 700)
        assert metrics.summary(run)["seconds"] == 350.0
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert run.metrics.read_text() == "".join(lines[:700])


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_line_is_drawn_or_skipped(line: str) -> None:
    runs = [RunMetrics("a", series.from_jsonl([line, json.dumps(GOOD)]))]
    assert runs[0].records[-1].step == 6
    for key in plot.known(runs):
        plot.text(runs, key)
        charts.curves(key, [charts.Curve(run.name, list(run.curve(key))) for run in runs])


def test_commands_read_all_of_them(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("metrics",), ("metrics", "--json"), ("plot",)):
        assert invoke(["job", *words, str(run.metrics)]) == 0
        assert capsys.readouterr().out
    assert invoke(["report", str(run.path), "--to", str(run.path / "report.html")]) == 0


@pytest.mark.parametrize("key", [*report.NUMBERS, "step", "steps", "samples"])
def test_a_report_without_wrong_values_is_shown(key: str, tmp_path: Path) -> None:
    for value in VALUES:
        text = json.dumps({"step": 1, "steps": 2, "heldout_loss": 3.0, "ln_vocab": 4.0, key: "@"})
        (tmp_path / "report.json").write_text(text.replace('"@"', value))
        found = report.read(tmp_path)
        if found is not None:
            assert report._figures(found)
            assert all(sample["text"] for sample in found["samples"])
    (tmp_path / "report.json").write_text('{"step": 1, "steps": 2, "samples": [{"prompt": "a", "text": "b"}, 7]}')
    assert report.read(tmp_path) == {"step": 1, "steps": 2, "samples": [{"prompt": "a", "text": "b"}]}
