"""A job with values of wrong types, or with too many pods, is one error."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.workload.beds import BEDS, bed, of
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import parse
from tools.simulator import wiring

WRONG: tuple[Any, ...] = (None, 5, "x", True, [], [5], {}, {"a": 5}, [[]], [{}], [None])


@pytest.mark.parametrize("name", BEDS)
def test_a_value_of_a_wrong_type_anywhere_is_one_error(name: str) -> None:
    """Each field of each bed in turn gets values of other types: no exception but the one error."""
    seen = 0
    for place in list(places(bed(name)[0]["spec"])):
        for wrong in WRONG:
            objects = bed(name)
            target: Any = objects[0]["spec"]
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = copy.deepcopy(wrong)
            workload = of(objects)
            verdict = wiring.analyse(workload).verdict
            assert workload.state == "New"
            assert workload.retries.path
            if workload.misshapen and name != "PyTorchJob":
                seen += 1
                assert verdict.state is State.FAIL, (place, wrong, verdict)
                assert workload.misshapen[0].path in verdict.summary
                with pytest.raises(UserError, match="must be"):
                    workload.pods()
    assert seen > 20 or name == "PyTorchJob"


def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Yield the paths of all values in a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("name", BEDS)
def test_a_live_object_with_too_many_pods_is_one_error(name: str) -> None:
    text = str(bed(name)).replace("'replicas': 2", "'replicas': 5000")
    text = text.replace("'parallelism': 2", "'parallelism': 5000").replace("'completions': 2", "'completions': 5000")
    objects = eval(text.replace("'numNodes': 2", "'numNodes': 5000"))
    with pytest.raises(UserError, match=r"the job has 5,00[01] pods"):
        of(objects).pods()


def test_a_fault_outside_the_pods_is_one_verdict() -> None:
    (job,) = bed("PyTorchJob")
    job["metadata"]["annotations"] = {"sagemaker.amazonaws.com/enable-job-auto-resume": True}
    verdict = wiring.analyse(of([job])).verdict
    assert verdict.state is State.FAIL
    assert "must be a string in quotes" in verdict.summary


def test_a_manifest_with_a_billion_pods_is_refused() -> None:
    text = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: x}\n"
    with pytest.raises(UserError, match="numNodes is 1e"):
        parse(text + "spec: {runtimeRef: {name: a}, trainer: {numNodes: 1000000000}}", "here")
