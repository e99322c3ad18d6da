"""Whether another attempt can help, what it changes, and how often: by the cause of the failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld
from tests.job.world import World
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job import retry
from tools.job.diagnosis import cause
from tools.job.diagnosis.explain import explain
from tools.job.retry import FailedAttempt, NextAttempt
from tools.job.snapshot.live_job import LEDGER
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests
from training.config import Retry

Planned = Callable[..., NextAttempt]
PEER = "RuntimeError: Connection closed by peer [10.0.1.7]:31337"


@pytest.fixture
def planned(cluster: Cluster, rendered: dict[str, Manifests]) -> Planned:
    """A function that plans the next attempt of a world's job with the ConfigMaps of its cell."""

    def make(made: World, cell: str = "cpu/llama-tiny", most: int = 3) -> NextAttempt:
        home: Path = cluster(made)
        objects = json.loads((home / "objects.json").read_text())
        objects["configmaps"] = rendered[cell].of_kind("ConfigMap")
        (home / "objects.json").write_text(json.dumps(objects))
        seen = made.snapshot()
        return retry.plan(Kubectl(None, "team-a"), seen, explain(seen), most)

    return make


def failed(made: World, *lines: str, code: int = 1) -> World:
    """Let the job and all its pods fail."""
    made.end("Failed")
    for index in range(len(made.pods)):
        made.ended(index, code, *lines)
    return made


def micro(manifests: Manifests) -> list[str]:
    """The lines of the configuration that set the micro batch."""
    texts = [text for item in manifests.of_kind("ConfigMap") for text in item["data"].values()]
    return [line.strip() for text in texts for line in text.splitlines() if "micro_batch_size:" in line]


def test_a_lost_peer_is_retried_unchanged(world: NewWorld, planned: Planned) -> None:
    made = failed(world(), PEER)
    made.job["metadata"] |= {"resourceVersion": "7", "managedFields": [], "generation": 2}
    plan = planned(made)
    job = plan.objects.job()
    assert plan.objects.objects == [job]
    assert job["spec"] == made.job["spec"]
    assert set(job["metadata"]) == {"name", "namespace", "labels", "annotations"} & {*job["metadata"]}
    assert "status" not in job
    (one,) = json.loads(job["metadata"]["annotations"][LEDGER])
    assert (one["uid"], one["cause"], one["changed"]) == ("uid-job", "lost-peer", "nothing")


@pytest.mark.parametrize("cell", ["g5/llama-2-7b", "cpu/llama-tiny"])
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_global_one(
    cell: str, world: NewWorld, planned: Planned, rendered: dict[str, Manifests]
) -> None:
    made = failed(world(cell), "torch.OutOfMemoryError: CUDA out of memory", code=160)
    before = {item["metadata"]["name"] for item in rendered[cell].of_kind("ConfigMap")}
    size = int(micro(rendered[cell])[0].rpartition(" ")[2])
    if size == 1:
        with pytest.raises(UserError, match="cannot be halved"):
            planned(made, cell)
        return
    plan = planned(made, cell)
    assert micro(plan.objects) == [f"micro_batch_size: {size // 2}"]
    assert plan.last.changed == f"parallel.micro_batch_size {size} -> {size // 2}; the global batch stays"
    (name,) = {item["metadata"]["name"] for item in plan.objects.of_kind("ConfigMap")} - before
    assert name.endswith("-retry1")
    assert name in json.dumps(plan.objects.job()["spec"]), "the job's pods mount it"
    assert name.removesuffix("-retry1") not in json.dumps(plan.objects.job()["spec"]).replace(name, "")


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [("", 137, "OOMKilled"), ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.", 1, "Error")],
)
def test_host_memory_beside_accelerators_does_not_halve_the_batch(
    line: str, code: int, reason: str, world: NewWorld, planned: Planned
) -> None:
    made = world("g5/llama-2-7b")
    made.end("Failed")
    for index in range(4):
        made.ended(index, code, line, reason=reason)
    with pytest.raises(UserError, match="the host is out of memory") as refused:
        planned(made, "g5/llama-2-7b")
    assert refused.value.hint == cause.CAUSES["oom-host"]["fix"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("rank 0: config: /etc/trainyard/model.yaml:7: unknown key train.lr", "config"),
        ("rank 0: data: shard train-00000.bin is truncated", "data"),
        ("ModuleNotFoundError: No module named 'training'", "code"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo", "hub-auth"),
    ],
)
def test_a_permanent_cause_is_refused_with_its_remedy(line: str, kind: str, world: NewWorld, planned: Planned) -> None:
    with pytest.raises(UserError, match=f"in the same way: {kind}") as refused:
        planned(failed(world(), line))
    assert (refused.value.hint, refused.value.code) == (cause.CAUSES[kind]["fix"], 1)


def attempts(*causes: str) -> dict[str, Any]:
    """A ledger's annotation."""
    return {LEDGER: json.dumps([vars(FailedAttempt("u", "t", kind, "e", "nothing")) for kind in causes])}


def test_attempts_are_limited_in_total_and_for_one_cause(world: NewWorld, planned: Planned) -> None:
    made = failed(world(), PEER)
    made.job["metadata"]["annotations"] = attempts("lost-peer", "hang")
    assert len(planned(made).ledger) == 3, "control: a third attempt after two causes"
    made.job["metadata"]["annotations"] = attempts("lost-peer", "hang", "lost-peer")
    with pytest.raises(UserError, match="3 are allowed"):
        planned(made)
    assert len(planned(made, most=9).ledger) == 4
    made.job["metadata"]["annotations"] = attempts("hang", "lost-peer", "lost-peer", "lost-peer")
    with pytest.raises(UserError, match="lost-peer has occurred again after 3 retries"):
        planned(made, most=9)
    made.job["metadata"]["annotations"] = attempts("script")
    with pytest.raises(UserError, match="script has occurred again after 1 retry"):
        planned(failed(made, "KeyError: 'labels'"))
    made.job["metadata"]["annotations"] = {LEDGER: "once"}
    with pytest.raises(UserError, match="is not a ledger"):
        planned(made)


def test_a_job_that_has_not_failed_or_belongs_to_git_is_left_alone(world: NewWorld, planned: Planned) -> None:
    healthy = world()
    healthy.training()
    with pytest.raises(UserError, match="has not failed"):
        planned(healthy)
    pending = world()
    pending.pending(0, 1)
    pending.nodes = []
    with pytest.raises(UserError, match="has not failed"):
        planned(pending)
    unclear = world()
    unclear.running(0, restarts=1)
    unclear.unseen["run directory"] = "forbidden"
    assert explain(unclear.snapshot()).state is State.CANNOT_TELL
    with pytest.raises(UserError, match="unknown whether") as unseen:
        planned(unclear)
    assert unseen.value.code == 3, "missing data is not a failure"
    owned = failed(world(), PEER)
    owned.job["metadata"]["labels"] = {"kustomize.toolkit.fluxcd.io/name": "team"}
    with pytest.raises(UserError, match="reconciled from git"):
        planned(owned)


def test_why_names_every_cause_that_is_retried() -> None:
    assert set(retry.MOST) - {retry.UNKNOWN} <= set(cause.CAUSES)


def test_the_key_of_a_cell_bounds_by_class_and_progress(
    world: NewWorld, cluster: Cluster, rendered: dict[str, Manifests]
) -> None:
    def plan(rule: Retry, reached: int, *before: int) -> NextAttempt:
        made = failed(world(), PEER)
        ledger = [vars(FailedAttempt("u", "t", "lost-peer", "e", "nothing", step)) for step in before]
        made.job["metadata"]["annotations"] = {LEDGER: json.dumps(ledger)}
        cluster(made)
        seen = made.snapshot()
        return retry.plan(Kubectl(None, "team-a"), seen, explain(seen), rule.most, rule, reached)

    rule = Retry(classes=("lost peer", "hang"), most=2)
    assert plan(rule, 40).last.step == 40
    assert [one.step for one in plan(rule, 90, 40).ledger] == [40, 90]
    with pytest.raises(UserError, match="there was no new step since the attempt before: step 40 now, step 40 then"):
        plan(rule, 40, 40)
    with pytest.raises(UserError, match="retried 2 times already, 2 are allowed"):
        plan(rule, 95, 40, 90)
    with pytest.raises(UserError, match=r"retry\.classes does not have lost-peer"):
        plan(Retry(classes=("hang",)), 40)


def test_why_tells_each_retry_with_its_cause(world: NewWorld) -> None:
    made = world()
    made.training()
    made.job["metadata"]["annotations"] = attempts("node-lost")
    seen = made.snapshot()
    kept = {"class": "killed", "rank": 1, "host": "x-worker-1", "step": 57, "message": "killed by SIGKILL", "most": 3}
    first = {**kept, "time": 1.0, "count": 1, "refusal": ""}
    second = {**kept, "time": 2.0, "count": 2, "refusal": "there was no new step"}
    seen = replace(seen, run={**(seen.run or {}), "retries": {"b": second, "a": first}})
    one, two, three = explain(seen).retries
    assert one.startswith("start 1 of 3 in the pods, after killed: rank 1 on x-worker-1 at step 57: killed by")
    assert two.startswith("no start followed, because there was no new step, after killed: rank 1")
    assert three == "attempt 1 of the whole job ended at t: node-lost: e; the next changed nothing"
