"""What `yard job submit` finds of a job in the cluster, and what it then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.job import submit
from tools.job.snapshot.live_job import LiveJob
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, Object
from tools.prove import proofs

POD = {"containers": [{"name": "pytorch", "image": "example.com/a:1", "command": ["torchrun", "train.py"]}]}
WORKER = {"replicas": 2, "template": {"spec": POD}}
JOB: Object = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "mine"},
    "spec": {"pytorchReplicaSpecs": {"Worker": WORKER}},
}
WRAPPER: Object = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {"name": "wrapped"},
    "spec": {"components": [{"template": JOB}]},
}


class Cluster(Kubectl):
    """A cluster with objects by resource."""

    def __init__(self, **objects: Object) -> None:
        super().__init__(None, "team")
        object.__setattr__(self, "objects", objects)

    def items(self, *arguments: str, names: Any = ()) -> list[dict[str, Any]]:
        found = self.objects.get(arguments[0].partition(".")[0])  # type: ignore[attr-defined]
        return [found] if found and found["metadata"]["name"] in names else []


def live(item: Object, phase: str = "") -> Object:
    return {**item, "metadata": {**item["metadata"], "uid": "u"}, "status": {"phase": phase}}


def test_the_wrapper_of_a_job_counts_as_the_job() -> None:
    """An AppWrapper that waits has no job yet: applying it again would change it in place."""
    wanted = Manifests("x", [WRAPPER])
    assert submit.existing(Cluster(), wanted) is None
    found = submit.existing(Cluster(appwrappers=live(WRAPPER, "Suspended")), wanted)
    assert found is not None
    assert (found.top["kind"], found.state, found.uids) == ("AppWrapper", "Suspended", ["u"])
    assert submit.existing(Cluster(appwrappers=live(WRAPPER)), Manifests("x", [JOB])) is None


@pytest.mark.parametrize(
    ("phase", "change", "options", "resumed"),
    [
        ("Suspended", "", {"resume": True}, True),
        ("Suspended", "+ x", {"replace": True}, False),
        ("Failed", "+ x", {"resume": True}, False),  # it is created again
        ("Suspended", "+ x", {"resume": True}, "the cell differs from the suspended job wrapped"),
        ("Running", "", {"resume": True}, "not suspended: there is nothing to resume"),
        ("Failed", "", {}, "a job wrapped exists already"),
    ],
)
def test_what_happens_to_a_job_of_the_same_name(
    phase: str, change: str, options: dict[str, bool], resumed: bool | str
) -> None:
    found = submit.existing(Cluster(appwrappers=live(WRAPPER, phase)), Manifests("x", [WRAPPER]))
    assert isinstance(found, LiveJob)
    words = {"resume": False, "replace": False} | options
    if isinstance(resumed, bool):
        assert submit.resumes(found, change, **words) is resumed
        return
    with pytest.raises(UserError, match=resumed):
        submit.resumes(found, change, **words)


def test_submit_says_whether_the_script_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(proofs, "default", lambda: tmp_path / "proofs")
    said: list[str] = []
    worker = {"replicas": 2, "template": {"spec": POD | {"restartPolicy": "Often"}}}
    refused = {**JOB, "spec": {"pytorchReplicaSpecs": {"Worker": worker}}}
    with pytest.raises(UserError, match="preflight fails"):
        submit.check(Cluster(), Manifests("x", [refused]), said.append)
    assert "script: not proven" in said
    verdict = Verdict(State.PASS, "", details={"claim": "trains", "number": 1})
    proofs.write(proofs.saved(proofs.program(["python", "train.py"], tmp_path), [verdict], {}, {}))
    with pytest.raises(UserError, match="preflight fails"):
        submit.check(Cluster(), Manifests("x", [refused]), said.append)
    assert said[-1].startswith("script: proven just now, 1 of 10, ")
