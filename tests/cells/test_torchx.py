"""A trn1 cell through TorchX: the Volcano job that it makes, and what preflight and wiring say of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse, read
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import kinds

Object = dict[str, Any]
# Made by torchx 0.7.0: `torchx run --dryrun ... --precompile True --cacheset bert-large` as berttrain-graphs.
RECORDED = Path(__file__).parents[1] / "neuron" / "bertcompile.yaml"


@pytest.fixture
def recorded() -> Manifests:
    return read(RECORDED)


def test_a_torchx_job_passes_preflight_and_forms_one_world(recorded: Manifests) -> None:
    found = evaluate(recorded)
    assert found.of(State.FAIL) == []
    assert sum(one.state is State.PASS for one in found.verdicts) > 80, "the pods were not looked at"
    (job,) = kinds.find(recorded).workloads
    analysis = wiring.analyse(job)
    assert analysis.verdict.state is State.PASS, analysis.verdict
    assert wiring.world_size(analysis.nodes) == 64


def test_names_of_volcanos_pods(recorded: Manifests) -> None:
    (job,) = kinds.find(recorded).workloads
    assert [pod.name for pod in job.pods()] == [f"{job.name}-trainer-0-0", f"{job.name}-trainer-1-0"]


def changed(job: Object, variable: str, value: str) -> None:
    for task in job["spec"]["tasks"]:
        for entry in task["template"]["spec"]["containers"][0]["env"]:
            if entry["name"] == variable:
                entry["value"] = value


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda job: job["spec"]["plugins"].pop("svc"), "cannot find each other by name"),
        (lambda job: changed(job, "PET_NNODES", "1"), "separate jobs"),
        (lambda job: changed(job, "PET_NNODES", "3"), "it never starts"),
        (lambda job: changed(job, "PET_RDZV_ENDPOINT", "elsewhere:29400"), "not one of the job's pods"),
        (lambda job: job["spec"].update(tasks=[]), "no pods"),
    ],
)
def test_volcano_jobs_that_do_not_meet_fail(
    recorded: Manifests, spoil: Callable[[Object], object], reason: str
) -> None:
    (job,) = copy.deepcopy(kinds.find(recorded).workloads)
    spoil(job.item)
    analysis = wiring.analyse(job)
    assert analysis.verdict.state is State.FAIL
    assert reason in analysis.verdict.summary


@pytest.mark.parametrize(
    ("key", "value"),
    [("aws.amazon.com/neuron", "17"), ("vpc.amazonaws.com/efa", "9")],
)
def test_preflight_counts_a_volcano_jobs_devices(recorded: Manifests, key: str, value: str) -> None:
    (job,) = (copy.deepcopy(one.item) for one in kinds.find(recorded).workloads)
    for task in job["spec"]["tasks"]:
        resources = task["template"]["spec"]["containers"][0]["resources"]
        for kind in ("requests", "limits"):
            resources[kind][key] = value
    assert evaluate(Manifests("spoilt", [job])).of(State.FAIL) != []


def test_other_volcano_jobs_raise_no_alarm() -> None:
    text = (
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: spark}\n"
        "spec: {tasks: [{name: driver, template: {spec: {containers: [{name: x, image: spark:3}]}}}]}"
    )
    assert evaluate(parse(text, "spark")).of(State.FAIL) == []
