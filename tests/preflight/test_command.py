"""`yard preflight`: exit codes, output and JSON, without a connection."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools.cli import invoke
from tools.cli.preflight import command
from tools.kube import schemas
from tools.kube.schemas import Schemas
from tools.preflight.evaluate import rules

CORPUS = Path(__file__).parent / "corpus"
GOOD = str(CORPUS / "good" / "worker-only-c10d.yaml")
BAD = str(CORPUS / "bad" / "worker-only-no-elastic.yaml")
UNCLEAR = str(CORPUS / "good" / "command-substitution.yaml")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, known: Schemas) -> None:
    """Let no test open a connection."""

    def refuse(*_: Any) -> None:
        raise AssertionError("preflight opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-f", GOOD], 0),
        (["-f", BAD], 1),
        (["-f", UNCLEAR], 3),
        (["-f", UNCLEAR, "-f", BAD], 1),
        (["-f", GOOD, "-f", UNCLEAR], 3),
        (["overlays/cpu/llama-tiny"], 0),
        (["cpu/llama-tiny", "-f", GOOD], 0),
        ([], 2),
        (["cpu/llama-tin"], 2),
        (["--all", "cpu/llama-tiny"], 2),
        (["-f", "/nowhere.yaml"], 2),
        (["-f", __file__], 2),
    ],
)
def test_exit_codes(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", *arguments]) == code
    printed = capsys.readouterr()
    assert ("error: " in printed.err) == (code == 2)
    assert "Traceback" not in printed.out + printed.err


def test_failures_are_printed_with_evidence_reason_and_remedy(known: Schemas) -> None:
    done = CliRunner().invoke(command, ["-"], input=Path(BAD).read_text(encoding="utf-8"))
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[0].startswith("FAIL: standard input: 1 failed, 0 unknown, ")
    assert lines[1].startswith("  FAIL wiring: it hangs: 2 pods wait in 2 places: a job without Master")
    assert any("two-trainings-worker-1" in line for line in lines)
    assert any(line.strip().startswith("why: ") for line in lines)
    assert any(line.strip().startswith("fix: ") for line in lines)
    assert "PASS" not in "".join(lines)
    assert "  needs from the cluster: PersistentVolumeClaim fsx-team" in lines


def test_verbose_prints_what_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "-f", GOOD, "-v"]) == 0
    assert "  PASS wiring: mnist-cpu forms one world" in capsys.readouterr().out
    assert invoke(["preflight", "-f", str(CORPUS / "good" / "policies-add-up.yaml")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_warning_is_printed_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "-f", GOOD]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert (first.startswith("WARN: "), first.endswith(", 1 warning")) == (True, True)
    assert second.startswith(
        "  WARN network-policy: without a NetworkPolicy, every pod of the cluster reaches"
    )


def test_json_has_rule_object_path_value_and_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "-f", str(CORPUS / "bad" / "cpu-all-vcpus.yaml"), "--json"]) == 1
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["verdict"] == "FAIL"
    (verdict,) = [item for item in checked["verdicts"] if item["verdict"] == "FAIL"]
    assert (verdict["rule"], verdict["object"]) == ("cpu-fits", "PyTorchJob/qwen-g5")
    assert verdict["value"] == "32000m"
    assert "31850m" in verdict["summary"]
    assert verdict["evidence"]
    assert "31850m" in verdict["remedy"]
    assert {item["rule"] for item in checked["verdicts"]} <= set(rules())


@pytest.mark.parametrize("name", ["token-in-env", "aws-key-in-args", "token-in-config-map", "wandb-key"])
def test_a_secret_is_never_printed_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = CORPUS / "bad" / f"{name}.yaml"
    assert invoke(["preflight", "-f", str(path), "-v", "--json"]) == 1
    printed = capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    secrets = ("AbCdEfGhIj", "AKIAIOSFODNN7", "q7RtYuIoPa", "0123456789abcdef")
    (secret,) = [one for one in secrets if one in text]
    assert secret not in printed
    assert "characters)" in printed


def test_missing_schemas_are_reported_as_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Preflight does not download the schemas. It prints the command that does."""
    monkeypatch.setattr(schemas, "find", lambda root: None)
    assert invoke(["preflight", "-f", GOOD]) == 3
    printed = capsys.readouterr().out
    assert "CANNOT TELL schema: the schemas are not built on this machine" in printed
    assert "fix: python -m tools.kube.schemas" in printed


def test_every_rule_has_a_page_and_a_short_reason() -> None:
    """docs/generate.py writes them into docs/preflight.md."""
    for rule in rules().values():
        assert rule.page
        assert "\n" not in rule.reason
        assert len(rule.reason) < 120
