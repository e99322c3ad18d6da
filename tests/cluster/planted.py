"""Situations on a real API server, scheduler and operator: what is planted, and the cause of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.api import Object
from tests.cluster.bed import CPU, G5, P4D, P5, TRN1, Bed
from tools.kube.manifests import name_of

Plant = Callable[[Bed], list[Object]]


@dataclass(frozen=True)
class Planted:
    """`plant` changes a cell's bed and returns the nodes to start; `why` must then say `cause`."""

    cause: str
    cell: str
    plant: Plant
    rare: bool


PLANTED: list[Planted] = []


def planted(cause: str, cell: str = CPU, *, rare: bool = False) -> Callable[[Plant], Plant]:
    """Add a situation."""

    def add(plant: Plant) -> Plant:
        PLANTED.append(Planted(cause, cell, plant, rare))
        return plant

    return add


def rare(cause: str, cell: str) -> Callable[[Plant], Plant]:
    """Add a situation that only `make test-cluster-all` plants."""
    return planted(cause, cell, rare=True)


@planted("healthy", G5)
def enough_nodes(bed: Bed) -> list[Object]:
    return bed.nodes()


@planted("unschedulable/nvidia.com/gpu", G5)
def one_node_too_few(bed: Bed) -> list[Object]:
    return bed.nodes(bed.replicas - 1)


@planted("unschedulable/nvidia.com/gpu", G5)
def device_plugin_missing(bed: Bed) -> list[Object]:
    return bed.nodes(room={"nvidia.com/gpu": "0"})


@planted("unschedulable/vpc.amazonaws.com/efa", P5)
def efa_plugin_missing(bed: Bed) -> list[Object]:
    return bed.nodes(room={"vpc.amazonaws.com/efa": "0"})


@planted("unschedulable/hugepages-2Mi", P5)
def no_huge_pages(bed: Bed) -> list[Object]:
    return bed.nodes(room={"hugepages-2Mi": "0"})


@planted("unschedulable/affinity", P5)
def another_instance_type(bed: Bed) -> list[Object]:
    return bed.nodes(kind="p4d.24xlarge")


@planted("unschedulable/taint", G5)
def nodes_of_another_team(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["taints"] = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    return nodes


@planted("unschedulable/cordoned", G5)
def cordoned(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["unschedulable"] = True
    return nodes


@planted("unschedulable/cpu", G5)
def processors_are_fewer_than_asked(bed: Bed) -> list[Object]:
    return bed.nodes(room={"cpu": "2"})


@planted("unschedulable/memory", G5)
def memory_is_less_than_asked(bed: Bed) -> list[Object]:
    return bed.nodes(room={"memory": "8Gi"})


@planted("unschedulable/pods", G5)
def no_room_for_a_pod(bed: Bed) -> list[Object]:
    return bed.nodes(room={"pods": "0"})


@planted("unschedulable/zone", G5)
def volume_in_another_zone(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "eu-west-1a"
    term = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1b"]}
    volume = next(one for one in bed.claim if one["kind"] == "PersistentVolume")
    volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    return nodes


@planted("unschedulable/selector")
def selector_that_no_node_has(bed: Bed) -> list[Object]:
    bed.spec["nodeSelector"] = {"node-group": bed.namespace}
    return bed.nodes()


@planted("unschedulable/apart", G5)
def two_pods_exclude_each_other(bed: Bed) -> list[Object]:
    labels = {"training.kubeflow.org/job-name": name_of(bed.job)}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    bed.spec["affinity"] |= {"podAntiAffinity": rule}
    bed.spec["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return bed.nodes(1)


@planted("claim-missing", G5)
def claim_never_made(bed: Bed) -> list[Object]:
    bed.claim = []
    return bed.nodes()


@planted("claim-pending", G5)
def storage_class_misspelt(bed: Bed) -> list[Object]:
    claim = next(one for one in bed.claim if one["kind"] == "PersistentVolumeClaim")
    claim["spec"].pop("volumeName")
    claim["spec"]["storageClassName"] = "fsx-lustre"
    bed.claim = [claim]
    return bed.nodes()


@planted("quota", G5)
def quota_of_gpus(bed: Bed) -> list[Object]:
    _quota(bed, {"requests.nvidia.com/gpu": "12"})
    return bed.nodes()


@planted("pod-security", G5)
def a_path_of_the_host(bed: Bed) -> list[Object]:
    bed.spec["volumes"].append({"name": "host", "hostPath": {"path": "/dev/shm"}})
    return bed.nodes()


@planted("serviceaccount-missing", G5)
def service_account_not_applied(bed: Bed) -> list[Object]:
    bed.objects.remove(next(one for one in bed.objects if one["kind"] == "ServiceAccount"))
    return bed.nodes()


@planted("refused", G5)
def restart_policy_misspelt(bed: Bed) -> list[Object]:
    bed.job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailur"
    return bed.nodes()


@planted("suspended", G5)
def suspended(bed: Bed) -> list[Object]:
    bed.job["spec"]["runPolicy"]["suspend"] = True
    return bed.nodes()


@planted("scheduler-absent", G5)
def a_scheduler_that_is_not_installed(bed: Bed) -> list[Object]:
    bed.spec["schedulerName"] = "volcano"
    return bed.nodes()


@planted("queue", G5)
def pods_are_gated(bed: Bed) -> list[Object]:
    bed.spec["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return bed.nodes()


# ---- more of each kind: make test-cluster-all plants these too


@rare("healthy", P5)
def enough_of_the_largest(bed: Bed) -> list[Object]:
    return bed.nodes()


@rare("healthy", TRN1)
def enough_with_neuron(bed: Bed) -> list[Object]:
    return bed.nodes()


@rare("healthy", G5)
def one_node_of_many_is_cordoned(bed: Bed) -> list[Object]:
    nodes = bed.nodes(bed.replicas + 1)
    nodes[0]["spec"]["unschedulable"] = True
    return nodes


@rare("healthy", G5)
def a_taint_that_only_prefers(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["taints"].append({"key": "team", "value": "vision", "effect": "PreferNoSchedule"})
    return nodes


@rare("healthy", G5)
def a_quota_with_room(bed: Bed) -> list[Object]:
    _quota(bed, {"requests.nvidia.com/gpu": "64", "pods": "40"})
    return bed.nodes()


@rare("healthy", G5)
def another_team_is_beside_it(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    bed.hold(nodes[0], cpu="1", memory="1Gi")
    return nodes


@rare("unschedulable/nvidia.com/gpu", G5)
def cards_are_taken(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    bed.hold(nodes[-1], gpu="1")
    return nodes


@rare("unschedulable/nvidia.com/gpu", P5)
def every_node_has_lost_one_card(bed: Bed) -> list[Object]:
    return bed.nodes(room={"nvidia.com/gpu": "7"})


@rare("unschedulable/vpc.amazonaws.com/efa", P5)
def fewer_interfaces_than_asked(bed: Bed) -> list[Object]:
    return bed.nodes(room={"vpc.amazonaws.com/efa": "1"})


@rare("unschedulable/vpc.amazonaws.com/efa", P4D)
def no_interface_on_an_older_machine(bed: Bed) -> list[Object]:
    return bed.nodes(room={"vpc.amazonaws.com/efa": "0"})


@rare("unschedulable/aws.amazon.com/neuron", TRN1)
def neuron_plugin_missing(bed: Bed) -> list[Object]:
    return bed.nodes(room={"aws.amazon.com/neuron": "0"})


@rare("unschedulable/hugepages-2Mi", P5)
def too_few_huge_pages(bed: Bed) -> list[Object]:
    return bed.nodes(room={"hugepages-2Mi": "512Mi"})


@rare("unschedulable/memory", P5)
def memory_of_a_smaller_machine(bed: Bed) -> list[Object]:
    return bed.nodes(room={"memory": "64Gi"})


@rare("unschedulable/cpu", G5)
def processors_are_taken(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    bed.hold(nodes[0], cpu="150")
    return nodes


@rare("unschedulable/memory", G5)
def memory_is_taken(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    bed.hold(nodes[0], memory="600Gi")
    return nodes


@rare("unschedulable/pods", G5)
def a_node_is_full_of_pods(bed: Bed) -> list[Object]:
    nodes = bed.nodes(room={"pods": "1"})
    for node in nodes:
        bed.hold(node, cpu="1m")
    return nodes


@rare("unschedulable/ephemeral-storage", G5)
def scratch_is_larger_than_the_disk(bed: Bed) -> list[Object]:
    for kind in ("requests", "limits"):
        bed.spec["containers"][0]["resources"][kind]["ephemeral-storage"] = "500Gi"
    return bed.nodes()


@rare("unschedulable/taint", G5)
def spot_nodes_are_about_to_go(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["taints"] = [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoExecute"}]
    return nodes


@rare("unschedulable/cordoned", P5)
def all_are_cordoned(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["spec"]["unschedulable"] = True
    return nodes


@rare("unschedulable/selector", P5)
def nodes_are_taken_out_for_their_health(bed: Bed) -> list[Object]:
    label = "sagemaker.amazonaws.com/node-health-status"
    bed.spec["nodeSelector"] = {label: "Schedulable"}
    nodes = bed.nodes()
    for node in nodes:
        node["metadata"]["labels"][label] = "UnschedulablePendingReplacement"
    return nodes


@rare("unschedulable/affinity", P5)
def only_small_machines(bed: Bed) -> list[Object]:
    return bed.nodes(kind="m5.4xlarge")


@rare("unschedulable/affinity", G5)
def a_zone_without_nodes(bed: Bed) -> list[Object]:
    rules = bed.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in rules["nodeSelectorTerms"]:
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1c"]}
        term["matchExpressions"].append(zone)
    return bed.nodes()


@rare("unschedulable/zone", P5)
def the_volumes_zone_has_no_node(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    for node in nodes:
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "us-east-2b"
    term = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-2a"]}
    volume = next(one for one in bed.claim if one["kind"] == "PersistentVolume")
    volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    return nodes


@rare("claim-pending", G5)
def claim_larger_than_every_volume(bed: Bed) -> list[Object]:
    """Not a claim that names its volume: those two are bound whatever their sizes."""
    _claim(bed)["spec"]["resources"]["requests"]["storage"] = "900Ti"
    _claim(bed)["spec"].pop("volumeName")
    next(one for one in bed.claim if one["kind"] == "PersistentVolume")["spec"].pop("claimRef")
    return bed.nodes()


@rare("claim-pending", P5)
def claim_names_a_volume_that_is_not_there(bed: Bed) -> list[Object]:
    bed.claim = [_claim(bed)]
    bed.claim[0]["spec"]["volumeName"] = f"{bed.namespace}-absent"
    return bed.nodes()


@rare("claim-missing", P5)
def claim_of_another_name(bed: Bed) -> list[Object]:
    _claim(bed)["metadata"]["name"] = "training"
    return bed.nodes()


@rare("scheduler-absent", P5)
def another_scheduler_that_is_not_installed(bed: Bed) -> list[Object]:
    bed.spec["schedulerName"] = "kai-scheduler"
    return bed.nodes()


@rare("queue", P5)
def gates_of_a_team(bed: Bed) -> list[Object]:
    bed.spec["schedulingGates"] = [{"name": "example.com/budget"}]
    return bed.nodes()


@rare("queue", G5)
def queue_that_nobody_serves(bed: Bed) -> list[Object]:
    bed.job["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "research"
    bed.job["spec"]["runPolicy"]["suspend"] = True
    return bed.nodes()


@rare("quota", G5)
def quota_of_pods(bed: Bed) -> list[Object]:
    _quota(bed, {"pods": str(bed.replicas - 1)})
    return bed.nodes()


@rare("quota", G5)
def quota_of_processors(bed: Bed) -> list[Object]:
    _quota(bed, {"requests.cpu": "4"})
    return bed.nodes()


@rare("quota", P5)
def quota_of_memory(bed: Bed) -> list[Object]:
    _quota(bed, {"requests.memory": "100Gi"})
    return bed.nodes()


@rare("refused", G5)
def limit_range_is_exceeded(bed: Bed) -> list[Object]:
    limits = [{"type": "Container", "max": {"memory": "2Gi"}}]
    metadata = {"name": "small"}
    item = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
    bed.kube.put([item], bed.namespace)
    return bed.nodes()


@rare("refused", G5)
def priority_class_does_not_exist(bed: Bed) -> list[Object]:
    bed.spec["priorityClassName"] = "research-high"
    return bed.nodes()


@rare("refused", G5)
def runtime_class_does_not_exist(bed: Bed) -> list[Object]:
    bed.spec["runtimeClassName"] = "nvidia-legacy"
    return bed.nodes()


@rare("refused", G5)
def a_policy_of_the_cluster_says_no(bed: Bed) -> list[Object]:
    """Kubernetes' own policies, without a webhook. They take effect shortly after their creation."""
    name = f"{bed.namespace}-registry"
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}}}
    kinds = ["pods", "podtemplates"]  # a template is what can be tried without being made
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": kinds}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "images come from our registry"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": place}
    group = "admissionregistration.k8s.io/v1"
    for kind, body in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding)):
        bed.everywhere({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": body})
    pod = {
        "metadata": {"labels": {}},
        "spec": {"containers": [{"name": "probe", "image": "localhost/probe:1"}]},
    }
    probe = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "probe"}, "template": pod}

    def in_force() -> bool:
        words = ("create", "--dry-run=server", f"--namespace={bed.namespace}", "-f", "-")
        return "our registry" in bed.kube.call(*words, given=json.dumps(probe)).err

    bed.kube.wait("the policy to be in force", in_force, 60)
    return bed.nodes()


@rare("webhook", G5)
def webhook_without_endpoints(bed: Bed) -> list[Object]:
    _webhook(bed, {"service": {"name": "policy", "namespace": bed.namespace, "path": "/validate"}})
    return bed.nodes()


@rare("webhook", G5)
def webhook_refuses_connections(bed: Bed) -> list[Object]:
    _webhook(bed, {"url": "https://127.0.0.1:1/validate"})
    return bed.nodes()


@rare("pod-security", G5)
def privileged_for_the_devices(bed: Bed) -> list[Object]:
    bed.spec["containers"][0]["securityContext"] = {"privileged": True}
    return bed.nodes()


@rare("pod-security", P5)
def the_hosts_network_for_speed(bed: Bed) -> list[Object]:
    bed.spec["hostNetwork"] = True
    return bed.nodes()


@rare("pod-security", G5)
def the_operators_own_container_is_not_restricted(bed: Bed) -> list[Object]:
    """With a Master, the operator adds a container without a security context to the workers."""
    replicas = bed.job["spec"]["pytorchReplicaSpecs"]
    replicas["Master"] = copy.deepcopy(replicas["Worker"]) | {"replicas": 1}
    bed.job["spec"].pop("elasticPolicy")
    return bed.nodes(bed.replicas + 1)


def _claim(bed: Bed) -> Object:
    return next(one for one in bed.claim if one["kind"] == "PersistentVolumeClaim")


def _quota(bed: Bed, hard: dict[str, str]) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team"},
        "spec": {"hard": hard},
    }
    bed.kube.put([quota], bed.namespace)


def _webhook(bed: Bed, client: Object) -> None:
    """Let a webhook that does not exist decide whether this namespace's pods are admitted."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "pods.policy.example",
        "clientConfig": client,
        "rules": [pods],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "timeoutSeconds": 2,
    }
    bed.everywhere(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"{bed.namespace}-policy"},
            "webhooks": [hook],
        }
    )
