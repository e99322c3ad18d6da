"""`yard cluster run check`: what it refuses, each with a control that passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gitops.conftest import CLUSTER, Team
from tools.cli import invoke as yard
from tools.core import repo
from tools.core.verdict import State, Verdict
from tools.gitops import check, flux_objects, git_secrets, live
from tools.gitops.live import Live
from tools.kube.kubectl import Kubectl
from tools.preflight.evaluate import Evaluation
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import TrainJob

Edit = Callable[[Path, str, str], None]
OTHER = "b2" * 20


def edited(team: Team, edit: Edit) -> Path:
    """Return the file of a run that was changed after its commit."""
    path = team.started()
    edit(path, "interval: 5m", "interval: 6m")
    return path


@pytest.mark.parametrize("name", flux_objects.names(repo.root()))
def test_this_repository_s_own_clusters_pass(name: str, team: Team) -> None:
    root = repo.root()
    found = check.check(root, root / "clusters" / name, team.renderer, None)
    assert [one.summary for one in found if one.state is State.FAIL] == []
    assert [one.summary for one in git_secrets.check(root, team.renderer) if one.state is State.FAIL] == []


def test_a_clean_cluster_passes(team: Team) -> None:
    team.started()
    assert team.failed() == []
    assert {one.details["rule"] for one in team.check()} == {"run-file", "run-edited", "run-renders", "facts"}


def test_a_changed_run_is_refused_with_the_reason(team: Team, edit: Edit) -> None:
    path = team.started()
    later = team.commit("unrelated")
    run = check.run_files(team.root, team.cluster)[0]
    edit(path, run.commit, later)
    (found,) = team.failed()
    assert found.startswith("run-edited: clusters/cpu-demo/runs/cpu-llama-tiny-r1.yaml was changed")
    assert "its job is running or has run" in found
    assert "ConfigMaps" in found
    assert "GitRepository spec.ref" in found
    team.commit("and committed")
    assert len(team.failed()) == 1, "a commit does not allow the change"


def test_a_run_may_change_until_its_job_is_created(team: Team, edit: Edit) -> None:
    path = edited(team, edit)
    job = PyTorchJob({"metadata": {}, "status": {"conditions": [{"type": "Running", "status": "True"}]}})
    assert "its job is Running in the cluster" in team.failed({path.stem: Live(path.stem, {}, job)})[0]
    assert team.failed({path.stem: Live(path.stem, {"spec": {}}, None)}) == []


def test_a_list_reads_the_kinds_of_its_runs(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    run = team.make(features=("trainjob",)).run
    of_run = {"name": run.job, "labels": {live.MADE_BY: run.name}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    made = {"metadata": {"name": run.name, "labels": {live.MADE_BY: live.RUNS}}, "spec": run.spec, "status": ready}
    job = {"apiVersion": TrainJob.api, "kind": TrainJob.kind, "metadata": of_run, "spec": {}}
    answers = {live.KUSTOMIZATIONS: [made], TrainJob.resource: [job]}
    monkeypatch.setattr(Kubectl, "items", lambda _, kind: answers[kind])
    failed = [{"type": "Failed", "status": "True", "message": "a pod ended with 2"}]
    states: list[tuple[dict[str, object], str, str]] = [
        ({}, "New", ""),
        ({"jobsStatus": [{"name": "node", "active": 1}]}, "Running", ""),
        ({"conditions": failed}, "Failed", "a pod ended with 2"),
    ]
    for status, state, message in states:
        answers[TrainJob.resource] = [job | {"status": status}]
        for files in ([run], []):  # a run whose file is gone is read by what Flux has
            (found,) = live.look(None, "training", files)
            assert (found.flux, found.state, found.message) == ("Ready", state, message)


def test_suspending_and_comments_are_not_changes(team: Team, edit: Edit) -> None:
    path = team.started()
    edit(path, "  interval: 5m\n", "  interval: 5m\n  suspend: true\n")
    path.write_text("# learning rate as in the paper\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert team.failed() == []


def test_a_copy_of_a_run_is_refused(team: Team) -> None:
    """Renamed except for its suffix, the copy would take over the job of the first run."""
    path = team.started()
    text = path.read_text(encoding="utf-8").replace("cpu-llama-tiny-r1", "cpu-llama-tiny-r9")
    path.with_name("cpu-llama-tiny-r9.yaml").write_text(text, encoding="utf-8")
    assert any("two runs could share one job" in one for one in team.failed())


def test_files_that_only_flux_reads_are_refused(team: Team) -> None:
    path = team.started()
    text = path.read_text(encoding="utf-8")
    path.with_suffix(".yml").write_text(text, encoding="utf-8")
    assert any("cpu-llama-tiny-r1.yaml is the same run" in one for one in team.failed())
    path.with_suffix(".yml").unlink()
    below = path.parent / "old" / path.name
    below.parent.mkdir()
    path.rename(below)
    assert any("a run must be directly in runs/" in one for one in team.failed())


@pytest.mark.parametrize("where", ["upstream", "refs/remotes/origin/main", "refs/remotes/origin/HEAD"])
def test_a_pushed_run_that_is_amended_is_refused(team: Team, edit: Edit, where: str) -> None:
    """Known by the upstream branch, the branch of this name at origin, or origin's default branch."""
    path = team.started()
    if where == "upstream":
        team.git("clone", "--quiet", "--bare", ".", "../pushed")
        team.git("remote", "add", "origin", "../pushed")
        team.git("fetch", "--quiet", "origin")
        team.git("branch", "--quiet", "--set-upstream-to=origin/main")
    else:
        team.git("update-ref", where, "HEAD")
    if where.endswith("HEAD"):
        team.git("checkout", "--quiet", "--detach")
    assert team.failed() == []
    edit(path, "interval: 5m", "interval: 6m")
    team.git("commit", "--quiet", "--all", "--amend", "--no-edit")
    assert "run-edited" in team.failed()[0]
    if where != "upstream":
        team.git("update-ref", "-d", where)
        assert team.failed() == []


def test_a_run_added_by_a_merge_is_known(team: Team, edit: Edit) -> None:
    """A file that the merge commit itself adds, which git log skips by default."""
    team.git("checkout", "--quiet", "-b", "side")
    team.commit("side")
    team.git("checkout", "--quiet", "main")
    team.commit("main")
    team.git("merge", "--quiet", "--no-ff", "--no-commit", "side")
    edited(team, edit)
    assert "run-edited" in team.failed()[0]


def test_in_a_shallow_clone_changes_are_unknown(team: Team, edit: Edit) -> None:
    """As in continuous integration: the only commit seems to add every file."""
    edit(team.started(), "interval: 5m", "interval: 6m")
    team.commit("changed")
    team.git("clone", "--quiet", "--depth=1", f"file://{team.root}", "../shallow")
    shallow = replace(team, root=team.root.parent / "shallow")
    (found,) = [one for one in shallow.check() if one.details["rule"] == "run-edited"]
    assert (found.state, found.remedy) == (State.CANNOT_TELL, "git fetch --unshallow")


def test_a_name_that_comes_back_with_other_content_is_refused(team: Team, edit: Edit) -> None:
    path = team.started()
    text = path.read_text(encoding="utf-8")
    path.unlink()
    team.commit("removed")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert team.failed() == []
    edit(path, "interval: 5m", "interval: 6m")
    assert "run-edited" in team.failed()[0]


@pytest.mark.parametrize(
    ("old", "new_text", "message"),
    [
        ("  nameSuffix: -r1\n", "", "no spec.nameSuffix"),
        ("  nameSuffix: -r1\n", "  nameSuffix: -r2\n", "give cpu-llama-tiny-r2, but the run is"),
        (
            "kind: Kustomization\nmetadata:\n  name: cpu-llama-tiny-r1\n  namespace: training\n",
            "kind: Kustomization\nmetadata:\n  name: cpu-llama-tiny-r1\n  namespace: flux-system\n",
            "Kustomization is not in training",
        ),
        ("git.example.com", "git.attacker.example", "but that of flux-system is https://git.example.com"),
        ("  sparseCheckout:\n", "  include: [{repository: {name: x}}]\n  sparseCheckout:\n", "spec.include"),
        (
            "  sparseCheckout:\n",
            "  secretRef: {name: other}\n  sparseCheckout:\n",
            "spec.secretRef is",
        ),
        ("serviceAccountName: team-runner", "serviceAccountName: flux-platform", "is not team-runner"),
        ("  serviceAccountName: team-runner\n", "", "is not team-runner"),
        ("  path: ./overlays/cpu/llama-tiny\n", "  path: ./../../../victim\n", "which is not a cell"),
        ("  path: ./overlays/cpu/llama-tiny\n", "  path: /victim\n", "which is not a cell"),
        ("  path: ./overlays/cpu/llama-tiny\n", "  path: [a]\n", "spec.path of the Kustomization is not"),
        (
            "  prune: true\n",
            "  prune: true\n  components: [https://a.example/b]\n",
            "not in overlays/feature",
        ),
        (
            "  targetNamespace: training\n",
            "  targetNamespace: default\n",
            "the team's namespace is training",
        ),
        ("  prune: true\n", "  prune: true\n  kubeConfig: {secretRef: {name: x}}\n", "spec.kubeConfig"),
        ("  prune: true\n", "", "no spec.prune"),
        ("  targetNamespace: training\n", "", "no spec.targetNamespace"),
        ("  prune: true\n", "  prune: true\n  force: true\n", "spec.force"),
        ("  prune: true\n", "  prune: true\n  wait: true\n", "Ready would not mean"),
        ("  healthChecks:\n", "  healthCheckz:\n", "Ready would not mean"),
        ("      digest: sha256:", "      newTag: v1 # ", "no digest"),
        (
            "    kind: GitRepository\n    name: cpu-llama-tiny-r1\n",
            "    kind: GitRepository\n    name: flux-system\n",
            "pinned",
        ),
        ("    commit: ", "    branch: main  # ", "not a quoted commit of 40 digits"),
        ("ssa: IfNotPresent", "ssa: Merge", "would reach a running job"),
        (
            "        metadata:\n",
            "        spec: {runPolicy: {ttlSecondsAfterFinished: 60}}\n        metadata:\n",
            "ttlSecondsAfterFinished: Flux would run the job again",
        ),
    ],
)
def test_an_invalid_run_is_refused(team: Team, edit: Edit, old: str, new_text: str, message: str) -> None:
    edit(team.written(), old, new_text)
    assert any(message in found for found in team.failed())


def test_a_file_that_cannot_be_read_hides_no_other(team: Team) -> None:
    """An editor's lock is a link to nowhere."""
    path = team.started()
    there = len(team.check())
    other = path.with_name("cpu-llama-tiny-r2.yaml")
    contents: list[tuple[bytes | None, str]] = [
        *((b"a: [\n", "r2.yaml:2: not valid YAML"), (b"a: 1\n", "not a Kubernetes object")),
        *((b"\xff\xfe", "r2.yaml: not UTF-8 text"), (None, "r2.yaml: No such file")),
    ]
    for content, said in contents:
        other.unlink(missing_ok=True)
        if content is None:
            other.symlink_to("nowhere")
        else:
            other.write_bytes(content)
        (found,) = team.failed()
        assert found.startswith("run-file: clusters/cpu-demo/runs/cpu-llama-tiny-r2.yaml"), found
        assert said in found
        assert len(team.check()) == there + 1


def test_what_preflight_does_not_know_is_said(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.started()
    unknown = Verdict(State.CANNOT_TELL, "whether they meet", details={"rule": "wiring"})
    monkeypatch.setattr(check, "evaluate", lambda *_, **__: Evaluation("x", [unknown], {}, {}))
    (found,) = [one for one in team.check() if one.details["rule"] == "run-renders"]
    assert found.state is State.CANNOT_TELL
    assert found.summary.endswith("preflight finds no fault, and does not know: wiring: whether they meet")


def test_a_missing_commit_is_unknown(team: Team, edit: Edit) -> None:
    edit(team.written(), team.git("rev-parse", "HEAD"), OTHER)
    states = {one.details["rule"]: one.state for one in team.check()}
    assert states["run-renders"] is State.CANNOT_TELL


def test_an_unknown_fact_is_named_with_its_place(team: Team, edit: Edit) -> None:
    edit(team.root / "base/storage/fsx-dynamic/claim.yaml", "${FSX_CAPACITY_GIB}", "${FSX_CAPACITY_GB}")
    (found,) = team.failed()
    assert "base/storage/fsx-dynamic/claim.yaml:" in found
    assert "${FSX_CAPACITY_GB} is not set, did you mean FSX_CAPACITY_GIB?" in found


def test_the_command_s_exit_codes(
    team: Team, edit: Edit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repo, "root", lambda: team.root)
    path = team.started()
    assert yard(["cluster", "run", "check"]) == 0
    edit(path, "interval: 5m", "interval: 6m")
    capsys.readouterr()
    assert yard(["cluster", "run", "check", "--cluster", CLUSTER, "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in verdicts if one["verdict"] == "FAIL"] == ["run-edited"]
    assert yard(["cluster", "run", "check", "--live"]) == 2
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    assert yard(["cluster", "run", "list", "--cluster", CLUSTER]) in (2, 3)
