"""Secrets and ConfigMaps with the keys that pods read, asked of the cluster without reading a value."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld
from tests.job.test_submit import JOB
from tools.cli import invoke
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job import submit
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests
from tools.preflight import live
from tools.preflight.evaluate import evaluate


def secret(name: str, *keys: str) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": name}, "data": dict.fromkeys(keys, "dmFsdWU=")}


def env(name: str, key: str, optional: bool = False) -> dict[str, Any]:
    ref = {"name": name, "key": key, "optional": optional}
    return {"name": f"{name}-{key}".upper().replace("-", "_"), "valueFrom": {"secretKeyRef": ref}}


@pytest.fixture
def manifests() -> Manifests:
    job = copy.deepcopy(JOB)
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["imagePullSecrets"] = [{"name": "pull"}, {"name": "lost-pull"}]
    spec["serviceAccountName"] = "train"
    spec["volumes"] = [
        {"name": "keys", "secret": {"secretName": "signing", "items": [{"key": "key", "path": "key"}]}},
        {"name": "maps", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
    ]
    spec["containers"][0]["env"] = [
        env("hub", "token"), env("hub", "tokn"), env("gone", "token"), env("absent", "token", True),
        env("hub", "other", True),
    ]  # fmt: skip
    spec["containers"][0]["envFrom"] = [{"secretRef": {"name": "all"}}, {"configMapRef": {"name": "none"}}]
    return Manifests("job.yaml", [job])


@pytest.fixture
def home(world: NewWorld, cluster: Cluster) -> Path:
    home = cluster(world())
    objects = json.loads((home / "objects.json").read_text())
    settings = {"kind": "ConfigMap", "metadata": {"name": "settings"}}
    objects |= {
        "secrets": [secret("hub", "token"), secret("signing", "key"), secret("all"), secret("pull", "token")],
        "configmaps": [settings],
        "serviceaccounts": [{"kind": "ServiceAccount", "metadata": {"name": "train"}}],
    }
    (home / "objects.json").write_text(json.dumps(objects))
    return home


def test_each_reference_is_judged_with_its_key(manifests: Manifests, home: Path) -> None:
    found = live.check(Kubectl(None, "team"), manifests)
    by_state = {state: sorted(one.summary for one in found if one.state is state) for state in State}
    assert by_state[State.FAIL] == [
        "ConfigMap none is not in namespace team",
        "Secret gone is not in namespace team",
        "Secret hub has no key tokn",
    ]
    assert by_state[State.WARN] == [
        "Secret lost-pull is not in namespace team: images are pulled without it",
        "Secret pull has no key .dockerconfigjson: it is not a pull secret",
    ]
    assert by_state[State.CANNOT_TELL] == []
    assert by_state[State.PASS] == [
        "ConfigMap settings is there",
        "Secret absent is not in namespace team, and it is optional",
        "Secret all is there",
        "Secret hub has no key other, which is optional",
        "Secret hub is there and has the key token",
        "Secret signing is there and has the key key",
        "ServiceAccount train is there",
    ]
    assert [one.remedy for one in found if "tokn" in one.summary] == ["did you mean token?"]
    asked = (home / "asked.txt").read_text()
    assert "--output=json" not in asked, "kubectl prints names and keys only"
    assert asked.count("hub") == 1, "each object is asked for once"


def test_what_is_required_in_one_place_is_not_optional(manifests: Manifests, home: Path) -> None:
    """A key that another container may go without, a file that a mount picks, an init container, a driver's Secret."""
    spec = manifests.objects[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["volumes"] = [
        {"name": "hub", "secret": {"secretName": "hub"}},
        {"name": "own", "csi": {"driver": "s3.csi.aws.com", "nodePublishSecretRef": {"name": "driver"}}},
    ]
    spec["containers"][0] |= {
        "env": [env("hub", "maybe", True), env("hub", "maybe")],
        "volumeMounts": [{"name": "hub", "mountPath": path, "subPath": path[1:]} for path in ("/token", "/toke")],
    }
    spec["initContainers"] = [{"name": "first", "image": "x", "env": [env("signing", "lost")]}]
    found = {one.summary for one in live.check(Kubectl(None, "team"), manifests) if one.state is State.FAIL}
    assert found == {
        "Secret hub has no key maybe", "Secret hub has no key toke", "Secret signing has no key lost",
        "Secret driver is not in namespace team", "ConfigMap none is not in namespace team",
    }  # fmt: skip


def test_a_missing_right_is_named_and_submit_says_it(manifests: Manifests, home: Path) -> None:
    (home / "forbidden").write_text("secret")
    unknown = [one for one in live.check(Kubectl(None, "team"), manifests) if one.state is State.CANNOT_TELL]
    assert (
        "whether Secret hub exists with the key token is unknown: this user may not get secrets in namespace team"
        in [one.summary for one in unknown]
    )
    told: list[str] = []
    with pytest.raises(UserError, match="ConfigMap none is not in namespace team: nothing was applied"):
        submit._check_references(Kubectl(None, "team"), manifests, told.append)
    assert any(line.startswith("CANNOT TELL references-live: whether Secret all exists is unknown") for line in told)


@pytest.mark.parametrize(
    ("tag", "state"), [("v1-855e096", "WARN"), ("v1-04f9f13", "WARN"), ("v1-93c5489", "FAIL"), ("latest", "FAIL")]
)
def test_a_variable_that_is_set_twice_is_judged_by_the_clusters_operator(
    tag: str, state: str, manifests: Manifests, home: Path
) -> None:
    objects = json.loads((home / "objects.json").read_text())
    spec = {"containers": [{"image": f"docker.io/kubeflow/training-operator:{tag}"}]}
    objects["deployments"] = [{"metadata": {"name": "operator"}, "spec": {"template": {"spec": spec}}}]
    (home / "objects.json").write_text(json.dumps(objects))
    job = manifests.objects[0]
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker |= {"imagePullSecrets": [{"name": "pull"}] * 2}
    worker["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    release, right = live.operator(Kubectl(None, "team"), manifests)
    found = evaluate(manifests, operator=release, missing_right=right)
    (twice,) = [one for one in found.verdicts if one.details["rule"] == "env-twice"]
    assert twice.state.value == state
    assert not any("may not" in line for line in twice.evidence), "the Deployments were listed"
    schema = [one.summary for one in found.of(State.FAIL) if one.details["rule"] == "schema"]
    assert any("imagePullSecrets[1]" in one for one in schema) is (state == "FAIL")


def test_what_depends_on_an_unknown_operator_names_the_missing_right(manifests: Manifests, home: Path) -> None:
    """The control is a fault that does not depend on it, and a release that --cluster states."""
    (home / "forbidden").write_text("deployments")
    worker = manifests.objects[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker |= {"imagePullSecrets": [{"name": "pull"}] * 2, "dnsPolicy": 1}
    worker["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    release, right = live.operator(Kubectl(None, "team"), manifests)
    why = "the training operator's release is unknown: this user may not list deployments.apps in all namespaces"
    failed = evaluate(manifests, operator=release, missing_right=right).of(State.FAIL)
    paths = [str(one.details["path"]).rpartition(".")[2] for one in failed if why in one.evidence]
    assert sorted(paths) == ["env[1]", "imagePullSecrets[1]"]
    assert len(failed) > len(paths)
    known = evaluate(manifests, operator="1.9.4", missing_right=right).of(State.FAIL)
    assert not any(why in one.evidence for one in known)
    told: list[str] = []
    with pytest.raises(UserError, match="preflight fails"):
        submit.check(Kubectl(None, "team"), manifests, told.append)
    assert [line.split()[1] for line in told if line.endswith(f"(this user may not {right})")] == [
        "env-twice:",
        "schema:",
    ]


def test_preflight_live(manifests: Manifests, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(manifests.objects[0]))
    assert invoke(["preflight", "-f", str(path), "--live", "-n", "team"]) == 1
    out = capsys.readouterr().out
    assert "FAIL references-live: Secret hub has no key tokn" in out
    assert f"why: {live.REASON}" in out
    assert "dmFsdWU" not in out
    assert invoke(["preflight", "-f", str(path), "--live", "--fix"]) == 2
