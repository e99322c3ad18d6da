"""Situations of pods that have no node."""

from __future__ import annotations

from typing import Any

from tests.job.corpus import CANNOT_TELL, G5, situation
from tests.job.world import World, node

ZONE = "topology.kubernetes.io/zone"


@situation("unschedulable/pods")
def nodes_are_full_of_pods(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["status"]["allocatable"]["pods"] = "4"
        for number in range(4):
            world.hold(one["metadata"]["name"], f"tiny-{one['metadata']['name']}-{number}", cpu="1m")


@situation("unschedulable/taint", G5)
def gpu_nodes_are_tainted(world: World) -> None:
    world.pending(*range(4))
    for pod in world.pods:
        pod["spec"]["tolerations"] = []
    for one in world.nodes:
        one["spec"]["taints"] = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    world.nodes.append(node("small", "m5.xlarge"))


@situation("unschedulable/zone")
def volume_in_another_zone(world: World) -> None:
    world.pending(0, 1)
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    world.objects["PersistentVolume"][0]["spec"]["nodeAffinity"] = affinity


# ---- from reports of users of such systems


@situation("unschedulable/nvidia.com/gpu", G5)
def the_claim_waits_for_the_pod_and_the_pod_for_a_card(world: World) -> None:
    """A class with WaitForFirstConsumer: the claim is Pending because the pod is, not the reverse."""
    world.pending(*range(4))
    for index in range(4):
        world.hold(f"node-{index}", f"inference-{index}", gpu="8")
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"] = {"storageClassName": "gp3"}
    claim["status"] = {"phase": "Pending"}
    message = "waiting for first consumer to be created before binding"
    world.event("PersistentVolumeClaim", "trainyard", "WaitForFirstConsumer", message, warning=False)


@situation("unschedulable/vpc.amazonaws.com/efa", G5)
def the_small_machine_of_the_family_has_no_efa(world: World) -> None:
    """Many guides request an interface of a g5.4xlarge, which has none."""
    world.pending(*range(4))
    world.nodes = [node(f"node-{index}", "g5.4xlarge") for index in range(4)]
    for index in range(4):
        amounts = {"nvidia.com/gpu": "1", "vpc.amazonaws.com/efa": "1"}
        world.container(index)["resources"] = {"requests": amounts, "limits": amounts}
        world.pods[index]["spec"]["affinity"] = {}


@situation("unschedulable/ephemeral-storage")
def scratch_disk_is_larger_than_the_nodes(world: World) -> None:
    world.pending(0, 1)
    for index in (0, 1):
        resources = world.container(index)["resources"]
        for kind in ("requests", "limits"):
            resources.setdefault(kind, {})["ephemeral-storage"] = "500Gi"


@situation("unschedulable/zone")
def one_zone_has_room_and_the_volume_is_in_the_other(world: World) -> None:
    """Only nodes of another zone than the volume's have room."""
    world.pending(0, 1)
    world.nodes = [node(f"free-{index}", "m5.xlarge", zone="eu-west-1b") for index in range(2)]
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1a"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    world.objects["PersistentVolume"][0]["spec"]["nodeAffinity"] = affinity


# ---- pod affinity over zones


def _one_zone(world: World, **term: Any) -> None:
    """Every pod must be in a zone of the job's other pods. The last node is in another zone."""
    world.nodes[-1]["metadata"]["labels"][ZONE] = "eu-west-1b"
    labels = {"matchLabels": {"training.kubeflow.org/job-name": world.job["metadata"]["name"]}}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": labels, "topologyKey": ZONE, **term}]}
    for pod in world.pods:
        pod["spec"].setdefault("affinity", {})["podAffinity"] = rule


@situation("unschedulable/together", G5)
def all_of_a_job_in_one_zone_and_the_zone_is_out_of_nodes(world: World) -> None:
    """The only free node is in the other zone; the job itself uses all nodes of the first zone."""
    world.pending(3)
    _one_zone(world)


@situation(CANNOT_TELL, G5)
def the_first_of_a_series_that_wants_its_like(world: World) -> None:
    """No pod of the job runs, so the first pod may be anywhere."""
    world.pending(*range(4))
    _one_zone(world)


@situation("unschedulable/together", G5)
def the_zone_of_the_cache_is_full(world: World) -> None:
    world.pending(*range(4))
    world.hold("node-3", "cache", cpu="1", gpu="8")
    world.others[-1]["metadata"]["labels"] = {"app": "cache"}
    _one_zone(world, labelSelector={"matchLabels": {"app": "cache"}}, namespaces=["team-b"])


@situation("unschedulable/together", G5)
def the_cache_of_the_zone_is_in_another_namespace(world: World) -> None:
    """A term without namespaces means the pod's own namespace."""
    world.pending(3)
    world.hold("node-3", "cache", cpu="1")
    world.others[-1]["metadata"]["labels"] = {"app": "cache"}
    _one_zone(world, labelSelector={"matchLabels": {"app": "cache"}})


@situation(CANNOT_TELL, G5)
def the_cache_is_in_the_namespace_that_is_named(world: World) -> None:
    world.pending(3)
    world.hold("node-3", "cache", cpu="1")
    world.others[-1]["metadata"]["labels"] = {"app": "cache"}
    _one_zone(world, labelSelector={"matchLabels": {"app": "cache"}}, namespaces=["team-b"])


@situation(CANNOT_TELL, G5)
def affinity_by_labels_of_namespaces_is_the_schedulers(world: World) -> None:
    """The snapshot has no namespaces, so this rule is not computed."""
    world.pending(3)
    _one_zone(world, namespaceSelector={"matchLabels": {"team": "a"}})


# ---- MIG slices


def _cut(world: World, name: str, number: str) -> None:
    for one in world.nodes:
        one["status"]["allocatable"] |= {"nvidia.com/gpu": "0", name: number}


@situation("unschedulable/nvidia.com/mig-1g.10gb", G5)
def the_slices_are_taken(world: World) -> None:
    world.pending(3)
    _cut(world, "nvidia.com/mig-1g.10gb", "7")
    for pod in world.pods:
        amounts = {"nvidia.com/mig-1g.10gb": "4", "cpu": "1"}
        pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    world.others.append(
        {
            "metadata": {"name": "notebook", "namespace": "team-b"},
            "spec": {
                "nodeName": "node-3",
                "containers": [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": "4"}}}],
            },
            "status": {"phase": "Running"},
        }
    )


@situation("unschedulable/nvidia.com/mig-3g.40gb", G5)
def the_slices_are_of_another_size_and_cpus_are_short_too(world: World) -> None:
    world.pending(*range(4))
    _cut(world, "nvidia.com/mig-1g.10gb", "7")
    for one in world.nodes:
        one["status"]["allocatable"]["cpu"] = "1"
    for pod in world.pods:
        amounts = {"nvidia.com/mig-3g.40gb": "1", "cpu": "8"}
        pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
