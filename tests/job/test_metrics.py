"""Metrics of our trainer and of others, from lines as they print them; gaps, the time left, and curves."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tools.cli import run
from tools.job import loglines, metrics, plot
from tools.job.metrics import Gap, Record
from tools.job.plot import Run

# Each from its trainer's documentation or source, character for character.
FSDP = """\
2024-06-12 00:08:25 I [train.py:102] Batch 979 Loss: 5.63272, Speed: 0.43 samples/sec, lr: 0.000091
2024-06-12 00:08:44 I [train.py:102] Batch 980 Loss: 5.63327, Speed: 0.43 samples/sec, lr: 0.000091
"""
BERT = """\
[0]:LOG Wed Dec 21 00:51:01 2022 - (0, 14) step_loss : 10.7011 learning_rate : 2.80e-06 throughput : 6449.36
[0]:LOG Wed Dec 21 00:51:06 2022 - (0, 15) step_loss : 10.6613 learning_rate : 3.00e-06 throughput : 6453.70
"""
DICTS = """\
trainable params: 4,358,144 || all params: 1,781,446,144 || trainable%: 0.2446
  1%|          | 10/1000 [00:31<51:00,  3.09s/it]
{'loss': 14.4461, 'grad_norm': 0.165, 'learning_rate': 3.6e-05, 'epoch': 0.09}
{'loss': nan, 'grad_norm': nan, 'learning_rate': 3.5e-05, 'epoch': 0.1}
{'loss': '2.25', 'grad_norm': '0.5', 'learning_rate': '3e-05', 'epoch': '0.2'}
{'train_runtime': 91.2, 'train_samples_per_second': 10.9, 'epoch': 1.0}
"""
OURS = (
    "2026-11-21T12:00:01.5Z step  12/400  loss 3.214  lr 2.00e-03  1,234 tokens/s  "
    "MFU 12.5% of 1.2 TFLOP/s x  1.0 GiB"
)
MNIST = "Train Epoch: 2 [640/64000 (1%)]\tLoss: 0.134000"


def from_text(text: str) -> list[Record]:
    """The records of a log."""
    return metrics.from_log(loglines.read(text))


def test_fsdp_has_samples_per_second_and_no_tokens() -> None:
    first, second = from_text(FSDP)
    assert (first.step, first.loss, first.samples_per_s, first.lr) == (979, 5.63272, 0.43, 9.1e-05)
    assert first.tokens_per_s is None
    assert second.time is not None
    assert first.time is not None
    assert second.time - first.time == 19


def test_berts_step_loss_and_throughput() -> None:
    first, second = from_text(BERT)
    assert (first.step, first.loss, first.samples_per_s, first.lr) == (14, 10.7011, 6449.36, 2.8e-06)
    assert second.time is not None
    assert first.time is not None
    assert second.time - first.time == 5


def test_dicts_take_their_step_from_the_bar_and_a_loss_may_be_nan() -> None:
    first, second, third = from_text(DICTS)
    assert (first.loss, first.lr, first.grad_norm, first.step, first.steps) == (
        14.4461,
        3.6e-05,
        0.165,
        10,
        1000,
    )
    assert second.loss is not None
    assert math.isnan(second.loss)
    assert second.as_dict()["loss"] == "nan", "JSON has no NaN"
    assert (third.loss, third.epoch) == (2.25, 0.2)


def test_our_line_and_kubectls_time() -> None:
    (found,) = from_text(OURS)
    assert (found.step, found.steps, found.loss, found.tokens_per_s, found.mfu) == (
        12,
        400,
        3.214,
        1234.0,
        0.125,
    )
    assert found.time == 1795262401.5


def test_mnist_has_an_epoch_and_no_step() -> None:
    (found,) = from_text(MNIST)
    assert (found.step, found.loss, found.epoch) == (None, 0.134, 1.01)


def test_lines_without_metrics_give_nothing() -> None:
    assert from_text("loss is a word\nstep by step\n{'eval': 1}\n{'loss': }\nBatch 1 Loss: , Speed:") == []


@pytest.mark.parametrize("losses", [("loss",), ("mlm", "nsp")])
def test_the_trainers_own_line_is_read_back(losses: tuple[str, ...]) -> None:
    """What training/metrics.py prints of a step is what this reads."""
    from training.metrics import Metrics

    printer = object.__new__(Metrics)
    record = {"step": 7, "loss": 2.5, "mlm_loss": 2.0, "nsp_loss": 0.5, "lr": 1e-3, "memory_gib": 1.0}
    record |= {"tokens_per_s": 1234.0, "sequences_per_s": 9.5, "step_s": 1.0}
    values = {
        "_recent": [record],
        "_steps": 400,
        "_peak": 1e12,
        "_peak_source": "measured",
        "_losses": losses,
    }
    for name, value in {**values, "_flops_per_token": 1e8}.items():
        setattr(printer, name, value)
    (found,) = from_text(printer._line(record))
    assert (found.step, found.steps, found.loss, found.lr, found.tokens_per_s) == (7, 400, 2.5, 1e-3, 1234.0)
    assert found.mfu == pytest.approx(0.123)
    assert found.samples_per_s == (9.5 if len(losses) > 1 else None)


def test_metrics_of_the_run_are_read_and_half_a_line_is_not() -> None:
    row = {"step": 3, "loss": 2.5, "lr": 1e-3, "tokens_per_s": 10.0, "mfu": None, "rank_step_s": [1.0, 2.0]}
    more = {"sequences_per_s": 4.5, "of_another_release": 1}
    (found,) = metrics.from_jsonl([json.dumps(row | more), '{"step": 4, "lo'])
    assert (found.step, found.loss, found.mfu, found.rank_step_s) == (3, 2.5, None, (1.0, 2.0))
    assert found.samples_per_s == 4.5


def test_a_restart_is_a_step_back_or_a_long_pause() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 4.0]
    records = [Record(1.0, step=step, time=at) for step, at in enumerate(times, 1)]
    assert metrics.gaps(records) == []
    back = [*records, Record(1.0, step=4, time=30.0), Record(1.0, step=5, time=31.0)]
    assert metrics.gaps(back) == [Gap(5, 4, 26.0)]
    pause = [*records, Record(1.0, step=6, time=90.0)]
    assert metrics.gaps(pause) == [Gap(5, 6, 86.0)]


def test_the_time_left_is_a_range_or_unknown() -> None:
    steady = [Record(1.0, step=step, steps=100, time=float(step)) for step in range(1, 21)]
    left = metrics.eta(steady)
    assert left is not None
    assert (left.low, left.high) == (80.0, 80.0)
    uneven = [Record(1.0, step=step, steps=100, time=step + (step % 3)) for step in range(1, 21)]
    spread = metrics.eta(uneven)
    assert spread is not None
    assert spread.low < 80 < spread.high
    assert metrics.eta(steady[:3]) is None, "two paces are no range"
    assert metrics.eta([Record(1.0, step=1)]) is None
    assert metrics.eta([Record(1.0, time=1.0)] * 9) is None


def test_command_prints_json_lines_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "bert.log"
    log.write_text(BERT)
    assert run(["job", "metrics", str(log)]) == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["step"] for row in rows] == [14, 15]
    assert run(["job", "metrics", str(log), "--csv"]) == 0
    head, first, _ = capsys.readouterr().out.splitlines()
    assert dict(zip(head.split(","), first.split(","), strict=True))["samples_per_s"] == "6449.36"


def test_nothing_to_read_cannot_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "empty.log"
    log.write_text("starting\n")
    for command in ("metrics", "plot"):
        assert run(["job", command, str(log)]) == 3
        said = capsys.readouterr()
        assert "no line with metrics" in said.err
        assert said.out == ""


def falling(name: str, start: float, restarted: bool = False) -> Run:
    """A run whose loss falls by one each step."""
    records = [Record(start - step, step=step, time=float(step)) for step in range(1, 6)]
    more = [Record(start - 3, step=4, time=60.0)] if restarted else []
    return Run(name, records + more)


def test_text_plot_puts_each_run_and_restart_where_it_is() -> None:
    lines = plot.text([falling("one", 10.0), falling("two", 8.0, restarted=True)], "loss", width=40, height=7)
    body = [line.partition("|")[2] for line in lines[1:8]]
    assert "a one, b two; : is a restart" in lines[0]
    assert body[0].startswith("a"), "the highest value is at the top left"
    assert body[6].rstrip().endswith("b"), "the lowest at the bottom right"
    column = round(0.75 * (len(lines[8].partition("+")[2]) - 1))
    assert all(line.ljust(60)[column] != " " for line in body), "a colon from top to bottom at step 4"


def test_svg_is_xml_with_one_line_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [falling("a<b", 10.0), falling("two", 8.0, restarted=True)]
    tree = ElementTree.fromstring(plot.svg(runs, plot.known(runs)))
    space = "{http://www.w3.org/2000/svg}"
    lines = [one.attrib["points"].split() for one in tree.iter(f"{space}polyline")]
    assert [len(points) for points in lines] == [5, 6]
    heights = [float(point.partition(",")[2]) for point in lines[0]]
    assert heights == sorted(heights), "a falling loss falls on the page"
    assert len(list(tree.iter(f"{space}line"))) == 1
    assert "a<b" in [one.text for one in tree.iter(f"{space}text")]
    log = tmp_path / "fsdp.log"
    log.write_text(FSDP)
    assert run(["job", "plot", str(log), "--svg", str(tmp_path / "x.svg")]) == 0
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag == f"{space}svg"
    assert run(["job", "plot", str(log), "--svg", str(tmp_path / "no/x.svg")]) == 2
    assert "no/x.svg: No such file or directory" in capsys.readouterr().err
    assert run(["job", "plot", str(log), "--key", "loss", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert set(told) == {"name", "curves", "restarts"}
    assert len(told["curves"]["loss"]) > 1
    assert all(len(point) == 2 for point in told["curves"]["loss"])
