"""BERT's samples: each [MASK] is filled in from the checkpoint; other prompts are refused at the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training import inprocess
from tests.training.inprocess import Texts
from training import sample
from training.bert import TASK
from training.config import ConfigError

PROMPT = "sample.prompts=['q1x1q [MASK] abc [MASK].']"


def test_prompts_are_filled_in_the_report_and_afterwards(
    texts: Texts, data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = inprocess.run(texts, (PROMPT, "train.steps=3"), tmp_path, data_root, None, TASK)
    (shown,) = json.loads(done.report.read_text())["samples"]
    assert shown["prompt"] == "q1x1q [MASK] abc [MASK]."
    assert shown["text"].startswith("q1x1q ")
    assert " abc " in shown["text"]
    assert "[MASK]" not in shown["text"]
    capsys.readouterr()
    sample.main(["--run", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out) == [{"prompt": shown["prompt"], "text": shown["text"]}]
    with pytest.raises(SystemExit) as ended:
        sample.main(["--run", str(tmp_path), "--prompt", "nothing to fill in"])
    assert ended.value.code == 2
    assert "'nothing to fill in' has no [MASK]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("no blank", r"'no blank' has no \[MASK\]"), ("[MASK] " * 31, r"has 33 tokens, sequence_length is 32")],
)
def test_a_prompt_that_cannot_be_filled_stops_the_run_before_it_trains(
    prompt: str, said: str, texts: Texts, data_root: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        inprocess.run(texts, (f"sample.prompts=['{prompt}']",), tmp_path, data_root, None, TASK)
    assert not (tmp_path / "metrics.jsonl").exists()
