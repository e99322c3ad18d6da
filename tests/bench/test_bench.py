"""The benchmark judges rounds as it says, drops steps under pressure, continues, and runs its card's rows on a CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench import gpu, harness, sides
from tests.bench.harness import FAIL, PASS, UNKNOWN, Row, judged
from tests.bench.live import ROOT, Live, SideError
from tests.bench.pressure import Meter
from tests.bench.sides import Bench, Side, figures

SPEED = Row("speed", "group", "tokens_per_s", "ours", over="peer", least={"fp32": 1.25, "bf16": 2.0}, losses=0.01)
TINY = (*harness.read_table(harness.HERE / "gpu.yaml").tiny, "train.steps=10", "data.heldout_fraction=0.3")


def _round(ours: float | None, peer: float | None = 100.0, loss: float = 5.0) -> dict[str, dict[str, float]]:
    sides = {"ours": ours, "peer": peer}
    losses = {"ours": loss, "peer": 5.0}
    return {name: {"loss": losses[name], **({"tokens_per_s": rate} if rate else {})} for name, rate in sides.items()}


@pytest.mark.parametrize(
    ("rounds", "kind", "verdict", "code"),
    [
        ([_round(130), _round(140), _round(150)], "fp32", PASS, 0),
        ([_round(130), _round(140), _round(150)], "bf16", FAIL, 1),
        ([_round(130, loss=5.2), _round(140, loss=5.2), _round(150, loss=5.2)], "fp32", FAIL, 1),
        ([_round(130), _round(None), _round(150, None)], "fp32", UNKNOWN, 3),
    ],
    ids=["above the bar", "below the bar", "other losses", "too few rounds"],
)
def test_a_row_is_judged_by_its_median_and_its_losses(
    rounds: list[dict[str, dict[str, float]]], kind: str, verdict: str, code: int
) -> None:
    result = judged(SPEED, rounds, kind)
    assert (result["verdict"], harness.exit_code([result])) == (verdict, code)
    assert result["rounds"] + result["dropped"] == 3
    if verdict == PASS:
        assert (result["median"], result["least"], result["most"]) == (1.4, 1.3, 1.5)


def test_an_upper_bar_is_one() -> None:
    row = Row("commands", "group", "seconds", "ours", minus="peer", most=0.3)
    rounds = [{"ours": {"seconds": 0.9}, "peer": {"seconds": 0.5}}] * 3
    result = judged(row, rounds, "fp32")
    assert result["verdict"] == FAIL
    assert "≤ 0.30 s" in harness.table_lines([result])[-1]


def test_steps_under_pressure_do_not_count() -> None:
    lines: list[dict[str, Any]] = [{"time": 10.0 + number, "tokens": 100, "loss": 3.0} for number in range(20)]
    found = figures(lines, lambda start, end: not 20 <= start < 25, started=0)
    assert (found["steps_kept"], found["steps_dropped"]) == (10, 5)
    assert found["tokens_per_s"] == 100
    assert "tokens_per_s" not in figures(lines, lambda start, end: start < 17, started=0)


@pytest.mark.parametrize(("share", "known"), [(0.7, True), (1.2, False)])
def test_a_share_above_one_does_not_count(share: float, known: bool) -> None:
    lines: list[dict[str, Any]] = [{"time": 10.0 + step, "tokens": 100, "mfu": share} for step in range(20)]
    found = figures(lines, lambda start, end: True, started=0)
    assert found["tokens_per_s"] == 100
    assert found.get("mfu") == (share if known else None)


def test_the_meter_sees_others_and_not_its_own() -> None:
    """This process's own work is not foreign; the same work looks foreign where its time is not subtracted."""

    def share(own: bool, monkeypatch: pytest.MonkeyPatch) -> float:
        with monkeypatch.context() as patch, Meter() as meter:
            if not own:
                patch.setattr("tests.bench.pressure._own", lambda: 0.0)
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                pass
        return sum(found for _, found in meter.samples) / len(meter.samples)

    with pytest.MonkeyPatch.context() as patch:
        assert share(False, patch) > share(True, patch)


def test_every_row_names_sides_of_its_group() -> None:
    table = harness.read_table(harness.HERE / "rows.yaml")
    for row in table.rows:
        named = {side for side in (row.of, row.over, row.minus) if side}
        assert named <= set(table.groups[row.group]["sides"]), row.name
    for name in table.sides:
        assert table.side(name).name == name
    card = harness.read_table(harness.HERE / "gpu.yaml")
    assert {side for row in card.rows for side in (row.of, row.over) if side} <= set(card.sides)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ours_and_a_peer_train_the_same_and_rounds_continue(tmp_path: Path) -> None:
    sides.write_corpus(tmp_path, characters=400_000)
    gpu.write_tokenizer(tmp_path / "tokenizer", 512)
    table = harness.read_table(harness.HERE / "rows.yaml")
    table.trained["tiny"]["set"] = [
        *table.trained["tiny"]["set"], *TINY, "train.steps=18", "data.tokenizer={place}/tokenizer"
    ]  # fmt: skip
    names = ["ours", "HF Trainer, defaults"]
    table.groups = {"pretrain": {"sides": names, "rounds": 1, "turn": 6}}
    table.rows = [row for row in table.rows if row.over == names[1]]
    bench, said = Bench(tmp_path, Path(sys.executable), gpu.Undisturbed()), list[str]()
    rounds = harness.Rounds(tmp_path / "rounds.jsonl")
    (result,) = harness.run(table, ["pretrain"], bench, rounds, "fp32", True, said.append)
    assert len(said) == 2, said
    assert result["losses_differ_by"] < 0.01
    harness.run(table, ["pretrain"], bench, rounds, "fp32", True, said.append)
    assert len(said) == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_rows_of_a_card_run_on_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    sides_of_rows = ["--tiny", "1B", "1B, HF Trainer", "8B LoRA"]
    assert gpu.main([*sides_of_rows, "no such"], tmp_path / "place") == 2
    code = gpu.main(sides_of_rows, tmp_path / "place")
    kept = (tmp_path / "place/sides.jsonl").read_text()
    assert gpu.main(sides_of_rows, tmp_path / "place") == code
    assert (tmp_path / "place/sides.jsonl").read_text() == kept
    answer = json.loads((tmp_path / "out/results.json").read_text())
    rows = {row["name"]: row for row in answer["rows"]}
    compared = rows["1B, tokens/s against HF Trainer's best flags"]
    assert compared["losses_differ_by"] < 0.01
    assert rows["8B LoRA, tokens/s"]["median"] > 0
    assert rows["8B with fp32 states, share of the card's peak"]["verdict"] == UNKNOWN
    assert code in (1, 3)
    assert "8B LoRA" in (tmp_path / "out/table.md").read_text()


def test_a_failed_side_says_how_it_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Path(sys.executable), gpu.Undisturbed())
    side = Side("broken", "command", command=(sys.executable, "-c", "print('no such thing'); raise SystemExit(4)"))
    with pytest.raises(SideError, match=r"broken: ended with 4: no such thing"):
        bench.measure(side)


STEPS = """
import json, sys, time
while True:
    print(json.dumps({"tokens": 1, "time": time.time()}), file=open(sys.argv[1], "a"))
    time.sleep(0.05)
"""


def test_a_side_makes_no_step_while_it_is_stopped(tmp_path: Path) -> None:
    lines = tmp_path / "metrics.jsonl"
    words = [[sys.executable, "-c", STEPS, str(lines)]]
    one = Live(Side("steps", "trainer"), tmp_path, tmp_path / "log", words, os.environ)
    try:
        one.train(3, time.monotonic() + 60)
        began = time.time()
        one.pause()
        time.sleep(0.2)  # a line that is being written
        before = one.marks()
        time.sleep(1)
        assert one.marks() == before
        one.resume()
        ended = time.time()
        one.train(3, time.monotonic() + 60)  # control: it continues
        assert one.marks() >= before + 3
    finally:
        one.end()
    assert one.paused(began, ended)
    assert not one.paused(began - 2, began - 1)
    found = figures(sides.read_lines(lines), lambda start, end: not one.paused(start, end), one.started, 0, 1)
    assert found["step_s"] < 0.9, "the step that contains the pause counts"


ENDED = """
import sys
from pathlib import Path
from tests.bench import gpu, sides

class Sleeps(sides.Bench):
    def _commands(self, *_):
        return [["sh", "-c", "echo $$; exec sleep 300"]]

    def _configuration(self, _):
        return self.place

if sys.argv[2] == "handled":
    sides.end_sides_at_sigterm()
Sleeps(Path(sys.argv[1]), Path(sys.executable), gpu.Undisturbed()).measure(sides.Side("sleeps", "ours"))
"""


@pytest.mark.parametrize(("how", "code", "left"), [("handled", 143, False), ("not handled", -signal.SIGTERM, True)])
def test_a_benchmark_that_is_ended_leaves_no_side(how: str, code: int, left: bool, tmp_path: Path) -> None:
    log = tmp_path / "logs/sleeps.log"
    with subprocess.Popen([sys.executable, "-c", ENDED, str(tmp_path), how], cwd=ROOT) as bench:
        end = time.monotonic() + 120
        while not (log.exists() and log.read_text().endswith("\n")):
            assert time.monotonic() < end
            time.sleep(0.1)
        side = psutil.Process(int(log.read_text()))
        try:
            bench.terminate()
            assert bench.wait(timeout=60) == code
            assert side.is_running() == left
        finally:
            if side.is_running():
                side.kill()


def test_a_row_that_is_not_measured_again_stays(tmp_path: Path) -> None:
    kept, now = tmp_path / "H200.json", {"commit": "new", "date": "today"}
    before = [{"name": "one", "median": 1.0}, {"name": "two", "median": 2.0, "commit": "older", "date": "then"}]
    kept.write_text(json.dumps({"commit": "old", "date": "yesterday", "rows": before}))
    results: list[dict[str, Any]] = [{"name": name} for name in ("one", "two", "three")]
    results.append({"name": "four", "median": 4.0})
    found = harness.with_earlier(results, now, kept)
    assert [(row.get("median"), row.get("commit")) for row in found] == [
        (1.0, "old"), (2.0, "older"), (None, None), (4.0, "new"),
    ]  # fmt: skip
    assert harness.with_earlier(results, now, tmp_path / "none.json")[:3] == results[:3]
