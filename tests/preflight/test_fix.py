"""`yard preflight --fix`: what it repairs, what stays, and that nothing is half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.cli import invoke
from tools.core.errors import UserError
from tools.kube.manifests import parse
from tools.preflight import fix
from tools.preflight.evaluate import evaluate

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted([*CORPUS.glob("bad/*.yaml"), *CORPUS.glob("warn/*.yaml")])
# Rules of the corpus with a repair. Another rule here is a decision: its remedy must leave no choice.
REPAIRED = {
    *("types", "enums", "backoff-limit", "restart-policy", "env-guidance", "efa-huge-pages", "grace-period"),
    *("shm", "old-labels", "ttl", "loopback", "devices-whole", "hyperpod-nodes", "api-version", "wiring"),
    *("read-only-root", "clean-pods", "host-path", "queue-owner"),
}
MINE = """\
# my first job
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
    name: mine      # the name
spec:
    pytorchReplicaSpecs:
        Worker:
            replicas: 2
            restartPolicy: onfailure
            template:
                spec:
                    containers:
                    - name: pytorch
                      image: example.com/a:v1
                      command: [torchrun, train.py]   # ours
                      env:
                      - {name: MODE, value: 0444}
                      - name: GLOO_SOCKET_IFNAME
                        value: lo   # wrong
                      resources:
                        limits:
                           nvidia.com/gpu: 8
---
# a second document
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data:
  a: |
    b
"""
FIXED = """\
# my first job
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
    name: mine      # the name
spec:
    pytorchReplicaSpecs:
        Worker:
            replicas: 2
            restartPolicy: OnFailure
            template:
                spec:
                    containers:
                    - name: pytorch
                      image: example.com/a:v1
                      command: [torchrun, train.py]   # ours
                      env:
                      - {name: MODE, value: "0444"}
                      resources:
                        limits:
                           nvidia.com/gpu: 8
                      volumeMounts:
                      - name: dshm
                        mountPath: "/dev/shm"
                    volumes:
                    - name: dshm
                      emptyDir:
                          medium: Memory
    elasticPolicy:
        rdzvBackend: c10d
        minReplicas: 2
        maxReplicas: 2
    runPolicy:
        cleanPodPolicy: Running
        backoffLimit: 6
---
# a second document
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data:
  a: |
    b
"""


def rules_of(found: fix.Fix) -> set[str]:
    return {str(one.details["rule"]) for one in found.repaired}


def test_each_repair_of_the_corpus_ends_its_finding_and_keeps_the_comments() -> None:
    seen: set[str] = set()
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        found = fix.plan(text, path.name)
        repaired = fix.repaired_text(text, path.name, found)
        left = {(one.details["rule"], one.summary) for one in fix.findings(evaluate(parse(repaired, "x")))}
        assert not left & {(one.details["rule"], one.summary) for one in found.repaired}, path.name
        comments = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
        assert [line.strip() for line in repaired.splitlines() if line.strip().startswith("#")] == comments
        assert (repaired == text) == (not found.repaired), path.name
        seen |= rules_of(found)
    assert seen == REPAIRED


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_keeps_its_layout_and_gets_what_was_shown(
    tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(MINE.replace("\n", end).encode())
    path.chmod(0o600)
    assert invoke(["preflight", "--fix", "-f", str(path)]) == 0
    assert path.read_bytes() == FIXED.replace("\n", end).encode()
    assert path.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr().out
    assert said.index("+    elasticPolicy:") < said.index("repaired wiring: ") < said.index("WARN: ")
    assert f"written: {path}" in said
    assert "WARN network-policy" in said, "what is left is said"
    assert invoke(["preflight", "--fix", "-f", str(path)]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert [one.name for one in tmp_path.iterdir()] == ["job.yaml"]


def test_a_file_in_json_without_a_last_newline_keeps_its_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "a/b:1.2"}]}}}
    spec = {"nprocPerNode": 8, "pytorchReplicaSpecs": {"Worker": worker}}
    item = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": spec}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(item, indent=4), encoding="utf-8")
    invoke(["preflight", "--fix", "-f", str(file)])
    shown, changed = capsys.readouterr().out, file.read_text(encoding="utf-8")
    assert '-        "nprocPerNode": 8,\n+        "nprocPerNode": "8",\n' in shown
    assert "\n\\ No newline at end of file\n" in shown
    assert json.loads(changed)["spec"]["nprocPerNode"] == "8"
    assert changed == json.dumps(json.loads(changed), indent=4)


def test_standard_input_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.yaml").write_text(MINE, encoding="utf-8")
    with (tmp_path / "in.yaml").open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert invoke(["preflight", "--fix", "-"]) == 0
    said = capsys.readouterr()
    assert said.out == FIXED
    assert "repaired wiring" in said.err
    assert "left: WARN network-policy" in said.err


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A kustomization with a prefix, above one with the job."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base/job.yaml").write_text(MINE, encoding="utf-8")
    (tmp_path / "base/kustomization.yaml").write_text("resources: [job.yaml]\n", encoding="utf-8")
    top = "# mine\nresources:\n  - base   # it\nnamePrefix: a-\n"
    (tmp_path / "kustomization.yaml").write_text(top, encoding="utf-8")
    return tmp_path


def test_a_directory_gets_a_patch(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "--fix", str(directory), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert {"wiring", "shm", "types"} <= {one["rule"] for one in said["repaired"]}
    assert {one["rule"] for one in said["verdicts"] if one["verdict"] != "PASS"} == {"network-policy"}
    top = (directory / "kustomization.yaml").read_text(encoding="utf-8")
    assert top.startswith("# mine\nresources:\n  - base   # it\n")
    assert "path: preflight-pytorchjob-a-mine.yaml" in top
    assert (directory / "base/job.yaml").read_text(encoding="utf-8") == MINE
    assert invoke(["preflight", str(directory)]) == 0

    (directory / "base/job.yaml").write_text(MINE.replace("lo ", "eth0 "), encoding="utf-8")
    before = {path: path.read_bytes() for path in directory.glob("*.yaml")}
    assert invoke(["preflight", "--fix", str(directory)]) == 0
    assert {path: path.read_bytes() for path in directory.glob("*.yaml")} == before, "nothing to repair"


def test_a_kustomization_may_have_an_empty_list_of_patches(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / "kustomization.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "patches:   # none yet\n", encoding="utf-8")
    assert invoke(["preflight", "--fix", str(directory)]) == 0
    assert "path: preflight-pytorchjob-a-mine.yaml" in path.read_text(encoding="utf-8")


def test_nothing_is_written_where_the_patches_do_not_render(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*.yaml")}
    monkeypatch.setattr(fix, "_plain_name", lambda *_: "another")
    assert invoke(["preflight", "--fix", str(directory)]) == 2
    assert "nothing was written: the patches do not render to the repaired objects" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in directory.rglob("*.yaml")} == before


def test_a_repair_that_causes_another_finding_is_not_made() -> None:
    """Huge pages for EFA, on a machine that has none."""
    limits = "\n                           ".join(["nvidia.com/gpu: 8", "vpc.amazonaws.com/efa: 1", "cpu: 4"])
    selector = "nodeSelector: {node.kubernetes.io/instance-type: g5.2xlarge}\n                    volumes:\n"
    text = FIXED.replace("nvidia.com/gpu: 8", limits).replace("volumes:\n", selector, 1)
    found = fix.plan(text, "x")
    assert "efa-huge-pages" in {one.details["rule"] for one in fix.findings(found.left)}
    assert found.repaired == []
    there = fix.plan(text.replace("g5.2xlarge", "p4d.24xlarge"), "x")
    assert rules_of(there) == {"efa-huge-pages"}  # the control


def test_an_alias_is_not_changed_in_two_places() -> None:
    """Removing the variable below the anchor would remove it from the other container too."""
    text = FIXED.replace('- {name: MODE, value: "0444"}', "- &one {name: GLOO_SOCKET_IFNAME, value: lo}")
    text = text.replace("volumes:\n", "initContainers:\n                    - name: a\n"
                        "                      image: example.com/a:v1\n"
                        "                      env: [*one]\n                    volumes:\n", 1)  # fmt: skip
    found = fix.plan(text, "x")
    assert rules_of(found) == {"loopback"}
    repaired = parse(fix.repaired_text(text, "x", found), "x").objects[0]
    spec = repaired["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["initContainers"][0]["env"] == [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}]
    assert spec["containers"][0]["env"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--all"], "name the manifests that it may change"),
        ([], "nothing to fix"),
        (["-", "--json"], "--fix of standard input prints the manifest"),
        (["-f", "/nowhere.yaml"], "/nowhere.yaml: No such file"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["preflight", "--fix", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_generated_directory_is_refused(directory: Path) -> None:
    top = directory / "kustomization.yaml"
    top.write_text("# Generated by `yard matrix sync`.\n" + top.read_text(encoding="utf-8"), encoding="utf-8")
    found = fix.plan(MINE, "x")
    with pytest.raises(UserError, match="is generated: a repair would be lost"):
        fix.in_kustomization(directory, found)


def test_empty_documents_and_those_without_repairs_stay() -> None:
    """As `helm template` prints them. A repair has the text of its own object."""
    job = MINE.partition("---\n")[0]
    other = job.replace("name: mine", "name: other").replace("0444", "0555").replace("example.com/a", "example.com/b")
    text = f"---\n# Source: chart/off.yaml\n---\n# Source: chart/a.yaml\n{job}---\n{other}---\n# end\n"
    found = fix.plan(text, "x")
    repaired = fix.repaired_text(text, "x", found)
    values = [one["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"][0]["value"]
              for one in parse(repaired, "x").objects]  # fmt: skip
    assert values == ["0444", "0555"]
    kept = MINE.partition("---\n")[2]
    assert [line for line in text.splitlines() if "Source" in line or "# end" in line] == [
        line for line in repaired.splitlines() if "Source" in line or "# end" in line
    ]
    odd = "apiVersion: v1\nkind:   ConfigMap\nmetadata: &m {name: odd}\ndata:\n      a:   'b'\n"
    mixed = f"{odd}---\n{job}---\n{kept}"
    assert fix.repaired_text(mixed, "x", fix.plan(mixed, "x")).startswith(f"{odd}---\n")
