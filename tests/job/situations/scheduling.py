"""Situations of pods that have no node."""

from __future__ import annotations

from typing import Any

from tests.job.corpus import CANNOT_TELL, G5, P5, TORCHRUN, situation
from tests.job.world import World, node

ZONE = "topology.kubernetes.io/zone"


@situation("unschedulable/nvidia.com/gpu", G5)
def gpus_are_taken(world: World) -> None:
    world.pending(2, 3)
    world.hold("node-2", "notebook-a", gpu="8")
    world.hold("node-3", "notebook-b", gpu="1")


@situation("unschedulable/nvidia.com/gpu", P5)
def device_plugin_missing(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        del one["status"]["allocatable"]["nvidia.com/gpu"]


@situation("unschedulable/vpc.amazonaws.com/efa", P5)
def efa_plugin_missing(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        one["status"]["allocatable"]["vpc.amazonaws.com/efa"] = "0"


@situation("unschedulable/hugepages-2Mi", P5)
def no_huge_pages(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        one["status"]["allocatable"]["hugepages-2Mi"] = "0"


@situation("unschedulable/memory")
def memory_is_taken(world: World) -> None:
    world.pending(1)
    world.nodes[1]["status"]["allocatable"]["memory"] = "4Gi"
    world.nodes[0]["status"]["allocatable"]["memory"] = "4Gi"
    world.hold("node-1", "cache", memory="2Gi")


@situation("unschedulable/cpu")
def processors_are_taken(world: World) -> None:
    world.pending(0, 1)
    world.hold("node-0", "builder-a", cpu="3500m")
    world.hold("node-1", "builder-b", cpu="3")
    world.hold("node-1", "builder-c", cpu="500m")


@situation("unschedulable/cpu")
def nodes_are_too_small(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["status"]["allocatable"]["cpu"] = "900m"


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


@situation("unschedulable/affinity", P5)
def no_node_of_that_type(world: World) -> None:
    world.pending(*range(4))
    world.nodes = [node(f"node-{index}", "p4d.24xlarge") for index in range(4)]


@situation("unschedulable/selector")
def selector_matches_nothing(world: World) -> None:
    world.pending(0, 1)
    for pod in world.pods:
        pod["spec"]["nodeSelector"] = {"node-group": "training"}


@situation("unschedulable/cordoned")
def all_nodes_cordoned(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["spec"] = {"unschedulable": True}


@situation("unschedulable/not ready")
def nodes_not_ready(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]


@situation("unschedulable/zone")
def volume_in_another_zone(world: World) -> None:
    world.pending(0, 1)
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    world.objects["PersistentVolume"][0]["spec"]["nodeAffinity"] = affinity


@situation("unschedulable/no-nodes")
def cluster_scaled_to_zero(world: World) -> None:
    world.pending(0, 1)
    world.nodes = []


@situation("unschedulable/nvidia.com/gpu", G5)
def one_rank_pending_and_the_others_wait_at_the_rendezvous(world: World) -> None:
    """The rendezvous times out because one pod has no node."""
    world.pending(3)
    world.hold("node-3", "other-job-worker-0", gpu="8")
    for index in range(3):
        world.crash_looping(
            index, 1, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: timed out", *TORCHRUN
        )


@situation("claim-missing")
def claim_was_never_made(world: World) -> None:
    world.pending(0, 1)
    world.objects["PersistentVolumeClaim"] = []


@situation("claim-pending")
def storage_class_misspelt(world: World) -> None:
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"] = {"storageClassName": "fsx-lustre"}
    claim["status"] = {"phase": "Pending"}


@situation("claim-pending")
def no_default_class(world: World) -> None:
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"], claim["status"] = {}, {"phase": "Pending"}


@situation("claim-pending")
def provisioning_fails(world: World) -> None:
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["status"] = {"phase": "Pending"}
    del claim["spec"]["volumeName"]
    message = 'failed to provision volume with StorageClass "gp3": rpc error: UnauthorizedOperation'
    world.event("PersistentVolumeClaim", "trainyard", "ProvisioningFailed", message)


@situation("scheduler-absent")
def volcano_is_not_installed(world: World) -> None:
    world.pending(0, 1, asked=False)
    for pod in world.pods:
        pod["spec"]["schedulerName"] = "volcano"


@situation("queue")
def pods_are_gated(world: World) -> None:
    world.pending(0, 1, asked=False)
    for pod in world.pods:
        pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]


# ---- from reports of users of such systems


@situation("unschedulable/nvidia.com/gpu", P5)
def every_node_has_lost_one_card(world: World) -> None:
    """aicr #1858: the device plugin reports 7 of 8 GPUs, and a job that requests 8 waits forever."""
    world.pending(*range(4))
    for one in world.nodes:
        one["status"]["allocatable"]["nvidia.com/gpu"] = "7"


@situation("unschedulable/nvidia.com/gpu", G5)
def a_gang_waits_for_its_last_card(world: World) -> None:
    """Three of four pods would fit, but a gang scheduler places all or none."""
    world.pending(*range(4))
    for pod in world.pods:
        pod["spec"]["schedulerName"] = "volcano"
    name = world.job["metadata"]["name"]
    message = (
        "3/4 tasks in gang unschedulable: pod group is not ready, 1 Pending, 3 Schedulable, 4 minAvailable"
    )
    world.objects["PodGroup"] = [
        {
            "metadata": {"name": name},
            "spec": {"minMember": 4, "queue": "default"},
            "status": {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "message": message}]},
        }
    ]
    world.hold("node-3", "inference", gpu="1")


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


@situation("unschedulable/selector", P5)
def hyperpod_has_taken_the_nodes_out(world: World) -> None:
    """HyperPod's health agent relabels nodes that it will replace, and jobs select healthy ones."""
    world.pending(*range(4))
    label = "sagemaker.amazonaws.com/node-health-status"
    for pod in world.pods:
        pod["spec"]["nodeSelector"] = {label: "Schedulable"}
    for one in world.nodes:
        one["metadata"]["labels"][label] = "UnschedulablePendingReplacement"


@situation("unschedulable/affinity", P5)
def no_capacity_for_that_type(world: World) -> None:
    """karpenter #2159: only nodes of other types exist, and no pod has an event about capacity."""
    world.pending(*range(4))
    world.nodes = [node(f"node-{index}", "m5.4xlarge") for index in range(3)]
    for index in range(4):
        message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        world.event("Pod", world.name(index), "FailedScheduling", message)


@situation("unschedulable/taint", G5)
def spot_nodes_are_about_to_go(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        taint = {"key": "aws-node-termination-handler/spot-itn", "value": "x", "effect": "NoExecute"}
        one["spec"]["taints"] = [taint]


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


@situation("unschedulable/not ready", G5)
def the_nodes_have_no_network_yet(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        taint = {"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}
        one["spec"]["taints"] = [taint]


# ---- pod affinity over zones


def _one_zone(world: World, **term: Any) -> None:
    """Every pod must be in a zone of the job's other pods. The last node is in another zone."""
    world.nodes[-1]["metadata"]["labels"][ZONE] = "eu-west-1b"
    labels = {"matchLabels": {"training.kubeflow.org/job-name": world.job["metadata"]["name"]}}
    rule = {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": labels, "topologyKey": ZONE, **term}
        ]
    }
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


# ---- volumes


@situation("unschedulable/zone")
def the_storage_class_makes_volumes_in_another_zone(world: World) -> None:
    """The claim is not bound yet; its class restricts where the volume can be created."""
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"], claim["status"] = {"storageClassName": "gp3"}, {"phase": "Pending"}
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["eu-west-1c"]}]}]
    world.objects["StorageClass"][0]["allowedTopologies"] = terms


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


@situation("unschedulable/nvidia.com/gpu", G5)
def the_cards_are_cut_into_slices(world: World) -> None:
    world.pending(*range(4))
    _cut(world, "nvidia.com/mig-1g.5gb", "56")


@situation("unschedulable/nvidia.com/mig-3g.40gb", G5)
def the_slices_are_of_another_size_and_cpus_are_short_too(world: World) -> None:
    world.pending(*range(4))
    _cut(world, "nvidia.com/mig-1g.10gb", "7")
    for one in world.nodes:
        one["status"]["allocatable"]["cpu"] = "1"
    for pod in world.pods:
        amounts = {"nvidia.com/mig-3g.40gb": "1", "cpu": "8"}
        pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}


@situation("unschedulable/memory")
def the_pod_as_a_whole_asks_for_more(world: World) -> None:
    """spec.resources replaces the sum of the containers."""
    world.pending(0, 1)
    for pod in world.pods:
        pod["spec"]["resources"] = {"requests": {"memory": "900Gi"}}
