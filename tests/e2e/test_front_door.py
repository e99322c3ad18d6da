"""`make train` and every other printed command, in a clone: killed, resumed, finished, sampled."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Clone
from tests.house import printed

TRAINS = re.compile(r"\b(make train|make finetune|make sample|yard run|yard sample)\b")


def _steps(clone: Clone) -> list[int]:
    path = clone.run_directory / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def _has_code(cache: Path) -> bool:
    """Return whether the compiler wrote a program; its directories come and go meanwhile."""
    return any(name.endswith(".cpp") for _, _, names in os.walk(cache) for name in names)


def _killed_when(clone: Clone, condition: Callable[[], object], what: str) -> None:
    """Run `make train` and send SIGKILL to yard when the condition holds. No process may survive."""
    process = clone.start("make train")
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, f"make train ended before {what}: {process.communicate()[0][-3000:]}"
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
    os.kill(_yard_of(process.pid), signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode != 0
    while clone.processes():
        assert time.monotonic() < end, f"left behind: {clone.processes()}"
        time.sleep(0.05)


def _yard_of(make: int) -> int:
    children = Path(f"/proc/{make}/task/{make}/children").read_text().split()
    return int(children[0])


def _compile_even_short_runs(clone: Clone) -> None:
    hardware = clone.root / "overlays/hardware/cpu/hardware.yaml"
    changed = hardware.read_text().replace("compile: auto", "compile: 'on'")
    assert "compile: 'on'" in changed
    hardware.write_text(changed)


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.timeout(900)
def test_make_train_survives_kills_and_finishes(clone: Clone) -> None:
    clone.shrink()
    _compile_even_short_runs(clone)
    cache = clone.root / "local" / "compiled" / clone.run_directory.name
    _killed_when(clone, lambda: _has_code(cache / "inductor"), "the compiler ran")
    assert (cache / "inductor.dirty").exists()  # the fault happened: killed in the middle of a compile
    _killed_when(clone, lambda: len(_steps(clone)) >= 12, "12 steps")
    assert list((clone.run_directory / "checkpoints").glob("step-*/MANIFEST.json"))
    output = clone.run("make train")
    resumed = re.search(r"continuing from step (\d+)", output)
    assert resumed, output[-3000:]
    assert int(resumed.group(1)) % 5 == 0
    assert _steps(clone) == list(range(1, 41))
    for part in (
        "held-out loss",
        "against unigrams",
        "tokens/s",
        "MFU",
        "checkpoint",
        "metrics",
        "make test",
    ):
        assert part in output
    assert output.count(" continues") == 3
    again = clone.run("make train")
    assert "40 of 40" in again
    assert _steps(clone) == list(range(1, 41))


def _chat(number: int) -> dict[str, list[dict[str, str]]]:
    """One example of a user's own, in the shape that docs/tutorials/fine-tune.md shows."""
    question, answer = f"What comes after {number}?", f"After {number} comes {number + 1}."
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_printed_command_runs_as_printed(clone: Clone) -> None:
    shutil.rmtree(clone.root / "exported", ignore_errors=True)  # of a failed attempt, which hides why it failed
    clone.run(".venv/bin/yard render cpu/llama-tiny > job.yaml")
    (clone.root / "chats.jsonl").write_text("".join(f"{json.dumps(_chat(n))}\n" for n in range(2000)))
    printed_text = {}
    for command in printed.run_by("tests/e2e/test_front_door.py"):
        if TRAINS.search(command):
            clone.shrink()
        else:
            clone.restore()
        printed_text[command] = clone.run(command)
    for part in (
        "10 of 10 steps",
        "held-out loss",
        "with the weights it started from",
        "do?' before",
        "do?' after",
    ):
        assert part in printed_text["make finetune"]
    for part in ("  mlm ", "  nsp ", " sequences/s", "ln(vocabulary) + ln 2"):
        assert part in printed_text[".venv/bin/yard run cpu/bert-tiny"]
    assert "are learned, in [[ ]]" in printed_text[".venv/bin/yard run cpu/llama-tiny-lora --show-example"]
    assert not clone.processes()
