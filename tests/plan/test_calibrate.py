"""`yard plan calibrate`: constants from runs and logs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.plan.runs import H100, ROOT, run
from tools import cli
from tools.cells import matrix
from tools.core import UserError
from tools.plan import calibrate, speed
from tools.plan.layout import CARDS, FITTED
from tools.plan.outlook import Plan


@pytest.mark.parametrize("card", ["H100", "new"])
def test_calibration_explains_the_run_and_is_kept(card: str, tmp_path: Path) -> None:
    """The constants that are kept, and no others, make the planned step as long as the measured one."""
    machine = replace(H100, card=replace(CARDS["H100"], efficiency=card))
    plan = Plan(replace(run(), machine=machine))
    step_s = 1.2 * speed.Clock(plan.run.shape, plan.run.layout, H100, FITTED).seconds()
    constants = calibrate.fitted(plan, step_s)
    assert list(constants) == [f"matmul {card}", f"flash2 {card}"]
    calibrate.keep(tmp_path / "facts.yaml", plan, constants, "a run")
    kept = yaml.safe_load((tmp_path / "facts.yaml").read_text(encoding="utf-8"))
    again = speed.Clock(plan.run.shape, plan.run.layout, machine, {**FITTED, **kept["fitted"]}).seconds()
    assert again == pytest.approx(step_s, rel=0.01)
    assert kept["sources"] == dict.fromkeys(constants, "a run")


BAR = " {n}%|##        | {n}/60 [00:{n}<02:35,  2.10s/it]"
LOGS = {  # as a real run of transformers 5 prints them, and torchtitan
    "hf.log": BAR + "\r" + BAR + "{{'loss': '7.684', 'grad_norm': '1.759', 'epoch': '0.{n}'}}",
    "titan.log": "[titan] 2026-11-25 10:00:{n},000 - root - INFO - step: {n}  loss: 8.1  tps: 7,802  mfu: 38.5%",
}


@pytest.mark.parametrize(("name", "more"), [("hf.log", []), ("titan.log", ["--per-device"])])
def test_calibrates_from_the_logs_of_others(
    name: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("\n".join(LOGS[name].format(n=n) for n in range(10, 30)), encoding="utf-8")
    assert cli.invoke(["plan", "calibrate", str(tmp_path / name), "p5/llama-3-1-8b", "--dry-run", *more]) == 0
    assert "15 steps of 2.1 s" in capsys.readouterr().out


STEP = '{{"step": {n}, "loss": 8.0, "step_s": {step_s}}}'


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        (LOGS["titan.log"], [], "--per-device"),
        (STEP.replace("{step_s}", "-2"), [], "0 timed steps"),
        (STEP.replace("{step_s}", "Infinity"), [], "0 timed steps"),
        ("{{'loss': 7.684, 'learning_rate': 1e-4, 'epoch': 0.{n}}}", [], "0 timed steps"),
        (STEP.replace("{step_s}", "2.1"), ["--set", "device.precision=fp32"], "no formula was fitted for fp32"),
        (STEP.replace("{step_s}", "2.1"), ["--nodes", "1"], "its run is not the planned one: accumulation 1"),
    ],
)
def test_what_no_card_is_fitted_to(
    line: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = next(one for one in matrix.read(ROOT).cells if one.name == "p5/llama-3-1-8b")
    config = matrix.configuration(ROOT, cell).model_dump(mode="json")
    if "--nodes" in words:
        (tmp_path / "run.json").write_text(json.dumps({"config": config, "world_size": 32}), encoding="utf-8")
    lines = (line.format(n=n) for n in range(10, 30))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert cli.invoke(["plan", "calibrate", str(tmp_path), "p5/llama-3-1-8b", "--dry-run", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out


def test_a_cpus_peak_is_a_measurement_and_may_be_exceeded() -> None:
    """A CPU computes a fourth faster in its steps than when its peak was measured, at most; a card never does."""
    plan = calibrate.on_cpu(Plan(replace(run(), machine=None)), 80e9)
    machine = plan.run.machine
    assert machine is not None

    def at(share: float) -> float:
        layout = replace(plan.run.layout, attention="sdpa")
        return speed.Clock(plan.run.shape, layout, machine, {**FITTED, "matmul CPU": share}).seconds()

    one = replace(plan, run=replace(plan.run, layout=replace(plan.run.layout, attention="sdpa")))
    assert calibrate.fitted(one, at(1.2)) == {"matmul CPU": pytest.approx(1.2, rel=1e-3)}
    with pytest.raises(UserError, match="at 125% of its peak"):
        calibrate.fitted(one, at(1.3))
    card = Plan(replace(run(), machine=H100))
    most = speed.Clock(
        card.run.shape, card.run.layout, H100, {**FITTED, "matmul H100": 1.0, "flash2 H100": 1.0}
    ).seconds()
    with pytest.raises(UserError, match="at 100% of its peak"):
        calibrate.fitted(card, 0.9 * most)
