"""eksctl.yaml from the facts: valid by eksctl's schema, and refused where it cannot work."""

from __future__ import annotations

import copy
import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from tests.aws.conftest import Change, Gaps, Yard
from tests.aws.eksctl_schema import schema
from tools.aws.policies import Place
from tools.aws.session import Session
from tools.cells import kustomize
from tools.cells.kustomize import Renderer
from tools.cluster import eksctl, service_accounts
from tools.cluster import spec as specs
from tools.cluster.cluster_env import Fact
from tools.core import repo
from tools.core.errors import UserError
from tools.facts.eks import ADDONS, VERSIONS
from tools.facts.instances import INSTANCES, NEURON, NVIDIA
from tools.kube.manifests import parse
from tools.kube.quantity import amount

PLACE = Place("aws", "us-west-2", "111122223333")
CLUSTERS = ("cpu-demo", "gpu", "gpu-hyperpod", "trn1")
Object = dict[str, Any]


def committed(name: str) -> Object:
    found: Object = YAML(typ="safe", pure=True).load(repo.root() / "clusters" / name / eksctl.FILE)
    return found


def faults(document: Object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(schema()).iter_errors(document)]


@pytest.mark.parametrize("name", CLUSTERS)
def test_committed_files_are_up_to_date(name: str) -> None:
    spec = specs.load(repo.root(), name)
    assert (spec.directory / eksctl.FILE).read_text(encoding="utf-8") == eksctl.text(spec)


@pytest.mark.parametrize("name", CLUSTERS)
def test_files_match_the_schema_of_eksctl(name: str) -> None:
    assert faults(committed(name)) == []


def test_the_schema_reports_faults() -> None:
    """Control: a misspelt field and a wrong type."""
    document = copy.deepcopy(committed("gpu"))
    document["managedNodeGroups"][1]["efaEnable"] = True
    document["metadata"]["region"] = 2
    assert len(faults(document)) == 2


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_is_complete(name: str) -> None:
    """The content that every cluster must have."""
    document = committed(name)
    assert document["accessConfig"]["accessEntries"]
    assert "iam" not in document, "eksctl's roles would trust every cluster of the account"
    assert {one["version"] for one in document["addons"]} <= set(ADDONS[document["metadata"]["version"]].values())
    assert "eks-pod-identity-agent" in {one["name"] for one in document["addons"]}
    if name == "gpu-hyperpod":
        assert "managedNodeGroups" not in document
        return
    assert {one["name"] for one in document["addons"]} == set(ADDONS["1.35"])
    system, *groups = document["managedNodeGroups"]
    assert system["name"] == "system"
    assert groups
    for group in [system, *groups]:
        promised = ("privateNetworking", "disableIMDSv1", "disablePodIMDS", "volumeEncrypted")
        assert all(group[key] is True for key in promised), group["name"]
        assert group["nodeRepairConfig"] == {"enabled": True}
        assert "ssh" not in group


@pytest.mark.parametrize("name", CLUSTERS)
def test_node_groups_fit_their_instance_types(name: str) -> None:
    """EFA in one zone, RAID and taints follow from the table of instance types."""
    for group in committed(name).get("managedNodeGroups", [])[1:]:
        machine = INSTANCES[group["instanceType"]]
        assert group.get("efaEnabled", False) == (machine.efa > 0)
        assert machine.efa == 0 or len(group["availabilityZones"]) == 1
        node = YAML(typ="safe").load(group.get("overrideBootstrapCommand", "{}"))
        storage = node.get("spec", {}).get("instance", {}).get("localStorage")
        assert storage == ({"strategy": "RAID0"} if machine.nvme_gb else None)
        assert [one["key"] for one in group.get("taints", [])] == [one for one in [machine.device_resource] if one]


@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "gpu-hyperpod"])
def test_cells_find_nodes_for_all_their_pods(name: str, render: Renderer) -> None:
    """Compares manifests with eksctl.yaml: type, number, devices and EFA. HyperPod creates its own nodes."""
    groups = committed(name)["managedNodeGroups"]
    cells = (specs.load(repo.root(), name).get("CELLS") or "").split(",")
    assert cells
    for cell in cells:
        worker = _worker(render, cell)
        kinds = _kinds(worker["template"]["spec"])
        fits = [
            group
            for group in groups
            if group["instanceType"] in kinds or not kinds
            if group["maxSize"] >= worker["replicas"]
            if _asked(worker, "vpc.amazonaws.com/efa") <= INSTANCES[group["instanceType"]].efa
            if all(
                _asked(worker, resource) <= INSTANCES[group["instanceType"]].accelerators
                for resource in (NVIDIA, NEURON)
            )
        ]
        assert fits, f"{cell}: {worker['replicas']} of {kinds}"


@pytest.mark.parametrize("name", ["gpu", "gpu-hyperpod"])
def test_the_queue_fits_each_cell(name: str, render: Renderer) -> None:
    """A job that needs more than its queue has is never admitted, and only Kueue reports it."""
    spec = specs.load(repo.root(), name)
    for cell in (spec.get("CELLS") or "").split(","):
        worker = _worker(render, cell)
        for fact, resource, unit in (
            ("QUEUE_CPUS", "cpu", 1),
            ("QUEUE_MEMORY_GIB", "memory", 2**30),
            ("QUEUE_GPUS", NVIDIA, 1),
        ):
            wanted = worker["replicas"] * _asked(worker, resource)
            assert wanted <= int(spec.need(fact)) * unit, (cell, fact)


@pytest.fixture(scope="module")
def render() -> Renderer:
    return kustomize.ensure(repo.root(), print)


def _worker(renderer: Renderer, cell: str) -> Object:
    text = renderer.build(repo.root() / "overlays" / cell)
    found: Object = parse(text, cell).job()["spec"]["pytorchReplicaSpecs"]["Worker"]
    return found


def _kinds(pod: Object) -> list[str]:
    """Return the instance types that a pod requires, if any."""
    if "affinity" not in pod:
        return []
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    return list(expression["values"])


def _asked(worker: Object, resource: str) -> float:
    (container,) = worker["template"]["spec"]["containers"]
    return float(amount(container["resources"]["requests"].get(resource, 0)) or 0)


def test_a_capacity_block_has_its_market_type() -> None:
    (group,) = [one for one in committed("gpu")["managedNodeGroups"] if one["name"] == "p5"]
    assert group["instanceMarketOptions"] == {"marketType": "capacity-block"}
    target = group["capacityReservation"]["capacityReservationTarget"]
    assert target == {"capacityReservationID": "cr-0123456789abcdef0"}
    assert (group["minSize"], group["desiredCapacity"]) == (0, 0)


def test_the_cpu_tutorial_has_two_nodes() -> None:
    (group,) = [one for one in committed("cpu-demo")["managedNodeGroups"] if one["name"] == "cpu"]
    assert (group["instanceType"], group["desiredCapacity"], group["maxSize"]) == ("m5.2xlarge", 2, 2)


@pytest.mark.parametrize("name", CLUSTERS)
def test_pods_may_only_use_their_prefixes(name: str) -> None:
    """No action has a wildcard or deletes, and no object is outside the two prefixes."""
    for account in service_accounts.of(specs.load(repo.root(), name), PLACE):
        for statement in account.policy["Statement"]:
            for action in statement["Action"]:
                assert "*" not in action
                assert "Delete" not in action
            resources = statement["Resource"]
            for resource in [resources] if isinstance(resources, str) else resources:
                if statement["Action"] == ["s3:ListBucket"]:
                    assert statement["Condition"]["StringLike"]["s3:prefix"]
                elif ":s3:::" in resource:
                    assert re.match(r"arn:aws:s3:::example-training-data/(text|runs)/", resource)


BAD_FACTS = Path(__file__).with_name("bad_facts.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("row", [line for line in BAD_FACTS if not line.startswith("#")])
def test_what_cannot_work_is_refused(change: Change, row: str) -> None:
    text, said, hint = (part.strip() for part in row.split("|"))
    pairs = [one.strip().partition("=") for one in text.split(";")]
    facts = {name: value if equals else None for name, equals, value in pairs}
    with pytest.raises(UserError) as caught:
        eksctl.document(change("gpu", **facts))
    assert said in caught.value.message
    assert "cluster.env" in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.code == 2


def test_an_existing_network_is_used(change: Change) -> None:
    subnets = "us-west-2a=subnet-a,us-west-2b=subnet-b,us-west-2c=subnet-c"
    document = eksctl.document(change("gpu", VPC_ID="vpc-1", PRIVATE_SUBNETS=subnets))
    assert document["vpc"]["id"] == "vpc-1"
    assert document["vpc"]["subnets"]["private"]["us-west-2b"] == {"id": "subnet-b"}
    assert "availabilityZones" not in document
    assert faults(document) == []


@pytest.mark.parametrize(
    ("version", "day", "said"),
    [
        ("1.35", "2026-11-22", None),
        ("1.34", "2026-12-03", "extended support"),
        ("1.31", "2026-11-27", "ended all support"),
        ("1.40", "2026-11-22", "not in tools/facts"),
    ],
)
def test_support_of_a_version(change: Change, version: str, day: str, said: str | None) -> None:
    spec, today = change("gpu", KUBERNETES_VERSION=version), datetime.date.fromisoformat(day)
    try:
        remark = eksctl.support(spec, today)
    except UserError as problem:
        remark = problem.message
    assert (remark is None) if said is None else (said in str(remark))


def test_versions_are_supported_in_order() -> None:
    ends = [(row.standard_until, row.extended_until) for row in VERSIONS.values()]
    assert ends == sorted(ends)
    assert all(standard < extended for standard, extended in ends)


def test_the_command_writes_and_checks(yard: Yard, change: Change, checkout: Path) -> None:
    assert yard("config", "gpu", "--check").code == 0
    change("gpu", NODES_G5="g5.12xlarge 0-3 us-west-2a")
    stale = yard("config", "gpu", "--check")
    assert (stale.code, "is out of date" in stale.err) == (1, True)
    assert json.loads(yard("config", "gpu", "--json").out)["changed"] is True
    assert yard("config", "gpu", "--check").code == 0
    assert "maxSize: 3" in (checkout / "clusters/gpu/eksctl.yaml").read_text(encoding="utf-8")


def test_an_unknown_cluster_gives_the_nearest(yard: Yard, checkout: Path) -> None:
    ran = yard("config", "gpus")
    assert ran.code == 2
    assert "did you mean gpu?" in ran.err


def offer_versions(gaps: Gaps, **versions: str) -> None:
    """Let EKS offer these Kubernetes versions and one default version of each add-on."""
    rows = [{"clusterVersion": name, "versionStatus": status} for name, status in versions.items()]
    gaps["eks", "describe_cluster_versions"] = {"clusterVersions": rows}

    def addons(addonName: str, kubernetesVersion: str, **_: Any) -> Object:
        rows = [
            {"addonVersion": "v9-eksbuild.2", "compatibilities": [{"clusterVersion": kubernetesVersion}]},
            {
                "addonVersion": "v9-eksbuild.1",
                "compatibilities": [{"clusterVersion": kubernetesVersion, "defaultVersion": True}],
            },
        ]
        return {"addons": [{"addonName": addonName, "addonVersions": rows}]}

    gaps["eks", "describe_addon_versions"] = addons


def test_verify_passes(moto: None, gaps: Gaps, yard: Yard, change: Change, checkout: Path) -> None:
    """Zones and offerings are real data in moto; the versions of EKS are the test's."""
    offer_versions(gaps, **{"1.35": "STANDARD_SUPPORT"})
    change("cpu-demo", KUBERNETES_VERSION="1.35")
    ran = yard("config", "cpu-demo", "--verify")
    assert ran.code == 0, ran.err
    text = (checkout / "clusters/cpu-demo/eksctl.yaml").read_text(encoding="utf-8")
    assert text.count("v9-eksbuild.1") == 5
    assert "eksbuild.2" not in text


def test_verify_fails(moto: None, gaps: Gaps, yard: Yard, change: Change, checkout: Path) -> None:
    offer_versions(gaps, **{"1.35": "STANDARD_SUPPORT", "1.30": "UNSUPPORTED"})
    before = (checkout / "clusters/trn1/eksctl.yaml").read_text(encoding="utf-8")
    change("trn1", ZONES="us-west-2a,us-west-2b", NODES_TRN1="trn1.32xlarge 0-4 us-west-2a")
    ran = yard("config", "trn1", "--verify")
    assert (ran.code, "us-west-2a does not offer trn1.32xlarge" in ran.err) == (1, True), ran.err
    change("cpu-demo", ZONES="us-west-2a,us-west-2x")
    ran = yard("config", "cpu-demo", "--verify")
    assert (ran.code, "the account has no zone us-west-2x" in ran.err) == (1, True)
    change("cpu-demo", ZONES="us-west-2a,us-west-2b", KUBERNETES_VERSION="1.34")
    ran = yard("config", "cpu-demo", "--verify")
    assert (ran.code, "EKS does not offer 1.34" in ran.err, "1.35" in ran.err) == (1, True, True)
    assert (checkout / "clusters/trn1/eksctl.yaml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("region", "partition"), [("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn"), ("eu-west-1", "aws")]
)
def test_every_arn_is_of_the_regions_partition(change: Change, region: str, partition: str) -> None:
    """Policies, buckets, file systems and secrets in GovCloud and China."""
    zones = {"AWS_REGION": region, "ZONES": f"{region}a,{region}b", "CELLS": None}
    groups = dict.fromkeys(("NODES_G5", "NODES_P4D", "NODES_P5", "NODES_P5EN"))
    role = f"arn:{partition}:iam::111122223333:role/"
    roles = {"ADMIN_ROLE_ARN": f"{role}admin", "TEAM_ROLE_ARN": f"{role}team"}
    spec = change("gpu", **zones, **groups, **roles)
    assert Session(region).partition == spec.partition == partition
    place = Place(spec.partition, region, "111122223333")
    written = json.dumps([one.policy for one in service_accounts.of(spec, place)])
    arns = re.findall(r"arn:([\w-]+):", eksctl.text(spec) + written)
    assert set(arns) == {partition}, arns
    assert f"arn:{partition}:eks::aws:cluster-access-policy/" in eksctl.text(spec)


def test_every_region_that_boto3_knows_has_its_partition(change: Change) -> None:
    import boto3

    known = boto3.Session()
    spec = change("cpu-demo")
    for partition in known.get_available_partitions():
        for region in known.get_available_regions("eks", partition):
            found = specs.Spec(spec.directory, {"AWS_REGION": Fact(region, 1)})
            assert found.partition == partition, region
