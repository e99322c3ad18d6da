"""Every finding has a repair; its code compiles, and the packages have the names that it uses."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.parts import venv
from tests.prove import remedy_names
from tools.core import repo, tables

TABLE = "tools/prove/remedies.yaml"
PATH = repo.root() / TABLE
ROWS: dict[str, Any] = tables.load("prove/remedies.yaml")
FRAMEWORKS = ("torch", "ddp", "fsdp2", "transformers", "accelerate", "lightning")
HERE = ("any", *FRAMEWORKS[:-1])  # what the environment of the tests has
LOCK = Path(__file__).with_name("requirements.lock")


def test_every_finding_has_a_repair_in_each_framework_and_nothing_else_has() -> None:
    claims = tables.load("prove/claims.yaml")["claims"]
    assert list(ROWS) == [f"{claim}/{finding}" for claim, row in claims.items() for finding in row["findings"]]
    for key, row in ROWS.items():
        assert "any" in remedy_names.texts(row), key
        assert set(remedy_names.texts(row)) <= {"any", *FRAMEWORKS}, key


def test_each_repair_is_a_sentence_and_python() -> None:
    for key, row in ROWS.items():
        for framework, text in remedy_names.texts(row).items():
            sentence, _, code = text.partition("\n")
            assert sentence[:1].islower(), (key, framework)
            ast.parse(code, f"{key} {framework}")


@pytest.mark.long
def test_every_name_of_a_repair_exists() -> None:
    assert remedy_names.faults(PATH, list(HERE)) == []


@pytest.mark.long
def test_every_name_of_a_repair_for_lightning_exists() -> None:
    python = venv.python(LOCK)
    if python is None:
        pytest.skip("needs Lightning: python -m tests.parts.venv tests/prove/requirements.lock")
    command = [str(python), remedy_names.__file__, str(PATH), "lightning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize(
    ("code", "framework", "fault"),
    [
        ("optimiser.step()", "any", "name optimiser"),
        ("torch.nn.utils.clip_gradients(1)", "any", "attribute torch.nn.utils.clip_gradients"),
        ("sampler.set_pass(1)", "any", "attribute sampler.set_pass"),
        ("TrainingArguments(warmup_ratio=1)", "transformers", "argument warmup_ratio of TrainingArguments"),
        ("Accelerator(device='cpu')", "accelerate", "argument device of Accelerator"),
    ],
)
def test_control_a_name_that_does_not_exist_is_found(code: str, framework: str, fault: str) -> None:
    assert list(remedy_names.unknown(code, framework)) == [fault]
