"""`yard preflight`: exit codes, output and JSON, without a connection."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.cli import invoke
from tools.kube import manifests
from tools.preflight.rule import rule as rules

CORPUS = Path(__file__).parent / "corpus"
GOOD = str(CORPUS / "good" / "worker-only-c10d.yaml")
BAD = str(CORPUS / "bad" / "worker-only-no-elastic.yaml")
UNCLEAR = str(CORPUS / "unclear" / "image-entry-point.yaml")
QUIET = str(CORPUS / "good" / "policies-add-up.yaml")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
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
        (["-f", GOOD, "--strict"], 1),
        (["-f", QUIET, "--strict"], 0),
        (["-f", UNCLEAR, "-f", GOOD, "--strict"], 3),
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


def test_failures_are_printed_with_evidence_reason_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(BAD).read_text(encoding="utf-8")))
    assert invoke(["preflight", "-"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "FAIL: standard input: will it train: FAIL (1 fault); good practice: WARN (1 warning); "
        "judged: 1 PyTorchJob; not judged: nothing"
    )
    assert lines[1].startswith("  FAIL wiring: it hangs: 2 pods wait in 2 places: a job without Master")
    assert any("two-trainings-worker-1" in line for line in lines)
    assert any(line.strip().startswith("why: ") for line in lines)
    assert any(line.strip().startswith("fix: ") for line in lines)
    assert "  PASS " not in "".join(lines)
    assert "  needs from the cluster: PersistentVolumeClaim fsx-team" in lines


@pytest.mark.parametrize(("options", "code", "said"), [
    ([], 1, "FAIL wiring: it hangs: 2 pods wait in 2 places"),
    (["--fix"], 2, "what a command prints has no file to repair"),
])  # fmt: skip
def test_a_shells_pipe_is_read(options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["cat", BAD], stdout=subprocess.PIPE) as printing:
        assert printing.stdout is not None
        assert invoke(["preflight", *options, "-f", f"/dev/fd/{printing.stdout.fileno()}"]) == code
        printing.terminate()
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("apiVersion: v1\nkind: List\nitems: 5\n", 2, "document 1: items of the List must be a list"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: ''}\n", 0, "no pods to judge"),
    ],
)
def test_odd_objects_are_no_tracebacks(
    text: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    assert invoke(["preflight", "-f", str(tmp_path / "a.yaml")]) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


def test_a_shells_pipe_that_is_too_large_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last character that is read has two bytes."""
    large = tmp_path / "large.yaml"
    large.write_text("#" + "\u00e9" * manifests.LARGEST, encoding="utf-8")
    with subprocess.Popen(["cat", large], stdout=subprocess.PIPE) as printing:
        assert printing.stdout is not None
        assert invoke(["preflight", "-f", f"/dev/fd/{printing.stdout.fileno()}"]) == 2
        printing.terminate()
    assert "is larger than 10 MiB, the most that is read" in capsys.readouterr().err


def test_verbose_prints_what_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "-f", GOOD, "-v"]) == 0
    assert "  PASS wiring: mnist-cpu forms one world" in capsys.readouterr().out
    assert invoke(["preflight", "-f", QUIET]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_warning_is_printed_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "-f", GOOD]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("WARN: ")
    assert "; good practice: WARN (1 warning); " in first
    assert second.startswith("  WARN network-policy: without a NetworkPolicy, every pod of the cluster reaches")


def test_json_has_rule_object_path_value_and_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "-f", str(CORPUS / "bad" / "cpu-all-vcpus.yaml"), "--json"]) == 1
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["verdict"] == "FAIL"
    assert checked["answers"] == {"will it train": "FAIL", "good practice": "WARN"}
    assert (checked["judged"], checked["not_judged"]) == ({"PyTorchJob": 1}, {})
    (verdict,) = [item for item in checked["verdicts"] if item["verdict"] == "FAIL"]
    assert (verdict["rule"], verdict["object"]) == ("cpu-fits", "PyTorchJob/qwen-g5")
    assert verdict["value"] == "32000m"
    assert "31850m" in verdict["summary"]
    assert verdict["evidence"]
    assert "31850m" in verdict["remedy"]
    assert {item["rule"] for item in checked["verdicts"]} <= set(rules.all)


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


def test_the_summary_says_what_was_not_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "monitor.yaml"
    path.write_text(MONITOR, encoding="utf-8")
    assert invoke(["preflight", "-f", str(path)]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert "will it train: no pods to judge" in line
    assert line.endswith("judged: nothing; not judged: 1 ServiceMonitor")


def test_an_example_of_the_operator_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A Master and a Worker that run a script with a default backend, as in the operator's first example."""
    path = tmp_path / "simple.yaml"
    path.write_text(SIMPLE, encoding="utf-8")
    assert invoke(["preflight", "-f", str(path)]) == 0
    assert "will it train: PASS; good practice: WARN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("[sleep, infinity]", "no training is seen"),
        ("[aws, s3, sync, 's3://a/b', /data]", "no training is seen"),
        ("[python3, /app/train.py]", "PASS"),
    ],
)
def test_only_a_job_that_may_train_passes(
    command: str, answer: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SINGLE.format(command=command), encoding="utf-8")
    assert invoke(["preflight", "-f", str(path)]) == 0
    assert f"will it train: {answer};" in capsys.readouterr().out
    assert invoke(["preflight", "-f", str(path), "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["answers"]["will it train"] == answer


SINGLE = """apiVersion: batch/v1
kind: Job
metadata: {{name: one}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {{name: main, image: 'registry.example.com/team/one:1.0', command: {command}}}
"""
MONITOR = """apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: trainer}
spec: {selector: {}, endpoints: []}
"""
REPLICA = """{
      replicas: 1, restartPolicy: OnFailure, template: {spec: {containers: [{
        name: pytorch, image: registry.example.com/team/mnist:v1-45c5727, imagePullPolicy: Always,
        command: [python3, /opt/mnist/mnist.py, --epochs=1]}]}}}"""
SIMPLE = f"""apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: simple, namespace: kubeflow}}
spec:
  pytorchReplicaSpecs:
    Master: {REPLICA}
    Worker: {REPLICA}
"""


def test_every_rule_has_a_page_and_a_short_reason() -> None:
    """docs/generate.py writes them into docs/preflight.md."""
    for one in rules.all.values():
        assert one.page
        assert "\n" not in one.why
        assert len(one.why) < 120


def test_no_verdict_prints_a_secret_that_another_masks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A token in a name, a label's value, an image, a script, variables, mounts and claims."""
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"
    path = tmp_path / "tokens.yaml"
    path.write_text(TOKENS.replace("TOKEN", token).replace("LOWER", token.lower()), encoding="utf-8")
    for options in ([], ["-v"], ["-v", "--json"]):
        assert invoke(["preflight", "-f", str(path), *options]) == 1
        said = capsys.readouterr()
        assert "secret-literal" in said.out
        assert token[4:].lower() not in (said.out + said.err).lower()


TOKENS = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: a-LOWER}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {topology.kubernetes.io/zones: TOKEN, kubernetes.io/arch: TOKEN}
          volumes: [{name: v, persistentVolumeClaim: {claimName: TOKEN}}]
          containers:
          - name: pytorch
            image: localhost:5000/TOKEN/x:1
            command: [bash, -c, "cd x; torchrun --nnodes=3 --key TOKEN train.py --save-dir /tmp/TOKEN; date"]
            env: [{name: A, value: "${X}TOKEN"}, {name: A, value: $(B)TOKEN}]
            securityContext: {readOnlyRootFilesystem: true, runAsNonRoot: true, runAsUser: 0}
            volumeMounts: [{name: v, mountPath: /TOKEN}, {name: TOKEN, mountPath: /tmp}]
"""


@pytest.mark.parametrize(("bounds", "code", "said"), [
    ("{min: 3, max: 7}", 1, "nodes.max is 7, but 5 nodes cannot train"),
    ("{min: 1, max: 2}", 0, "elasticPolicy has 2 to 2: the key alone changes no pods"),
])  # fmt: skip
def test_sizes_that_the_pods_or_the_batch_do_not_have(
    bounds: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["preflight", "cpu/llama-tiny", "--set", f"nodes={bounds}"]) == code
    assert said in capsys.readouterr().out
