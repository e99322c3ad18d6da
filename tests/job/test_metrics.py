"""Metrics of our trainer and of others, from lines as they print them; gaps, the time left, and curves."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

import gzip
import json
import math
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Yard
from tools.job.metrics import plot, series
from tools.job.metrics.series import Gap, Record, RunMetrics
from tools.job.snapshot import log_lines

# Each is copied from its trainer's documentation or source.
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
    return series.from_log(log_lines.read(text))


def test_a_loss_that_is_not_a_number_is_kept() -> None:
    assert [record.as_dict()["loss"] for record in from_text(DICTS)] == [14.4461, "nan", 2.25], (
        "JSON has no NaN"
    )


# Lines of trainers, from their sources and from published logs: awsome-distributed-ai, aws-neuron-samples,
# torchtitan, Megatron-LM, GPT-NeoX, DeepSpeed, NeMo, Lightning, nanoGPT, llama-cookbook. None is a value that
# must be missing.
TITAN = "[titan] 2026-02-24 19:46:17,508 - root - INFO - "
TRAINERS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "FSDP has samples/s and no tokens/s": (
        FSDP,
        [
            {
                "step": 979,
                "loss": 5.63272,
                "samples_per_s": 0.43,
                "lr": 9.1e-5,
                "tokens_per_s": None,
                "time": 1718150905.0,
            },
            {"time": 1718150924.0},
        ],
    ),
    "BERT's step_loss and throughput": (
        BERT,
        [
            {"step": 14, "loss": 10.7011, "samples_per_s": 6449.36, "lr": 2.8e-6, "time": 1671583861.0},
            {"time": 1671583866.0},
        ],
    ),
    "dicts take their step from the bar": (
        DICTS,
        [
            {"loss": 14.4461, "lr": 3.6e-5, "grad_norm": 0.165, "step": 10, "steps": 1000},
            {"epoch": 0.1},
            {"loss": 2.25, "epoch": 0.2},
        ],
    ),
    "ours, with kubectl's time": (
        OURS,
        [
            {
                "step": 12,
                "steps": 400,
                "loss": 3.214,
                "tokens_per_s": 1234.0,
                "mfu": 0.125,
                "time": 1795262401.5,
            }
        ],
    ),
    "MNIST has an epoch and no step": (MNIST, [{"step": None, "loss": 0.134, "epoch": 1.01}]),
    "FSDP below srun": (
        "0: 2025-06-10 13:29:17 I [train.py:103] Batch 34 Loss: 7.96630, Speed: 5.80 samples/sec, lr: 0.000100",
        [{"step": 34, "loss": 7.9663, "samples_per_s": 5.8, "time": 1749562157.0, "tokens_per_s": None}],
    ),
    "FSDP of today, by kubetail and torchrun": (
        "[fsdp-pods-0] [default0]:2025-10-03 20:25:09,196 [INFO] __main__: Batch 1 Loss: 11.61360, "
        "Speed: 0.56 samples/sec, 4,587 tokens/s, MFU: 20.4%, lr: 0.000063",
        [{"step": 1, "samples_per_s": 0.56, "tokens_per_s": 4587.0, "mfu": 0.204, "time": 1759523109.196}],
    ),
    "FSDP's validation is no step": (
        "Batch 1 Loss: 5.6, Speed: 0.43 samples/sec, lr: 0.000091\nBatch 1 Validation loss: 5.70",
        [{"step": 1, "loss": 5.6}],
    ),
    "Neuron's Llama": (
        "LOG Tue Oct  3 08:05:11 2023 - (1, 9) step_loss : 9.25 learning_rate : 1.50e-06 throughput : 12.30 "
        "grad-norm : tensor(3.4375, device='xla:0')",
        [{"step": 9, "epoch": 1.0, "samples_per_s": 12.3, "grad_norm": 3.4375, "tokens_per_s": None}],
    ),
    "Neuron's bar": (
        "Epoch 0:   0%|          | 1/301501 [59:12<1573:03:24, 18.79s/it, v_num=5dd6, loss=9.0, "
        "reduced_train_loss=11.60, lr=3e-7, gradient_norm=13.8, global_step=2.000, consumed_samples=512.0, "
        "throughput=0.248, throughput_peak=0.248]",
        [{"step": 2, "steps": None, "loss": 11.6, "samples_per_s": 0.248, "grad_norm": 13.8}],
    ),
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
    "torchtitan on every rank": (
        "".join(
            f"{TITAN}step:  {n}  loss:  7.6  tps: 10,05{r}  mfu: 13.99%\n" for n in (4, 5) for r in range(4)
        )
        + f"{TITAN}validate step:  5  loss:  7.9\n",
        [{"step": 4, "mfu": 0.1399}, {"step": 5, "loss": 7.6}],
    ),
    "Megatron": (
        " [2024-04-06 02:59:36] iteration       43/     100 | consumed samples:         5504 | elapsed time per "
        "iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | learning rate: 8.600000E-06 | global "
        "batch size:   128 | lm loss: 1.825991E+00 | load_balancing_loss: 1.019746E+00 | loss scale: 1.0 | grad "
        "norm: 1.426 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        " validation loss at iteration 43 | lm loss value: 1.7E+00 | lm loss PPL: 5.9E+00 |",
        [{"step": 43, "steps": 100, "loss": 1.825991, "step_s": 5.4449, "lr": 8.6e-6, "samples_per_s": None}],
    ),
    "GPT-NeoX": (
        " samples/sec: 7.799 | iteration       34/   10000 | elapsed time per iteration (ms): 4103.1 | learning "
        "rate: 2.111E-06 | approx flops per GPU: 112.9TFLOPS | lm_loss: 1.118665E+01 |",
        [{"step": 34, "loss": 11.18665, "samples_per_s": 7.799, "step_s": 4.1031}],
    ),
    "DeepSpeed says a step in two lines, and no loss": (
        "[2023-07-25 21:03:21,037] [INFO] [logging.py:96:log_dist] [Rank 0] step=35, skipped=0, lr=[2e-06, 2e-06]\n"
        "[2023-07-25 21:03:21,492] [INFO] [timer.py:215:stop] epoch=0/micro_step=35/global_step=35, "
        "RunningAvgSamplesPerSec=7.86, CurrSamplesPerSec=8.01, MemAllocated=59.65GB",
        [{"step": 35, "loss": None, "lr": 2e-6, "samples_per_s": 8.01}],
    ),
    "NeMo": (
        "Training epoch 0, iteration 9/99 | lr: 2.999e-06 | global_batch_size: 512 | global_step: 9 | "
        "reduced_train_loss: 10.9 | train_step_timing in s: 12.4 | consumed_samples: 5120",
        [{"step": 9, "loss": 10.9, "step_s": 12.4, "samples_per_s": None}],
    ),
    "nanoGPT": (
        "step 250: train loss 2.4, val loss 2.5\niter 250: loss 2.41, time 120.10ms, mfu 4.00%",
        [{"step": 250, "loss": 2.41, "step_s": 0.1201, "mfu": 0.04}],
    ),
    "the length of an epoch is not that of the run": (
        "Training Epoch: 1/3, step 10/50 completed (loss: 1.2345):  20%|x | 10/50 [00:31<02:00,  3.09s/it]",
        [{"step": 10, "steps": None, "loss": 1.2345}],
    ),
    "Kubeflow's MNIST": ("Train Epoch: 1 [640/64000 (1%)]\tloss=2.1340", [{"loss": 2.134, "epoch": 0.01}]),
    "transformers: a bar that never ends its line": (
        "\r  1%|          | 10/1000 [00:31<51:00,  3.09s/it]\r      \r{'loss': 2.5, 'epoch': 0.1}\n"
        "\r  1%|          | 10/1000 [00:31<51:00,  3.09s/it]\r  2%|2   | 20/1000 [01:02<50:00,  3.09s/it]\r"
        "{'loss': 2.4, 'epoch': 0.2}\n",
        [{"step": 10, "steps": 1000, "loss": 2.5}, {"step": 20, "loss": 2.4}],
    ),
    "transformers: bars of other things say no step": (
        "Loading checkpoint shards: 100%|#####| 2/2 [00:05<00:00,  2.6s/it]\n"
        "Map (num_proc=4): 100%|####| 3668/3668 [00:05<00:00,  2.6s/it]\n{'loss': 2.5, 'epoch': 0.1}",
        [{"step": None, "steps": None, "loss": 2.5}],
    ),
    "transformers: nor an evaluation's, nor a bar that has not moved": (
        "  1%|          | 10/1000 [00:31<51:00,  3.09s/it]\n{'loss': 2.5, 'epoch': 0.1}\n"
        " 100%|##########| 25/25 [00:03<00:00,  8.2it/s]\n{'eval_loss': 2.4, 'epoch': 0.1}\n"
        "{'loss': 2.4, 'epoch': 0.2}\n{'train_runtime': 91.2, 'train_loss': 2.0, 'epoch': 1.0}",
        [{"step": 10}, {"step": None, "steps": None, "loss": 2.4}],
    ),
    "transformers over DeepSpeed": (
        "  8%|#   | 1999/24128 [1:52:09<20:27:23,  3.33s/it][2021-11-26 03:07:16,494] [INFO] [logging.py:69:"
        "log_dist] [Rank 0] step=2000, skipped=1995, lr=[0.001], mom=[0.0]\n{'loss': 0.5, 'epoch': 0.08}",
        [{"step": 2000, "steps": 24128, "loss": 0.5, "lr": 0.001}],
    ),
    "transformers: numbers of numpy and torch, and none": (
        "{'num_tokens': 9.0, 'loss': np.float64(2.5), 'grad_norm': tensor(0.25, device='cuda:0'), 'epoch': 0.1}\n"
        "{'loss': -inf, 'grad_norm': None, 'learning_rate': 1e-05, 'epoch': 0.5}",
        [{"loss": 2.5, "grad_norm": 0.25}, {"loss": -math.inf, "grad_norm": None, "lr": 1e-5}],
    ),
    "ranks that are not in step": (
        "\n".join(
            f"[rank{r}]: step: {n}  loss: 3.0" for r, n in ((0, 1), (0, 2), (1, 1), (0, 3), (1, 2), (1, 3))
        ),
        [{"step": 1}, {"step": 2}, {"step": 3}],
    ),
    "kubectl --prefix --timestamps": (
        "[pod/bert-test-worker-0/pytorch] 2026-11-21T12:00:01.5Z step  12/400  loss 3.2  lr 2.00e-03  9 tokens/s",
        [{"step": 12, "loss": 3.2, "time": 1795262401.5}],
    ),
    "half a number is none": ("step 1/4  loss 3.2  lr 1e-3\nstep 2/4  loss 3.", [{"step": 1}]),
    "loggers that write JSON": (
        '{"step": 3, "train_loss": 2.5, "learning_rate": 0.001}\n{"step": 3, "eval_loss": 2.4}\n'
        '{"asctime": "2026-11-21 12:00:01,500", "message": "Batch 4 Loss: 1.5, Speed: 0.5 samples/sec"}\n'
        '{"log": "step 5/9  loss 1.25\\n", "time": "2026-11-21T12:00:09Z"}\n[1]\n{"step": 6}\n{"step": 7, "lo',
        [
            {"step": 3, "loss": 2.5, "lr": 0.001},
            {"step": 4, "samples_per_s": 0.5, "time": 1795262401.5},
            {"step": 5, "steps": 9, "loss": 1.25, "time": 1795262409.0},
        ],
    ),
    "numbers as texts": ('{"step": "3", "loss": "2.5", "lr": "x"}', [{"step": 3, "loss": 2.5, "lr": None}]),
    "words that look like them": (
        "resumed from step 100, lost 3 steps\nthe loss of rank 1 is not finite at step 88\n"
        "ValueError: step 3: loss 2 is bad\nTrainingArguments(max_steps=100, loss_scale=0)\n"
        "{'train': {'steps': 400, 'loss': 'mean'}}\nTest set: Average loss: 0.0512\n\x00\x01 step \x00 loss\n",
        [],
    ),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_lines_of_trainers(name: str) -> None:
    text, expected = TRAINERS[name]
    found = from_text(text)
    assert [
        {key: getattr(one, key) for key in row} for one, row in zip(found, expected, strict=False)
    ] == expected
    assert len(found) == len(expected), found


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


def test_lines_without_metrics_give_nothing() -> None:
    assert from_text("loss is a word\nstep by step\n{'eval': 1}\n{'loss': }\nBatch 1 Loss: , Speed:") == []


@pytest.mark.parametrize("losses", [("loss",), ("mlm", "nsp")])
def test_the_trainers_own_line_is_read_back(losses: tuple[str, ...]) -> None:
    """What training/trainer/metrics.py prints of a step is what this reads."""
    from training.trainer.metrics import Metrics

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
    (found,) = series.from_jsonl([json.dumps(row | more), '{"step": 4, "lo'])
    assert (found.step, found.loss, found.mfu, found.rank_step_s) == (3, 2.5, None, (1.0, 2.0))
    assert found.samples_per_s == 4.5


def test_a_restart_is_a_step_back_or_a_long_pause() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 4.0]
    records = [Record(1.0, step=step, time=at) for step, at in enumerate(times, 1)]
    assert series.gaps(records) == []
    back = [*records, Record(1.0, step=4, time=30.0), Record(1.0, step=5, time=31.0)]
    assert series.gaps(back) == [Gap(5, 4, 26.0)]
    pause = [*records, Record(1.0, step=6, time=90.0)]
    assert series.gaps(pause) == [Gap(5, 6, 86.0)]


def test_an_epoch_that_begins_is_no_restart() -> None:
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
    assert series.eta(steady[:3]) is None, "two paces are no range"
    assert series.eta([Record(1.0, step=1)]) is None
    assert series.eta([Record(1.0, time=1.0)] * 9) is None


def test_every_source_gives_json_lines_and_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yard: Yard
) -> None:
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
    """A point each that is finite, in both kinds of plot, and no scale longer than its numbers."""
    one = RunMetrics("\x1b[31mred\x00", [Record(loss, step=step) for step, loss in enumerate(losses, 1)])
    finite = [loss for loss in losses if math.isfinite(loss)]
    lines = plot.text([one], "loss", width)
    assert len(lines) == 18
    assert max(map(len, lines)) <= max(width, 40)
    assert sum(line.count("*") for line in lines[1:]) == len(finite)
    tree = ElementTree.fromstring(plot.svg([one], ["loss"]))
    (line,) = tree.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(line.attrib["points"].split()) == len(finite)
    assert "nan" not in line.attrib["points"]
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}circle"))) == (len(finite) == 1)


def test_svg_is_xml_with_one_line_a_run(tmp_path: Path, yard: Yard) -> None:
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
    yard("plot", str(log), "--svg", str(tmp_path / "x.svg"))
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag == f"{space}svg"
    error = yard.err("plot", str(log), "--svg", str(tmp_path / "no/x.svg"), code=2)
    assert "no/x.svg: No such file or directory" in error
    (answer,) = yard.json("plot", str(log), "--key", "loss")["runs"]
    assert set(answer) == {"name", "curves", "restarts"}
    assert answer["curves"] == {"loss": [[979.0, 5.63272], [980.0, 5.63327]]}
    assert "5.63┤*" in yard.out("plot", str(log), "--key", "loss")
