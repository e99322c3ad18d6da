"""The Component brings the agent into jobs: of this repository, and others that know nothing of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.house import printed
from tools.cells import kustomize
from tools.core import repo
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.preflight.evaluate import evaluate

FEATURE = "../overlays/feature"
FOREIGN = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mine}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: example.com/team/mine:1
              command: ["python3", "/trainyard-agent/agent.pyz", "--", "torchrun", "train.py"]
            - {name: sidecar, image: "example.com/team/beside:1"}
"""


def rendered(root: Path, resource: str, *components: str, job: str = FOREIGN) -> list[dict[str, Any]]:
    """Render a resource with Components, in a directory beside the checkout's own."""
    found = kustomize.find(repo.root())
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    for name in ("base", "overlays"):
        shutil.copytree(repo.root() / name, root / name, dirs_exist_ok=True)
    mine = root / "mine"
    mine.mkdir(exist_ok=True)
    (mine / "job.yaml").write_text(job)
    text = "resources: [" + resource + "]\ncomponents: [" + ", ".join(components) + "]\n"
    (mine / "kustomization.yaml").write_text(text)
    return [one for one in YAML(typ="safe", pure=True).load_all(found.build(mine)) if one]


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (job,) = (one for one in objects if one["kind"] == "PyTorchJob")
    return job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def named(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


def test_a_job_from_elsewhere_keeps_its_image_and_gets_the_agent(tmp_path: Path) -> None:
    """Without merge keys, kustomize would replace its containers, and lose image and command."""
    plain = pod_of(rendered(tmp_path / "plain", "job.yaml"))
    pod = pod_of(rendered(tmp_path, "job.yaml", f"{FEATURE}/agent", f"{FEATURE}/agent/scratch"))
    own, before = named(pod["containers"]), named(plain["containers"])
    assert own["sidecar"] == before["sidecar"]
    assert {key: own["pytorch"][key] for key in ("image", "command")} == {
        "image": "example.com/team/mine:1",
        "command": ["python3", "/trainyard-agent/agent.pyz", "--", "torchrun", "train.py"],
    }
    assert own["pytorch"]["env"] == [{"name": "TRAINYARD_RUN", "value": "/trainyard-run"}]
    mounts = named(own["pytorch"]["volumeMounts"])
    assert mounts["trainyard-agent"] == {
        "name": "trainyard-agent", "mountPath": "/trainyard-agent", "readOnly": True
    }  # fmt: skip
    assert set(named(pod["volumes"])) == set(mounts) == {"trainyard-agent", "trainyard-run"}
    (init,) = pod["initContainers"]
    assert init["image"] == "localhost/trainyard/toolbox:0.1.0"
    assert init["command"][1] in (repo.root() / "images/toolbox/Dockerfile").read_text()
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert init["securityContext"]["runAsNonRoot"] is True


def test_the_printed_job_trains_and_keeps_its_run(tmp_path: Path) -> None:
    """Both blocks of the page, as they are printed."""
    job, kustomization = (text for kind, text in printed.fences(repo.root() / "docs/own-job.md") if kind == "yaml")
    objects = rendered(tmp_path, "job.yaml", f"{FEATURE}/agent", job=job)
    assert kustomization.partition("\n")[2] == (tmp_path / "mine/kustomization.yaml").read_text()
    found = evaluate(Manifests("mine", objects))
    assert found.of(State.FAIL) == []
    (container,) = pod_of(objects)["containers"]
    assert {"/trainyard-agent", "/shared/run"} == {one["mountPath"] for one in container["volumeMounts"]}


def test_a_cell_keeps_all_that_it_has(tmp_path: Path) -> None:
    cell = "../overlays/cpu/llama-tiny"
    plain = pod_of(rendered(tmp_path / "plain", cell))
    objects = rendered(tmp_path, cell, f"{FEATURE}/kueue", f"{FEATURE}/local-nvme", f"{FEATURE}/agent")
    pod = pod_of(objects)
    (before,), (after,) = plain["containers"], pod["containers"]
    assert all(one in after["volumeMounts"] for one in before["volumeMounts"])
    assert named(plain["volumes"]).items() <= named(pod["volumes"]).items()
    assert named(before["env"]).keys() <= named(after["env"]).keys()
    assert named(after["env"])["TRAINYARD_RUN"]["value"] == "/shared/run"
    assert {key: before[key] for key in ("image", "command", "args")}.items() <= after.items()
    assert evaluate(Manifests("mine", objects)).of(State.FAIL) == []
