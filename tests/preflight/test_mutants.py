"""Single faults in cells, as PyTorchJob and as TrainJob: each is named by its own rule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.preflight.test_corpus import failures, reported
from tools.cells import locate
from tools.cells.knobs import Knobs, applied
from tools.core.verdict import State
from tools.kube.manifests import Manifests, Object
from tools.preflight.evaluate import evaluate
from tools.workload import kinds

CELLS = ("cpu/llama-tiny", "p5/llama-3-1-8b", "trn1/bert-large")
Change = Callable[[Object, Object], Any]  # of the pod's spec and its container


def variable(name: str, value: str) -> Change:
    def change(pod: Object, main: Object) -> None:
        main["env"] = [*(one for one in main["env"] if one["name"] != name), {"name": name, "value": value}]

    return change


def renamed_device(pod: Object, main: Object) -> None:
    for amounts in main["resources"].values():
        for name in [name for name in amounts if "gpu" in name or "neuron" in name]:
            amounts[f"{name}s"] = amounts.pop(name)


def no_device(pod: Object, main: Object) -> None:
    for amounts in main["resources"].values():
        for name in [name for name in amounts if "gpu" in name or "neuron" in name]:
            del amounts[name]


def resource(name: str, value: str) -> Change:
    return lambda pod, main: [amounts.update({name: value}) for amounts in main["resources"].values()]


def mount(path: str, **fields: Any) -> Change:
    return lambda pod, main: next(one for one in main["volumeMounts"] if one["mountPath"] == path).update(fields)


def selector(name: str, value: str) -> Change:
    return lambda pod, main: pod.update(nodeSelector={name: value})


# The change, the rules that may name it, and the cells that can have the fault.
MUTANTS: dict[str, tuple[Change, set[str], tuple[str, ...]]] = {
    "another device": (resource("amd.com/gpu", "8"), {"devices-fit"}, CELLS[1:]),
    "a misspelt device": (renamed_device, {"devices-fit"}, CELLS[1:]),
    "no device": (no_device, {"config"}, CELLS[1:]),
    "more interfaces": (resource("vpc.amazonaws.com/efa", "64"), {"efa-fits"}, CELLS[1:]),
    "half an interface": (resource("vpc.amazonaws.com/efa", "0.5"), {"devices-whole"}, CELLS[1:]),
    "more memory": (resource("memory", "9000Gi"), {"memory-fits"}, CELLS[1:]),
    "a misspelt unit": (resource("memory", "64GB"), {"quantities", "schema"}, CELLS),
    "loopback": (variable("GLOO_SOCKET_IFNAME", "lo"), {"loopback"}, CELLS),
    "a misspelt label": (selector("topology.kubernetes.io/zoned", "us-west-2a"), {"node-labels"}, CELLS),
    "another processor": (selector("kubernetes.io/arch", "arm64"), {"architecture"}, CELLS[1:]),
    "root": (lambda pod, main: main["securityContext"].update(runAsUser=0), {"run-as-user"}, CELLS),
    "no directory for HOME": (variable("HOME", "/home/me"), {"read-only-root"}, CELLS),
    "a lost run": (mount("/shared/run", readOnly=True), {"checkpoint-shared", "read-only-root"}, CELLS),
    "a run on the node": (variable("TRAINYARD_RUN", "/tmp/a"), {"checkpoint-shared"}, CELLS),
    "a lost volume": (lambda pod, main: pod["volumes"].pop(0), {"volumes"}, CELLS),
    "a misspelt variable": (mount("/shared/run", subPathExpr="runs/$(JOBNAME)"), {"env-reference"}, CELLS),
    "a template's image": (lambda pod, main: main.update(image="a/$IMAGE:1"), {"template-left"}, CELLS),
    "a key in the open": (variable("HF_TOKEN", "hf_" + "aB3dE5gH" * 4 + "aa"), {"secret-literal"}, CELLS),
    "an unknown field": (lambda pod, main: main.update(imagePulPolicy="Always"), {"schema"}, CELLS),
    "no shell": (lambda pod, main: main.update(command=["python -m a"]), {"executable"}, CELLS),
    "one node": (lambda pod, main: main["args"].insert(0, "--standalone"), {"wiring"}, CELLS),
    "too many nodes": (lambda pod, main: main["args"].insert(0, "--nnodes=9"), {"wiring"}, CELLS),
}


@pytest.fixture(scope="module", params=[f"{cell} {kind}" for cell in CELLS for kind in ("PyTorchJob", "TrainJob")])
def cell(request: pytest.FixtureRequest) -> tuple[str, Manifests]:
    """A cell's name and its objects."""
    name, _, kind = request.param.partition(" ")
    return name, applied(locate.rendered(name), Knobs(features=("trainjob",) if kind == "TrainJob" else ()))


def test_each_fault_is_named_by_its_own_rule(cell: tuple[str, Manifests]) -> None:
    name, healthy = cell
    assert reported(evaluate(healthy)) <= {"local-image"}
    for fault, (change, rules, cells) in MUTANTS.items():
        if name not in cells:
            continue
        manifests = copy.deepcopy(healthy)
        (pod,) = kinds.job_of(manifests).training_specs()
        change(pod, pod["containers"][0])
        checked = evaluate(manifests)
        assert {rule for rule, _ in failures(checked)} <= rules, (fault, failures(checked))
        assert checked.of(State.FAIL), fault


def test_a_batch_that_the_pods_cannot_share_is_a_verdict() -> None:
    manifests = locate.rendered("g5/llama-3-2-1b")
    kinds.job_of(manifests).spec["elasticPolicy"].update(minReplicas=5, maxReplicas=3)
    assert "elastic-bounds" in reported(evaluate(manifests))
