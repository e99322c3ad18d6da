"""Situations on a real API server, scheduler and operator: what is planted, and the cause of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.cluster.api import Object
from tests.cluster.bed import CPU, G5, P5, Bed
from tests.job.situations.steps import changed
from tools.kube.manifests import name_of

Plant = Callable[[Bed], list[Object]]


@dataclass(frozen=True)
class Planted:
    """`plant` changes a cell's bed and returns the nodes to start; `why` must then say `cause`."""

    name: str
    cause: str
    cell: str
    plant: Plant
    rare: bool


PLANTED: list[Planted] = []


def planted(cause: str, cell: str = CPU, *, rare: bool = False) -> Callable[[Plant], Plant]:
    """Add a situation."""

    def add(plant: Plant) -> Plant:
        PLANTED.append(Planted(plant.__name__, cause, cell, plant, rare))
        return plant

    return add


def rare(cause: str, cell: str) -> Callable[[Plant], Plant]:
    """Add a situation that only `make test-cluster-all` plants."""
    return planted(cause, cell, rare=True)


@planted("unschedulable/nvidia.com/gpu", G5)
def one_node_too_few(bed: Bed) -> list[Object]:
    return bed.nodes(bed.replicas - 1)


@planted("unschedulable/zone", G5)
def volume_in_another_zone(bed: Bed) -> list[Object]:
    return _zones(bed, nodes="eu-west-1a", volume="eu-west-1b")


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
    bed.claim = [_claim(bed)]
    bed.claim[0]["spec"].pop("volumeName")
    bed.claim[0]["spec"]["storageClassName"] = "fsx-lustre"
    return bed.nodes()


@planted("pod-security", G5)
def a_path_of_the_host(bed: Bed) -> list[Object]:
    bed.spec["volumes"].append({"name": "host", "hostPath": {"path": "/dev/shm"}})
    return bed.nodes()


@planted("serviceaccount-missing", G5)
def service_account_not_applied(bed: Bed) -> list[Object]:
    bed.objects.remove(next(one for one in bed.objects if one["kind"] == "ServiceAccount"))
    return bed.nodes()


def _changed(bed: Bed, job: Object, spec: Object, node: Object, quota: dict[str, str], **nodes: Any) -> list[Object]:
    """Change the bed as a row of planted.yaml says."""
    if quota:
        _quota(bed, quota)
    bed.job |= changed(bed.job, job)
    bed.spec.update(changed(bed.spec, spec))
    return [changed(one, node) for one in bed.nodes(**nodes)]


for _name, _row in YAML(typ="safe", pure=True).load(Path(__file__).with_suffix(".yaml")).items():
    _cause, _cell, _rare = _row.pop("cause"), _row.pop("cell", "cpu/llama-tiny"), _row.pop("rare", False)
    _plant = partial(_changed, **{"job": {}, "spec": {}, "node": {}, "quota": {}, **_row})
    PLANTED.append(Planted(_name, _cause, f"overlays/{_cell}", _plant, _rare))


# ---- more of each kind: make test-cluster-all plants these too


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
def another_team_is_beside_it(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    bed.hold(nodes[0], cpu="1", memory="1Gi")
    return nodes


@rare("unschedulable/nvidia.com/gpu", G5)
def cards_are_taken(bed: Bed) -> list[Object]:
    nodes = bed.nodes()
    bed.hold(nodes[-1], gpu="1")
    return nodes


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


@rare("unschedulable/selector", P5)
def nodes_are_taken_out_for_their_health(bed: Bed) -> list[Object]:
    label = "sagemaker.amazonaws.com/node-health-status"
    bed.spec["nodeSelector"] = {label: "Schedulable"}
    nodes = bed.nodes()
    for node in nodes:
        node["metadata"]["labels"][label] = "UnschedulablePendingReplacement"
    return nodes


@rare("unschedulable/affinity", G5)
def a_zone_without_nodes(bed: Bed) -> list[Object]:
    rules = bed.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in rules["nodeSelectorTerms"]:
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1c"]}
        term["matchExpressions"].append(zone)
    return bed.nodes()


@rare("unschedulable/zone", P5)
def the_volumes_zone_has_no_node(bed: Bed) -> list[Object]:
    return _zones(bed, nodes="us-east-2b", volume="us-east-2a")


@rare("claim-pending", G5)
def claim_larger_than_every_volume(bed: Bed) -> list[Object]:
    """Not a claim that names its volume: those two are bound whatever their sizes."""
    _claim(bed)["spec"]["resources"]["requests"]["storage"] = "900Ti"
    _claim(bed)["spec"].pop("volumeName")
    _volume(bed)["spec"].pop("claimRef")
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


@rare("quota", G5)
def quota_of_pods(bed: Bed) -> list[Object]:
    _quota(bed, {"pods": str(bed.replicas - 1)})
    return bed.nodes()


@rare("refused", G5)
def limit_range_is_exceeded(bed: Bed) -> list[Object]:
    limits = [{"type": "Container", "max": {"memory": "2Gi"}}]
    metadata = {"name": "small"}
    item = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
    bed.kube.put([item], bed.namespace)
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


@rare("pod-security", G5)
def the_operators_own_container_is_not_restricted(bed: Bed) -> list[Object]:
    """With a Master, the operator adds a container without a security context to the workers."""
    replicas = bed.job["spec"]["pytorchReplicaSpecs"]
    replicas["Master"] = copy.deepcopy(replicas["Worker"]) | {"replicas": 1}
    bed.job["spec"].pop("elasticPolicy")
    return bed.nodes(bed.replicas + 1)


def _claim(bed: Bed) -> Object:
    return next(one for one in bed.claim if one["kind"] == "PersistentVolumeClaim")


def _volume(bed: Bed) -> Object:
    return next(one for one in bed.claim if one["kind"] == "PersistentVolume")


def _zones(bed: Bed, nodes: str, volume: str) -> list[Object]:
    """Put the nodes into one zone and the volume into another."""
    term = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [volume]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    _volume(bed)["spec"]["nodeAffinity"] = {"required": required}
    labels = {"topology.kubernetes.io/zone": nodes}
    return [changed(one, {"metadata": {"labels": labels}}) for one in bed.nodes()]


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
