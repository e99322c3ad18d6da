"""`yard job sync` without a cluster: what is copied, what is refused, and in which order pods are asked."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tools.cells import kustomize, locate
from tools.core import repo
from tools.core.errors import UserError
from tools.job import sync
from tools.job.pod_talk import PodTalk
from tools.job.snapshot.live_job import LiveJob
from tools.job.snapshot.pod import JobPod
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests
from tools.workload.pytorchjob import PyTorchJob

NEW = b"print('new')\n"
ACTIONS = ["digests", "stage", "place", "stop", "start", "state"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(NEW)


def test_python_files_below_the_working_directory_are_copied(here: Path) -> None:
    write(here, "train.py", "own/part.py", "own/deep/er.py", "notes.md")
    write(here, ".git/a.py", ".venv/b.py", "node_modules/c.py", "own/__pycache__/d.py", "env/e.py")
    (here / "env/pyvenv.cfg").touch()
    (here / "elsewhere").symlink_to("/usr/lib")
    assert sorted(sync.files_of(["."])) == ["own/deep/er.py", "own/part.py", "train.py"]
    assert sorted(sync.files_of(["own", "train.py", "own/part.py"])) == [
        "own/deep/er.py", "own/part.py", "train.py",
    ]  # fmt: skip
    assert sync.files_of([str(here / "train.py")]) == {"train.py": NEW}


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("..", b"", "..: is outside the working directory"),
        ("own/../../a.py", b"", "is outside the working directory"),
        ("/etc", b"", "/etc: is outside"),
        ("link.py", b"", "link.py: not a regular file"),
        ("gone.py", b"", "gone.py: not a regular file"),
        ("notes.md", b"", "notes.md: not a Python file or a directory"),
        ("empty", b"", "no Python file in empty"),
        ("bad.py", b"x = 1\ndef f(:\n", "bad.py:2: invalid syntax"),
        ("bad.py", b"a = '\xff'\n", "bad.py:1: (unicode error)"),
        ("bad.py", b"a = 1\0\n", "bad.py: "),
        ("large.py", b"#" * (sync.LARGEST + 1), "1,048,577 bytes; at most 1,048,576 are copied"),
    ],
)
def test_what_is_not_copied(here: Path, path: str, content: bytes, message: str) -> None:
    write(here, "train.py", "notes.md")
    (here / "empty").mkdir()
    (here / "link.py").symlink_to("train.py")
    if content:
        (here / path).write_bytes(content)
    with pytest.raises(UserError) as caught:
        sync.files_of([path])
    assert message in str(caught.value)


def test_no_more_files_than_are_needed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "a.py", "b.py", "c.py")
    monkeypatch.setattr(sync, "MOST_FILES", 2)
    with pytest.raises(UserError, match="more than 2 files"):
        sync.files_of(["."])


class Cluster:
    """Two pods that answer, and keep what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[tuple[str, str], Any] = {}  # in place of a pod's usual answer to an action


class Talk:
    """In place of `PodTalk`."""

    def __init__(self, cluster: Cluster, pod: str) -> None:
        self.cluster, self.pod = cluster, pod

    def ask(self, question: dict[str, Any]) -> Any:
        json.dumps(question)
        asked = (question["action"], self.pod)
        self.cluster.asked.append(asked)
        usual: dict[str, Any] = {
            "digests": {"digests": {}},
            "start": {"time": 100.0},
            "state": {"state": {"state": "started"}, "last": {"step": 7, "time": 101.0}},
        }
        return self.cluster.answers.get(asked, usual.get(question["action"], {}))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def run(cluster: Cluster, here: Path, seconds: float = 5.0) -> sync.Synced:
    write(here, "train.py")
    talks = [cast("PodTalk", Talk(cluster, name)) for name in ("a", "b")]
    return sync.Sync(talks, lambda _: None).run({"train.py": NEW}, seconds)


def actions(cluster: Cluster) -> list[str]:
    return list(dict.fromkeys(action for action, _ in cluster.asked))


def test_each_action_is_taken_in_all_pods_before_the_next(cluster: Cluster, here: Path) -> None:
    done = run(cluster, here)
    assert [action for action, _ in cluster.asked] == [one for one in ACTIONS for _ in "ab"]
    assert (done.step, done.changed, done.failed) == (7, ["train.py"], "")
    assert 0 <= done.seconds < time.time()


def test_equal_files_restart_nothing(cluster: Cluster, here: Path) -> None:
    digests = {"digests": {"train.py": hashlib.sha256(NEW).hexdigest()}}
    cluster.answers = {("digests", pod): digests for pod in "ab"}
    assert run(cluster, here).changed == []
    assert actions(cluster) == ["digests"]
    cluster.answers = {("digests", "a"): digests}
    assert run(cluster, here).changed == ["train.py"]


@pytest.mark.parametrize(
    ("action", "then", "message"),
    [
        ("digests", [], "b: no route: nothing was changed"),
        ("stage", ["discard"], "b: no route: nothing was changed"),
        ("place", [], "b: no route: the pods may have different code now"),
        ("stop", ["start"], "b: no route: the pods may have different code now"),
    ],
)
def test_all_pods_or_none(action: str, then: list[str], message: str, cluster: Cluster, here: Path) -> None:
    cluster.answers = {(action, "b"): "no route"}
    with pytest.raises(UserError) as caught:
        run(cluster, here)
    assert (caught.value.code, message in str(caught.value)) == (1, True)
    assert actions(cluster) == [*ACTIONS[: ACTIONS.index(action) + 1], *then]


@pytest.mark.parametrize(
    ("answer", "step", "failed"),
    [
        ({"state": {"state": "failed", "message": "error: a\x1b[31m"}}, None, "a: error: a"),
        ({"state": {"state": "started"}, "last": {"step": 3, "time": 99.0}}, None, ""),
        ({"state": [], "last": {"step": "3", "time": 999.0}}, None, ""),
        ({"state": None, "last": {"step": 3, "time": {}}}, None, ""),
    ],
)
def test_only_a_step_after_the_start_counts(
    answer: Any, step: int | None, failed: str, cluster: Cluster, here: Path
) -> None:
    cluster.answers = {("state", "a"): answer, ("state", "b"): {}}
    done = run(cluster, here, 0.1)
    assert done.step == step
    assert done.failed.startswith(failed)
    assert bool(done.failed) == bool(failed)


KUBECTL = """\
#!{python}
import sys
assert sys.argv[1:6] == ["exec", "--container=pytorch", "--stdin", "mine-worker-0", "--"], sys.argv
line = sys.stdin.readline()
{does}
"""


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("print(line, end='')", {"action": "state"}),
        ('print(\'{"error": "full"}\')', "full"),
        ("print('not JSON')", "the answer is not JSON"),
        ("print('[' * 9000)", "the answer is not JSON"),
        ("print('[]')", "the answer is not an object"),
        ("print('x' * (5 << 20))", "no answer within"),
        ("sys.exit('error: container not found')", "kubectl exec: container not found"),
    ],
)
def test_what_a_pod_answers_is_data(does: str, message: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = here / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL.format(python=sys.executable, does=does))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    pod = JobPod({"metadata": {"name": "mine-worker-0"}, "spec": {"containers": [{"name": "pytorch"}]}})
    with sync.talking(Kubectl(), [pod]) as (talk,):
        answer = talk.ask({"action": "state"})
    assert answer == message if isinstance(message, dict) else message in answer


def test_a_cell_is_prepared_for_development() -> None:
    if kustomize.find(repo.root()) is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    manifests = locate.rendered("cpu/llama-tiny")
    sync.prepare(manifests)
    job = manifests.job()
    assert job["metadata"]["annotations"][sync.ANNOTATION] == "true"
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {"name": "TRAINYARD_CODE", "value": "/trainyard-code"} in container["env"]
    assert {"name": "trainyard-code", "mountPath": "/trainyard-code"} in container["volumeMounts"]
    assert {"name": "trainyard-code", "emptyDir": {"sizeLimit": "256Mi"}} in spec["volumes"]


def job_of(annotations: dict[str, str]) -> LiveJob:
    container = {"name": "pytorch", "image": "a/b:1", "command": ["torchrun", "train.py"]}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    item = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": "mine", "annotations": annotations},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }  # fmt: skip
    return LiveJob(PyTorchJob(item))


def test_a_job_without_the_agent_is_not_prepared() -> None:
    item = job_of({}).workload.item
    with pytest.raises(UserError, match="process 1 is not the agent"):
        sync.prepare(Manifests("job.yaml", [item]))


def status(phase: str) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {}} if phase == "Running" else {"waiting": {}}
    return {"phase": phase, "containerStatuses": [{"name": "pytorch", "state": state}]}


@pytest.mark.parametrize(
    ("annotations", "phases", "message", "code"),
    [
        ({}, ["Running"] * 2, "mine was not submitted for development", 2),
        ({sync.ANNOTATION: "yes"}, ["Running"] * 2, "mine was not submitted for development", 2),
        (
            {sync.ANNOTATION: "true"},
            ["Running", "Pending"],
            "mine-worker-1 does not run (Pending); nothing",
            1,
        ),
        ({sync.ANNOTATION: "true"}, ["Running"], "mine has 1 of 2 pods; nothing", 1),
    ],
)
def test_jobs_whose_code_stays(
    annotations: dict[str, str],
    phases: list[str],
    message: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = {"training.kubeflow.org/replica-type": "worker"}
    pods = [
        {"metadata": {"name": f"mine-worker-{index}", "labels": labels}, "status": status(phase)}
        for index, phase in enumerate(phases)
    ]
    monkeypatch.setattr(Kubectl, "items", lambda *_: pods)
    with pytest.raises(UserError) as caught:
        sync.pods_of(Kubectl(), job_of(annotations))
    assert (message in str(caught.value), caught.value.code) == (True, code)
