"""`why` names the right cause first in every planted situation, and calls every healthy job healthy."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.job.conftest import Cluster, NewWorld
from tests.job.confusion import Confusion, said
from tests.job.corpus import CANNOT_TELL, HEALTHY, Situation
from tests.job.situations import SITUATIONS
from tests.job.world import ago
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import collect, kinds
from tools.kube import kubectl

EVIDENCE = {
    "the_local_queue_is_not_active": "LocalQueue team-a is not active: ClusterQueueIsInactive",
    "the_cluster_queue_lacks_its_flavor": "ClusterQueue research is not active: FlavorNotFound",
    "the_queue_is_on_hold": "stopPolicy Hold",
    "the_admission_check_waits_for_machines": "admission check prov: Pending",
    "the_workload_was_deactivated": "spec.active is false",
    "kueue_does_not_know_this_kind_of_job": "Kueue has not created a Workload",
    "the_volcano_queue_has_given_out_its_cards": "16 of 40 GPUs allocated, the gang needs 32",
    "kai_says_no": "Workload requested 32 GPUs",
    "karpenters_machine_is_not_to_be_had": "NodeClaim g5-x7k2p: InsufficientCapacityError",
    "an_empty_cluster_may_not_grow": "max node group size reached",
    "the_cards_are_cut_into_slices": "it has 56 nvidia.com/mig-1g.5gb",
    "the_devices_are_claimed_by_others": "the scheduler says: 0/4 nodes are available: 4 cannot allocate",
    "the_template_of_the_claim_was_never_made": "existing: none",
    "fewer_zones_than_asked": "2 node(s) didn't match pod topology spread constraints",
    "the_host_port_is_taken": "1 node(s) didn't have free ports for the requested pod ports",
    "all_of_a_job_in_one_zone_and_the_zone_is_out_of_nodes": "node-3: zone eu-west-1b does not run the pods",
    "all_ranks_stop_at_the_same_time": "all stopped at the same time",
    "the_training_has_ended_and_a_sidecar_runs": "still running: log-shipper",
    "the_sidecar_ends_after_the_training_has_failed": "worker-0 on node-0: torch.OutOfMemoryError",
    "the_container_beside_a_training_that_ended_well_has_failed": "worker-1, container log-shipper, on node-1",
    "the_operators_init_container_is_rate_limited": "image alpine:3.10",
    "the_node_has_restarted": "event Rebooted",
    "the_startup_probe_has_failed": "failed startup probe",
    "the_pods_ended_without_one_step": "Not enough GPUs to train",
    "the_registry_denies_at_the_end_of_a_long_message": "403 Forbidden",
    "a_spot_node_is_taken_back": "SpotInterruption",
    "hyperpod_drains_a_node_with_a_broken_card": "fault-reasons XID_79",
}


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.name)
def test_the_right_cause_comes_first_with_its_evidence(one: Situation, world: NewWorld) -> None:
    made = world(one.cell)
    one.plant(made)
    found = explain(made.snapshot())
    causes = [(cause.kind, cause.summary, cause.evidence) for cause in found.causes]
    assert said(found) == one.cause, f"{found.name}: {found.summary} {causes}"
    if one.name in EVIDENCE:
        first = found.causes[0]
        assert any(EVIDENCE[one.name] in line for line in first.evidence), first.evidence


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("the_nodes_are_short_of_disk", "the kubelet removes the taint itself"),
        ("spot_nodes_are_about_to_go", "these nodes will be removed soon"),
        ("a_disk_for_one_node_is_wanted_by_two", "ReadWriteMany"),
        ("an_empty_directory_was_larger_than_its_limit", "raise sizeLimit"),
        ("the_pods_disk_was_larger_than_its_limit", "limit of ephemeral-storage"),
        ("driver_not_on_the_node", "install the CSI driver"),
        ("the_file_system_is_not_reached", "port 2049"),
        ("lustre_does_not_mount_and_it_looks_like_a_slow_pull", "kubectl describe pod"),
        ("the_nodes_runtime_is_not_configured", "runtimeClassName"),
        ("the_file_system_denies_the_mount", "ClientMount"),
        ("lustre_is_not_on_the_node", "install the Lustre client"),
        ("the_servers_of_lustre_are_not_reached", "988"),
        ("the_startup_probe_has_failed", "timeoutSeconds"),
        ("a_rank_ends_with_a_bus_error_and_says_nothing", "/dev/shm"),
    ],
)
def test_the_remedy_is_that_of_the_message(name: str, words: str, world: NewWorld) -> None:
    one = next(one for one in SITUATIONS if one.name == name)
    made = world(one.cell)
    one.plant(made)
    assert words in (explain(made.snapshot()).causes[0].remedy or "")


def test_a_deleted_pods_last_words_have_their_own_remedy(world: NewWorld) -> None:
    made = world()
    made.end("Failed")
    made.pods = []
    words = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
    told = f"Error pod x-worker-0 container pytorch exitCode: 1 terminated message: {words}"
    made.event("PyTorchJob", made.job["metadata"]["name"], "Error", told)
    cause = explain(made.snapshot()).causes[0]
    assert cause.kind == "device"
    assert "nvidia-fabricmanager" in cause.remedy


def test_a_pod_that_is_still_there_after_its_deletion_is_named(world: NewWorld) -> None:
    made = world()
    made.pods[1]["metadata"]["deletionTimestamp"] = ago(600)
    found = explain(made.snapshot())
    assert (said(found), found.summary.partition(":")[0]) == (CANNOT_TELL, "worker-1 should have ended 10 min ago")


def test_the_corpus_is_wide_enough() -> None:
    """At least 180 situations, at least 25 healthy ones, and every name once."""
    names = [one.name for one in SITUATIONS]
    assert len(names) == len(set(names)) >= 180
    assert set(EVIDENCE) <= set(names)
    assert sum(one.cause == HEALTHY for one in SITUATIONS) >= 25
    assert sum(one.cause == CANNOT_TELL for one in SITUATIONS) >= 4


def test_the_table_tells_what_was_taken_for_what() -> None:
    found = Confusion(Counter({("nan", "nan"): 97, ("nan", "crash"): 2, (HEALTHY, HEALTHY): 1}))
    assert "nan                                         99    97  crash (2)" in found.table()
    assert "right first: 98.0% of 100; healthy jobs called something else: 0" in found.table()
    assert found.good
    assert not Confusion(found.counts + Counter({(HEALTHY, "hang"): 1})).good
    assert not Confusion(found.counts + Counter({("hang", "nan"): 9})).good


@pytest.mark.parametrize(
    ("complaint", "hint"),
    [
        ("The connection to the server localhost:8080 was refused", "no kubeconfig with a current context"),
        ("error: unknown flag: --output\nSee 'kubectl get --help' for usage.", "too old"),
        ("error: context was not found for specified context: x", "get-contexts"),
    ],
)
def test_what_kubectl_itself_lacks_is_said(complaint: str, hint: str) -> None:
    found = kubectl.failure("get", complaint)
    assert found.hint is not None
    assert hint in found.hint


def test_what_a_job_has_to_do_with_is_asked_for(world: NewWorld, cluster: Cluster) -> None:
    """Queues, groups, claimed devices and starting machines, each only if the job names it."""
    made = world()
    made.pending(1)
    made.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    made.pods[1]["spec"] |= {
        "schedulerName": "kai-scheduler",
        "resourceClaims": [{"name": "gpus", "resourceClaimName": "eight"}],
    }
    made.event("Pod", made.name(1), "Nominated", "Pod should schedule on: nodeclaim/g5-x", warning=False)
    made.event("NodeClaim", "g5-x", "InsufficientCapacityError", "no capacity")
    made.event("Node", "node-0", "NodeNotReady", "node-0 is not ready")
    home = cluster(made)
    objects = json.loads((home / "objects.json").read_text())
    further = {
        **kinds.KUEUE,
        **kinds.GANGS["kai-scheduler"],
        **kinds.CLAIMS,
        "NodeClaim": "nodeclaims.karpenter.sh",
    }
    objects |= {resource: [{"kind": kind, "metadata": {"name": "x"}}] for kind, resource in further.items()}
    (home / "objects.json").write_text(json.dumps(objects))
    seen = collect.collect(kubectl.Kubectl(), made.snapshot().live, around=True)
    assert {kind for kind in further if seen.find(kind, "x")} == set(further)
    assert seen.events("Node", "node-0")
    assert seen.events("NodeClaim", "g5-x")
    assert f"/namespaces/{collect.CLUSTER_NAMESPACE}/events" in (home / "asked.txt").read_text()


def test_what_a_job_has_nothing_to_do_with_is_not_asked_for(world: NewWorld, cluster: Cluster) -> None:
    made = world()
    home = cluster(made)
    seen = collect.collect(kubectl.Kubectl(), made.snapshot().live, around=True)
    asked = (home / "asked.txt").read_text()
    assert not any(word in asked for word in ("kueue", "podgroups", "resource.k8s.io", "karpenter"))
    assert not any("Queue" in kind or "Claim" in kind for kind in seen.unseen)
