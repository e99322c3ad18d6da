"""A real Prometheus reads a real run; its own promtool tests the rules; a planted hang raises its alert."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.monitoring import build
from tests.parts.gomodule import CannotBuild, Progress
from tests.parts.ports import free_port
from tools.core import repo

RULES = repo.root() / "base/plugins/monitoring/rules.yaml"
Object = dict[str, Any]


@pytest.fixture(scope="session")
def programs(say: Progress) -> Path:
    try:
        return build.ensure(say)
    except CannotBuild as problem:
        pytest.skip(str(problem))


def groups() -> Object:
    """The rules as a file of Prometheus has them: what the operator makes of a PrometheusRule."""
    return {"groups": YAML(typ="safe", pure=True).load(RULES)["spec"]["groups"]}


def write(path: Path, value: Object) -> Path:
    """Write YAML, which JSON is."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


RUN = 'namespace="team-a",run="tiny"'


def training(minutes: int) -> list[Object]:
    """Series of a healthy run of two ranks, with a sample each minute."""
    return [
        {"series": f'trainyard_phase{{{RUN},phase="training"}}', "values": f"1x{minutes}"},
        {"series": f'trainyard_phase_seconds_total{{{RUN},phase="training"}}', "values": f"0+60x{minutes}"},
        {"series": f'trainyard_phase_seconds_total{{{RUN},phase="saving"}}', "values": f"0+1x{minutes}"},
        {"series": f"trainyard_loss{{{RUN}}}", "values": f"5-0.001x{minutes}"},
        {"series": f"trainyard_gradient_norm{{{RUN}}}", "values": f"1x{minutes}"},
        {"series": f"trainyard_checkpoint_timestamp_seconds{{{RUN}}}", "values": f"0+60x{minutes}"},
        {"series": f'trainyard_restarts_total{{{RUN},pod="w-0"}}', "values": f"0x{minutes}"},
        *({"series": f'trainyard_rank_step{{{RUN},rank="{rank}"}}', "values": f"0+9x{minutes}"} for rank in (0, 1)),
        *({"series": f'trainyard_rank_step_seconds{{{RUN},rank="{n}"}}', "values": f"1x{minutes}"} for n in range(4)),
    ]  # fmt: skip


# What replaces a healthy series, by the alert that it must raise, and when.
FAULTS: dict[str, tuple[int, dict[str, str]]] = {
    "TrainyardNoStep": (40, {"trainyard_rank_step{": "0+9x15 135x400"}),
    "TrainyardNotFinite": (40, {"trainyard_loss{": "5x30" + 20 * " NaN"}),
    "TrainyardSlowRank": (40, {f'trainyard_rank_step_seconds{{{RUN},rank="3"': "1.3x400"}),
    "TrainyardCheckpointOld": (200, {"trainyard_checkpoint_timestamp_seconds{": "60x400"}),
    "TrainyardRestarts": (60, {"trainyard_restarts_total{": "0x20 1+1x6 7x400"}),
    "TrainyardLowGoodput": (395, {f'trainyard_phase_seconds_total{{{RUN},phase="saving"': "0+30x400"}),
}


def alerts_at(minute: int, series: list[Object], wanted: list[str]) -> Object:
    """A test of promtool: exactly `wanted` fire at that minute."""
    names = [rule["alert"] for group in groups()["groups"] for rule in group["rules"] if "alert" in rule]
    assert set(names) == FAULTS.keys(), "each alert has a fault"
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in wanted]
    return {
        "interval": "1m", "input_series": series,
        "promql_expr_test": [{"expr": query, "eval_time": f"{minute}m", "exp_samples": expected}],
    }  # fmt: skip


def promtool(programs: Path, directory: Path, tests: list[Object]) -> subprocess.CompletedProcess[str]:
    write(directory / "rules.yaml", groups())
    file = write(directory / "tests.yaml", {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    command = [str(programs / "promtool"), "test", "rules", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_rules_are_sound(programs: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "rules.yaml", groups())
    done = subprocess.run([str(programs / "promtool"), "check", "rules", str(file)], capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 rules found" in done.stdout


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_for_its_fault_and_for_no_healthy_run(programs: Path, tmp_path: Path, alert: str) -> None:
    minute, faults = FAULTS[alert]
    series = training(400)
    faulty = [
        {**one, "values": values}
        for one in series
        for values in [next((new for name, new in faults.items() if one["series"].startswith(name)), one["values"])]
    ]
    assert faulty != series
    done = promtool(programs, tmp_path, [alerts_at(minute, series, []), alerts_at(minute, faulty, [alert])])
    assert done.returncode == 0, done.stdout + done.stderr
    control = promtool(programs, tmp_path, [alerts_at(minute, series, [alert])])
    assert control.returncode != 0, "the healthy run raises the alert too"


@pytest.fixture
def prometheus(programs: Path, tmp_path: Path) -> Iterator[Callable[[int], Callable[[str], list[Object]]]]:
    """A function that starts Prometheus for one target, with quicker rules, and returns its queries."""
    started: list[subprocess.Popen[bytes]] = []

    def start(target: int) -> Callable[[str], list[Object]]:
        quick = json.dumps(groups())
        for slow, fast in {
            "[10m]": "[10s]", "offset 10m": "offset 10s", '"for": "1m"': '"for": "1s"',
            '"interval": "30s"': '"interval": "1s"',
        }.items():  # fmt: skip
            assert slow in quick
            quick = quick.replace(slow, fast)
        (tmp_path / "rules.yaml").write_text(quick, encoding="utf-8")
        write(tmp_path / "prometheus.yaml", {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "trainyard", "static_configs": [
                {"targets": [f"127.0.0.1:{target}"], "labels": {"namespace": "team-a"}}]}],
        })  # fmt: skip
        port = free_port()
        command = [str(programs / "prometheus"), f"--config.file={tmp_path / 'prometheus.yaml'}",
                   f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
        log = (tmp_path / "prometheus.log").open("wb")
        started.append(subprocess.Popen(command, stdout=log, stderr=log))

        def ask(query: str) -> list[Object]:
            address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            try:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    found: list[Object] = json.load(answer)["data"]["result"]
            except OSError:
                assert started[-1].poll() is None, (tmp_path / "prometheus.log").read_text()
                return []
            return found

        return ask

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def until(found: Callable[[], list[Object]], seconds: float = 600.0) -> list[Object]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.5)
    raise AssertionError(f"nothing was found in {seconds:.0f} s")


SCRIPT = """
import os, time, trainyard
for step in range(1, 100_000):
    time.sleep(0.05)
    trainyard.report(step=step, loss=5 / step)
    if os.path.exists("hang"):
        time.sleep(3600)
"""


def test_a_hang_of_a_real_script_raises_its_alert(
    prometheus: Callable[[int], Callable[[str], list[Object]]], tmp_path: Path
) -> None:
    """A script under the agent is scraped while it trains; once it hangs, the alert names it."""
    agent, port = tmp_path / "agent.pyz", free_port()
    subprocess.run([sys.executable, "-m", "training.agent.build", str(agent)], cwd=repo.root(), check=True)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "TRAINYARD_RUN": str(tmp_path / "runs/tiny"),
        "TRAINYARD_METRICS": f"127.0.0.1:{port}", "JOB_NAME": "tiny",
    }  # fmt: skip
    with (tmp_path / "train.log").open("wb") as log:
        command = [sys.executable, str(agent), "--", sys.executable, "train.py"]
        trainer = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        ask = prometheus(port)
        (step,) = until(lambda: ask("trainyard_step > 20"))
        assert step["metric"]["run"] == "tiny"
        (phase,) = until(lambda: ask("trainyard_phase == 1"))
        assert phase["metric"]["phase"] == "training"
        until(lambda: ask("(trainyard:training offset 10s) == 1"))
        fired = 'max_over_time(ALERTS{alertname="TrainyardNoStep",alertstate="firing"}[1h])'
        assert ask(fired) == [], "the control: it trains"
        (tmp_path / "hang").touch()
        (alert,) = until(lambda: ask('ALERTS{alertname="TrainyardNoStep",alertstate="firing"}'))
        assert (alert["metric"]["namespace"], alert["metric"]["run"]) == ("team-a", "tiny")
        assert ask("trainyard_step") != []
    finally:
        trainer.send_signal(signal.SIGTERM)
        try:
            trainer.wait(30)
        except subprocess.TimeoutExpired:
            trainer.kill()
            trainer.wait(30)
