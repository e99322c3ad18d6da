"""Metrics from the logs of trainers; restarts, remaining time, and curves."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Yard
from tools.job.metrics import plot, series
from tools.job.metrics.series import Gap, Record, RunMetrics
from tools.job.snapshot import log_lines
from training.run import trainer_logs

# Each is copied from its trainer's documentation or source.
FSDP = """\
2024-06-12 00:08:25 I [train.py:102] Batch 979 Loss: 5.63272, Speed: 0.43 samples/sec, lr: 0.000091
2024-06-12 00:08:44 I [train.py:102] Batch 980 Loss: 5.63327, Speed: 0.43 samples/sec, lr: 0.000091
"""
BERT = """\
[0]:LOG Wed Dec 21 00:51:01 2022 - (0, 14) step_loss : 10.7011 learning_rate : 2.80e-06 throughput : 6449.36
[0]:LOG Wed Dec 21 00:51:06 2022 - (0, 15) step_loss : 10.6613 learning_rate : 3.00e-06 throughput : 6453.70
"""
TITAN = "[titan] 2026-02-24 19:46:17,508 - root - INFO - "
# Lines of trainers, from their sources and from published logs. Each log begins with the expected records as
# JSON; null is a value that must be missing.
TRAINERS = sorted((Path(__file__).parent / "trainers").glob("*.log"))
# Logs with control characters, and their expected records.
CONTROL: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a bar corrects itself": (
        "Epoch 0:  22%|x | 4/18 [00:17<01:02,  4.47s/it, loss=10.072, v_num=1]\r"
        "Epoch 0:  22%|x | 4/18 [00:17<01:02,  4.47s/it, loss=9.947, v_num=1]\r",
        [{"step": 4, "steps": None, "loss": 9.947, "epoch": 0.0}],
    ),
    "torchtitan in colours": (
        f"[rank0]:{TITAN}\x1b[31mstep: 22  \x1b[32mloss:  6.2250  grad_norm:  0.8319  "
        "\x1b[33mmemory:  1.41GiB(1.79%)  \x1b[34mtps: 193,831  \x1b[36mtflops: 18.36  mfu: 1.86%\x1b[39m",
        [{"step": 22, "loss": 6.225, "grad_norm": 0.8319, "memory_gib": 1.41, "tokens_per_s": 193831.0}],
    ),
    "transformers: a bar that never ends its line": (
        "\r  1%|          | 10/1000 [00:31<51:00,  3.09s/it]\r      \r{'loss': 2.5, 'epoch': 0.1}\n"
        "\r  1%|          | 10/1000 [00:31<51:00,  3.09s/it]\r  2%|2   | 20/1000 [01:02<50:00,  3.09s/it]\r"
        "{'loss': 2.4, 'epoch': 0.2}\n",
        [{"step": 10, "steps": 1000, "loss": 2.5}, {"step": 20, "loss": 2.4}],
    ),
    "words that look like metrics": (
        "resumed from step 100, lost 3 steps\nthe loss of rank 1 is not finite at step 88\n"
        "ValueError: step 3: loss 2 is bad\nTrainingArguments(max_steps=100, loss_scale=0)\n"
        "{'train': {'steps': 400, 'loss': 'mean'}}\nTest set: Average loss: 0.0512\n\x00\x01 step \x00 loss\n"
        "loss is a word\nstep by step\n{'eval': 1}\n{'loss': }\nBatch 1 Loss: , Speed:",
        [],
    ),
}


def from_text(text: str) -> list[Record]:
    """The records of a log."""
    return series.from_log(log_lines.read(text))


def expected_and_text(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The expected records at the top of a trainer's log, and the log."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [json.loads(line[2:]) for line in lines if line.startswith("# {")]
    return rows, "".join(lines[len(rows) :])


def check(text: str, expected: list[dict[str, Any]]) -> None:
    found = from_text(text)
    values = [{key: getattr(one, key) for key in row} for one, row in zip(found, expected, strict=False)]
    assert values == expected
    assert len(found) == len(expected), found


@pytest.mark.parametrize("path", TRAINERS, ids=lambda path: path.stem)
def test_logs_of_trainers(path: Path) -> None:
    expected, text = expected_and_text(path)
    assert expected
    check(text, expected)


@pytest.mark.parametrize("name", CONTROL)
def test_logs_with_control_characters(name: str) -> None:
    check(*CONTROL[name])


def test_a_loss_that_is_not_a_number_is_a_text_in_json() -> None:
    _, text = expected_and_text(TRAINERS[0].with_name("transformers.log"))
    assert [record.as_dict()["loss"] for record in from_text(text)] == [14.4461, "nan", 2.25]


def test_a_file_may_be_packed_cut_off_or_in_another_encoding(tmp_path: Path, yard: Yard) -> None:
    lines = "".join(f"step {n}/90  loss 3.0  lr 1e-3\r\n" + "x" * 200 + "\n" for n in range(90))
    packed = gzip.compress(random.Random(7).randbytes(4000) + b"\n" + lines.encode())
    (tmp_path / "whole.log.gz").write_bytes(packed)
    (tmp_path / "windows.log").write_text(lines, encoding="utf-16")
    for name in ("whole.log.gz", "windows.log"):
        assert len(yard.lines("metrics", str(tmp_path / name))) == 90
    (tmp_path / "cut.log.gz").write_bytes(packed[:-60])
    printed = yard("metrics", str(tmp_path / "cut.log.gz"))
    assert "cut off or damaged" in printed.err
    assert json.loads(printed.out.splitlines()[0])["step"] == 0


def test_the_names_of_numbers_that_are_not_finite_are_read() -> None:
    """Lightning's progress bar has `nan.0`."""
    bar = "Epoch 0: 10%|# | {n}/100 [00:01<00:09, 9.51it/s, train_loss={value}, lr=0.1]\n"
    values = ("nan.0", "inf.0", "-inf", "Infinity.00", "nan.", "2.25")
    text = "".join(bar.format(n=n, value=value) for n, value in enumerate(values))
    expected = ["nan", "inf", "-inf", "inf", "nan", 2.25]
    assert [record.as_dict()["loss"] for record in from_text(text)] == expected
    assert trainer_logs.number("nan.5") is None


@pytest.mark.parametrize("losses", [("loss",), ("mlm", "nsp")])
def test_the_trainers_own_line_is_read_back(losses: tuple[str, ...]) -> None:
    """The reader understands the lines of training/trainer/metrics.py."""
    from training.trainer.metrics import Metrics

    printer = object.__new__(Metrics)
    record = {"step": 7, "loss": 2.5, "mlm_loss": 2.0, "nsp_loss": 0.5, "lr": 1e-3, "memory_gib": 1.0}
    record |= {"tokens_per_s": 1234.0, "sequences_per_s": 9.5, "step_s": 1.0, "mfu": 0.1234}
    values = {
        "_recent": [record],
        "_steps": 400,
        "_peak": 1e12,
        "_peak_source": "measured",
        "_losses": losses,
    }
    for name, value in values.items():
        setattr(printer, name, value)
    (found,) = from_text(printer._line(record))
    assert (found.step, found.steps, found.loss, found.lr, found.tokens_per_s) == (7, 400, 2.5, 1e-3, 1234.0)
    assert found.mfu == pytest.approx(0.123)
    assert found.samples_per_s == (9.5 if len(losses) > 1 else None)


def test_an_incomplete_line_of_metrics_is_skipped() -> None:
    row = {"step": 3, "loss": 2.5, "lr": 1e-3, "tokens_per_s": 10.0, "mfu": None, "rank_step_s": [1.0, 2.0]}
    more = {"sequences_per_s": 4.5, "of_another_release": 1}
    (found,) = series.from_jsonl([json.dumps(row | more), '{"step": 4, "lo'])
    assert (found.step, found.loss, found.mfu, found.rank_step_s) == (3, 2.5, None, (1.0, 2.0))
    assert found.samples_per_s == 4.5
    far = json.dumps(row | {"step": 2**53})
    assert [one.step for one in series.from_jsonl([far, far.replace(str(2**53), "1e30")])] == [2**53], "not a count"


def test_a_restart_is_a_step_back_or_a_long_pause() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 4.0]
    records = [Record(1.0, step=step, time=at) for step, at in enumerate(times, 1)]
    assert series.gaps(records) == []
    back = [*records, Record(1.0, step=4, time=30.0), Record(1.0, step=5, time=31.0)]
    assert series.gaps(back) == [Gap(5, 4, 26.0)]
    pause = [*records, Record(1.0, step=6, time=90.0)]
    assert series.gaps(pause) == [Gap(5, 6, 86.0)]


def test_a_new_epoch_is_not_a_restart() -> None:
    numbered = [Record(1.0, step=n % 3, epoch=float(n // 3)) for n in range(6)]
    assert series.gaps(numbered) == []
    timed = [Record(1.0, step=n % 3, time=float(n)) for n in range(6)]
    assert series.gaps(timed) == []
    later = [*timed[:3], *(Record(1.0, step=n % 3, time=n + 40.0) for n in range(3))]
    assert series.gaps(later) == [Gap(2, 0, 38.0)], "control: after a pause it is one"
    assert series.since(later, 41.0) == later[4:]


def test_the_time_left_is_a_range_or_unknown() -> None:
    steady = [Record(1.0, step=step, steps=100, time=float(step)) for step in range(1, 21)]
    assert series.eta(steady) == (80.0, 80.0)
    uneven = [Record(1.0, step=step, steps=100, time=step + (step % 3)) for step in range(1, 21)]
    low, high = series.eta(uneven) or (0.0, 0.0)
    assert low < 80 < high
    assert series.eta(steady[:3]) is None, "two step times are not enough"
    assert series.eta([Record(1.0, step=1)]) is None
    assert series.eta([Record(1.0, time=1.0)] * 9) is None


def test_every_source_gives_json_lines_and_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yard: Yard) -> None:
    log, run = tmp_path / "bert.log", tmp_path / "run"
    log.write_text(BERT)
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 14, "loss": 1.5}\n{"step": 15, "loss": 1.25}\n')
    for source in (log, run, run / "metrics.jsonl", "-"):
        with log.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert [row["step"] for row in yard.lines("metrics", str(source))] == [14, 15], source
    head, first, _ = yard.out("metrics", str(log), "--csv").splitlines()
    assert dict(zip(head.split(","), first.split(","), strict=True))["samples_per_s"] == "6449.36"


@pytest.mark.parametrize("command", ["metrics", "plot"])
def test_a_log_without_metrics_has_no_answer(command: str, tmp_path: Path, yard: Yard) -> None:
    log = tmp_path / "empty.log"
    log.write_text("starting\n")
    assert "no line with metrics" in yard.err(command, str(log), code=3)


def falling(name: str, start: float, restarted: bool = False) -> RunMetrics:
    """A run whose loss falls by one each step."""
    records = [Record(start - step, step=step, time=float(step)) for step in range(1, 6)]
    more = [Record(start - 3, step=4, time=60.0)] if restarted else []
    return RunMetrics(name, records + more)


def test_text_plot_puts_each_run_and_restart_where_it_is() -> None:
    """Two losses from 9 to 3 over steps 1 to 5, in a frame of 7 rows: each value has its own row."""
    lines = plot.text([falling("one", 10.0), falling("two", 8.0, restarted=True)], "loss", 40, height=11)
    assert lines[0] == "loss (a one, b two; │ marks a restart)"
    body = [line.partition("┤")[2] or line.partition("│")[2] for line in lines[2:9]]
    marks = {(row, column): mark for row, line in enumerate(body) for column, mark in enumerate(line)}
    width = len(body[0]) - 1
    columns = [round(step / 4 * (width - 1)) for step in range(5)]
    assert "".join(marks[step, columns[step]] for step in range(5)) == "aaaaa"
    assert "".join(marks[step + 2, columns[step]] for step in range(5) if step != 3) == "bbbb"
    restart = {marks[row, columns[3]] for row in range(7)}
    assert restart <= {"│", "a", "b"}, "a line from top to bottom at step 4"
    assert [line[:1] for line in (lines[2], lines[5], lines[8])] == ["9", "6", "3"]
    assert lines[10].split() == ["1", "5"]
    assert not re.search(r"[\x1b\t]", "".join(lines)), "no colours"


@pytest.mark.parametrize(
    ("losses", "width"),
    [
        ([2.0], 78),
        ([2.0, 2.0], 5),
        ([-1.0, math.nan, -2.0], 20),
        ([-1e308, 1e308], 78),
        ([1e-12, 1e12, math.inf], 1),
    ],
)
def test_any_numbers_can_be_plotted_at_any_width(losses: list[float], width: int) -> None:
    """Both kinds of plot show each finite point and nothing else."""
    one = RunMetrics("\x1b[31mred\x00", [Record(loss, step=step) for step, loss in enumerate(losses, 1)])
    finite = [loss for loss in losses if math.isfinite(loss)]
    lines = plot.text([one], "loss", width)
    assert len(lines) == 18
    assert max(map(len, lines)) <= max(width, 40)
    assert sum(line.count("*") for line in lines[1:]) == len(finite)


def test_plot_of_a_log_and_of_a_run_directory(tmp_path: Path, yard: Yard) -> None:
    log = tmp_path / "fsdp.log"
    log.write_text(FSDP)
    (answer,) = yard.json("plot", str(log), "--key", "loss")["runs"]
    assert set(answer) == {"name", "curves", "restarts"}
    assert answer["curves"] == {"loss": [[979.0, 5.63272], [980.0, 5.63327]]}
    assert "5.63┤*" in yard.out("plot", str(log), "--key", "loss")
    rows = ({"step": step, "loss": 5.0 - step, "lr": step / 100, "grad_norm": 1.0} for step in (1, 2))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "heldout.jsonl").write_text('{"step": 0, "loss": 7.5}\n{"step": "1"}\n{"step": 2, "loss": "nan"}\n{"st')
    (answer,) = yard.json("plot", str(tmp_path))["runs"]
    assert set(answer["curves"]) == {"loss", "heldout", "lr", "grad_norm"}
    assert answer["curves"]["heldout"] == [[0.0, 7.5]]
    assert "held-out loss (" in yard.out("plot", str(tmp_path))
