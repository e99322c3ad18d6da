"""Situations of pods that other pods keep from having a node: spread, affinity, ports, and claimed devices."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from typing import Any

from tests.job.corpus import CANNOT_TELL, G5, P5, situation
from tests.job.world import World, node

Object = dict[str, Any]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _own(world: World) -> Object:
    return {"matchLabels": {"training.kubeflow.org/job-name": world.job["metadata"]["name"]}}


def _spread(world: World, **changed: Any) -> None:
    rule = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": _own(world),
    }
    for pod in world.pods:
        pod["spec"]["topologySpreadConstraints"] = [rule | changed]


def _two_zones(world: World, second: int) -> None:
    """The last nodes are in another zone."""
    for one in world.nodes[-second:]:
        one["metadata"]["labels"][ZONE] = "eu-west-1b"


# ---- topology spread


@situation("unschedulable/spread", G5)
def the_emptier_zone_is_full(world: World) -> None:
    """Two pods in zone a, none in zone b, whose only node another team has: node-3 has room, and is in zone a."""
    world.pending(2, 3)
    world.nodes[2]["metadata"]["labels"][ZONE] = "eu-west-1b"
    world.hold("node-2", "notebook", gpu="8")
    _spread(world)


@situation("unschedulable/spread", G5)
def the_emptier_zone_is_tainted(world: World) -> None:
    """By default a tainted node's zone counts although no pod can be there."""
    world.pending(3)
    _two_zones(world, 2)
    world.nodes[2]["spec"]["taints"] = [{"key": "team", "value": "x", "effect": "NoSchedule"}]
    world.nodes[3]["spec"]["taints"] = world.nodes[2]["spec"]["taints"]
    world.pods[1]["spec"]["nodeName"] = world.pods[2]["spec"]["nodeName"] = "node-0"
    _spread(world)


@situation("unschedulable/spread")
def fewer_zones_than_asked(world: World) -> None:
    world.pending(1)
    _spread(world, minDomains=3)


@situation("unschedulable/spread")
def the_nodes_have_no_such_label(world: World) -> None:
    world.pending(0, 1)
    _spread(world, topologyKey="topology.kubernetes.io/rack")


@situation("unschedulable/spread", P5)
def a_block_has_more_of_it_already(world: World) -> None:
    """Network blocks: the only node of the other one is cordoned."""
    world.pending(3)
    key = "topology.k8s.aws/network-node-layer-2"
    for one in world.nodes:
        one["metadata"]["labels"][key] = "nn-1"
    world.nodes.append(node("node-4", "p5en.48xlarge"))
    world.nodes[4]["metadata"]["labels"][key] = "nn-2"
    world.nodes[4]["spec"]["unschedulable"] = True
    _spread(world, topologyKey=key, maxSkew=2)


@situation(CANNOT_TELL, G5)
def what_is_only_preferred_stops_nothing(world: World) -> None:
    world.pending(3)
    _two_zones(world, 1)
    _spread(world, whenUnsatisfiable="ScheduleAnyway", topologyKey="no.such/label")


@situation(CANNOT_TELL, G5)
def nodes_that_the_pod_does_not_select_do_not_count(world: World) -> None:
    """Zone b has only nodes of another type: with the policy Honor it is no domain."""
    world.pending(3)
    world.nodes.append(node("small", "m5.xlarge", zone="eu-west-1b"))
    _spread(world)


@situation("unschedulable/spread", G5)
def nodes_that_the_pod_does_not_select_count_with_ignore(world: World) -> None:
    world.pending(3)
    world.nodes.append(node("small", "m5.xlarge", zone="eu-west-1b"))
    _spread(world, nodeAffinityPolicy="Ignore")


@situation(CANNOT_TELL, G5)
def tainted_nodes_do_not_count_with_honor(world: World) -> None:
    world.pending(3)
    world.nodes.append(
        node("other", "g5.48xlarge", zone="eu-west-1b", taints=[{"key": "x", "effect": "NoSchedule"}])
    )
    _spread(world, nodeTaintsPolicy="Honor")


@situation(CANNOT_TELL, G5)
def pods_of_another_version_of_the_job_do_not_count(world: World) -> None:
    """matchLabelKeys: those that run have another value of the label."""
    world.pending(3)
    world.nodes.append(
        node("other", "g5.48xlarge", zone="eu-west-1b", taints=[{"key": "x", "effect": "NoSchedule"}])
    )
    for index, pod in enumerate(world.pods):
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], "attempt": "2" if index == 3 else "1"}
    _spread(world, matchLabelKeys=["attempt"])


@situation(CANNOT_TELL, G5)
def pods_that_are_going_do_not_count(world: World) -> None:
    world.pending(3)
    world.nodes.append(
        node("other", "g5.48xlarge", zone="eu-west-1b", taints=[{"key": "x", "effect": "NoSchedule"}])
    )
    for pod in world.pods[:3]:
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T11:59:55Z"
    _spread(world)


# ---- affinity and anti-affinity


def _affinity(pod: Object, kind: str, *terms: Object) -> None:
    pod["spec"].setdefault("affinity", {})[kind] = {REQUIRED: list(terms)}


def _other(world: World, where: str, name: str = "inference", **labels: str) -> Object:
    world.hold(where, name, cpu="100m")
    world.others[-1]["metadata"]["labels"] = labels
    return world.others[-1]


@situation("unschedulable/together")
def the_pod_wants_to_be_with_a_cache_that_is_not_there(world: World) -> None:
    world.pending(0, 1)
    for pod in world.pods:
        _affinity(
            pod, "podAffinity", {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": HOST}
        )


@situation("unschedulable/together")
def the_cache_is_in_another_namespace(world: World) -> None:
    """A term without namespaces is about the pod's own."""
    world.pending(1)
    _other(world, "node-1", app="cache")
    _affinity(
        world.pods[1],
        "podAffinity",
        {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": HOST},
    )


@situation(CANNOT_TELL)
def the_cache_is_in_the_namespace_that_is_named(world: World) -> None:
    world.pending(1)
    _other(world, "node-1", app="cache")
    term = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": HOST, "namespaces": ["team-b"]}
    _affinity(world.pods[1], "podAffinity", term)


@situation(CANNOT_TELL, G5)
def the_first_of_a_series_that_wants_its_like(world: World) -> None:
    """Nobody of the job runs: the first pod may be anywhere."""
    world.pending(*range(4))
    for pod in world.pods:
        _affinity(pod, "podAffinity", {"labelSelector": _own(world), "topologyKey": ZONE})


@situation("unschedulable/together", G5)
def all_of_a_job_in_one_zone_and_the_zone_is_out_of_nodes(world: World) -> None:
    """The node that is free is in the other zone; in the first one all are the job's own."""
    world.pending(3)
    _two_zones(world, 1)
    for pod in world.pods:
        _affinity(pod, "podAffinity", {"labelSelector": _own(world), "topologyKey": ZONE})


@situation("unschedulable/apart")
def a_pod_of_others_wants_to_be_alone(world: World) -> None:
    """The rule is the other pod's: nothing in this one's spec says so."""
    world.pending(1)
    world.pods[0]["spec"]["nodeName"] = "node-0"
    for index in (0, 1):
        other = _other(world, f"node-{index}", f"alone-{index}", app="db")
        anywhere = {"matchExpressions": [{"key": "training.kubeflow.org/job-name", "operator": "Exists"}]}
        _affinity(
            other,
            "podAntiAffinity",
            {"labelSelector": anywhere, "topologyKey": HOST, "namespaceSelector": {}},
        )


@situation("unschedulable/apart", G5)
def one_pod_a_zone(world: World) -> None:
    world.pending(3)
    for pod in world.pods:
        _affinity(pod, "podAntiAffinity", {"labelSelector": _own(world), "topologyKey": ZONE})


@situation("unschedulable/apart")
def the_node_is_not_for_those_with_a_database(world: World) -> None:
    """By namespaces, and only one node is left."""
    world.pending(1)
    _other(world, "node-1", app="db")
    world.nodes[0]["spec"]["unschedulable"] = True
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": HOST, "namespaces": ["team-b"]}
    _affinity(world.pods[1], "podAntiAffinity", term)


@situation(CANNOT_TELL)
def the_others_rule_is_about_its_own_namespace(world: World) -> None:
    world.pending(1)
    for index in (0, 1):
        other = _other(world, f"node-{index}", f"alone-{index}", app="db")
        _affinity(other, "podAntiAffinity", {"labelSelector": {}, "topologyKey": HOST})


@situation("unschedulable/nvidia.com/gpu", G5)
def apart_and_the_last_node_is_taken(world: World) -> None:
    """Where the rule and the want of cards stop it, the cards are what is missing."""
    world.pending(3)
    world.hold("node-3", "notebook", gpu="8")
    for pod in world.pods:
        _affinity(pod, "podAntiAffinity", {"labelSelector": _own(world), "topologyKey": HOST})


# ---- ports of the host


def _host_port(spec: Object, port: int, **more: str) -> None:
    spec["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port, **more}]


@situation("unschedulable/ports")
def the_host_port_is_taken(world: World) -> None:
    world.pending(1)
    world.nodes = world.nodes[:1]
    for pod in world.pods:
        _host_port(pod["spec"], 23456)


@situation("unschedulable/ports")
def the_host_network_makes_every_port_one_of_the_host(world: World) -> None:
    world.pending(0, 1)
    for index in (0, 1):
        other = _other(world, f"node-{index}", f"exporter-{index}")
        other["spec"] |= {"hostNetwork": True}
        other["spec"]["containers"][0]["ports"] = [{"containerPort": 9100}]
        _host_port(world.pods[index]["spec"], 9100)


@situation(CANNOT_TELL)
def ports_of_other_protocols_and_addresses_are_others(world: World) -> None:
    world.pending(1)
    _host_port(_other(world, "node-1")["spec"], 23456, protocol="UDP")
    _host_port(_other(world, "node-1", "local")["spec"], 23456, hostIP="127.0.0.1")
    _host_port(world.pods[1]["spec"], 23456, hostIP="10.0.1.7")


# ---- volumes


@situation("unschedulable/volume")
def a_claim_that_one_pod_alone_may_mount(world: World) -> None:
    world.pending(1)
    world.objects["PersistentVolumeClaim"][0]["spec"]["accessModes"] = ["ReadWriteOncePod"]


@situation(CANNOT_TELL)
def a_claim_for_one_pod_that_nobody_has(world: World) -> None:
    """A pod of that name in another namespace has another claim, and this pod itself is nobody else."""
    world.pods = world.pods[:1]
    world.pending(0)
    world.objects["PersistentVolumeClaim"][0]["spec"]["accessModes"] = ["ReadWriteOncePod"]
    other = _other(world, "node-1")
    other["spec"]["volumes"] = [{"name": "x", "persistentVolumeClaim": {"claimName": "trainyard"}}]


@situation("unschedulable/zone")
def the_storage_class_makes_volumes_in_another_zone(world: World) -> None:
    """Not bound yet: the class says where it may be made."""
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"], claim["status"] = {"storageClassName": "gp3"}, {"phase": "Pending"}
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["eu-west-1c"]}]}]
    world.objects["StorageClass"][0]["allowedTopologies"] = terms


# ---- slices of cards


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
    """spec.resources stands instead of the containers' sum."""
    world.pending(0, 1)
    for pod in world.pods:
        pod["spec"]["resources"] = {"requests": {"memory": "900Gi"}}


# ---- devices claimed by Dynamic Resource Allocation


def _claimed(world: World, *, count: int = 8, free: int = 0, by_template: bool = True) -> None:
    """Every pod claims devices; those on the nodes are given to others but for `free` of each node."""
    for index, pod in enumerate(world.pods):
        named = (
            {"resourceClaimTemplateName": "eight"} if by_template else {"resourceClaimName": f"gpus-{index}"}
        )
        pod["spec"]["resourceClaims"] = [{"name": "gpus", **named}]
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
        pod["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": f"gpus-{index}"}]
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    world.objects["ResourceClaim"] = [
        {
            "metadata": {"name": f"gpus-{index}", "namespace": "team-a"},
            "spec": {"devices": {"requests": [request]}},
        }
        for index in range(len(world.pods))
    ]
    world.objects["ResourceClaimTemplate"] = [{"metadata": {"name": "eight"}}]
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    world.objects["DeviceClass"] = [
        {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]}}
    ]
    world.objects["ResourceSlice"] = []
    results = []
    for one in world.nodes:
        name = one["metadata"]["name"]
        devices = [{"name": f"gpu-{number}"} for number in range(8)]
        spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": {"name": name}, "devices": devices}
        world.objects["ResourceSlice"].append({"metadata": {"name": f"slice-{name}"}, "spec": spec})
        results += [
            {"driver": "gpu.nvidia.com", "pool": name, "device": device["name"]} for device in devices[free:]
        ]
    status = {"allocation": {"devices": {"results": results}}}
    world.objects["ResourceClaim"].append(
        {"metadata": {"name": "theirs", "namespace": "team-b"}, "status": status}
    )


@situation("unschedulable/resource-claim", G5)
def the_devices_are_claimed_by_others(world: World) -> None:
    world.pending(*range(4))
    _claimed(world)


@situation("unschedulable/resource-claim", G5)
def no_driver_has_published_devices(world: World) -> None:
    world.pending(*range(4))
    _claimed(world)
    world.objects["ResourceSlice"] = []


@situation("unschedulable/resource-claim", G5)
def devices_are_free_and_none_is_what_is_asked(world: World) -> None:
    world.pending(*range(4))
    _claimed(world, free=8)


@situation("unschedulable/resource-claim", G5)
def the_class_of_devices_does_not_exist(world: World) -> None:
    world.pending(*range(4))
    _claimed(world, free=8)
    world.objects["DeviceClass"] = []


@situation("unschedulable/resource-claim", G5)
def the_claim_of_devices_was_never_made(world: World) -> None:
    world.pending(*range(4))
    _claimed(world, by_template=False)
    world.objects["ResourceClaim"] = []


@situation("unschedulable/cpu", G5)
def the_claim_is_not_allocated_because_the_pod_has_no_room(world: World) -> None:
    """The scheduler allocates when it has found a node: here the processors are what is missing."""
    world.pending(*range(4))
    _claimed(world, free=8)
    for pod in world.pods:
        pod["spec"]["containers"][0]["resources"] |= {"requests": {"cpu": "500"}}


@situation("unschedulable/device-place", G5)
def the_claims_devices_are_on_a_node_that_is_not_the_pods(world: World) -> None:
    world.pending(*range(4))
    _claimed(world, free=8)
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-9"]}]}]
    for claim in world.objects["ResourceClaim"]:
        claim["status"] = {"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}


@situation(CANNOT_TELL)
def the_constraint_names_no_pods(world: World) -> None:
    world.pending(1)
    _spread(world, labelSelector=None)
