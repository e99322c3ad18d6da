"""Facts of a cluster from an account into its cluster.env."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws.account import Network, make_cluster, make_group, make_lustre, make_network
from tests.aws.conftest import Change, Gaps, Yard
from tools.aws.session import Session
from tools.cluster import cluster_env, discover
from tools.core.errors import UserError

ZONES = ["us-west-2a", "us-west-2b", "us-west-2c"]


def test_all_facts_of_an_eks_cluster_are_read(session: Session, change: Change) -> None:
    spec = change("gpu", FSX_FILE_SYSTEM_ID="fs-000", CLUSTER_NAME="gpu")
    network = make_network(session, ZONES)
    make_cluster(session, "gpu", network, "1.34")
    system = make_lustre(session, network, "us-west-2a")
    found = discover.discover(session, spec, None)
    expected = {
        "AWS_ACCOUNT_ID": "123456789012",
        "AWS_REGION": "us-west-2",
        "ECR_REGISTRY": "123456789012.dkr.ecr.us-west-2.amazonaws.com",
        "CLUSTER_NAME": "gpu",
        "KUBERNETES_VERSION": "1.34",
        "CLUSTER_VPC_ID": network.vpc,
        "ZONES": ",".join(ZONES),
        "CLUSTER_SUBNETS": ",".join(f"{zone}={network.subnets[zone]}" for zone in ZONES),
        "FSX_FILE_SYSTEM_ID": system["FileSystemId"],
        "FSX_CAPACITY_GIB": "1200",
    }
    assert expected.items() <= found.facts.items()
    assert network.group in found.facts["CLUSTER_SECURITY_GROUP_IDS"]
    assert not {"null", "None", ""} & set(found.facts.values())


def test_without_a_cluster_the_account_is_known(session: Session, change: Change) -> None:
    found = discover.discover(session, change("gpu"), None)
    assert found.facts["AWS_ACCOUNT_ID"] == "123456789012"
    assert "CLUSTER_VPC_ID" not in found.facts
    assert "no EKS cluster gpu" in found.missing[0]


def test_a_hyperpod_cluster_leads_to_its_eks_cluster(session: Session, gaps: Gaps, change: Change) -> None:
    network = make_network(session, ZONES[:2])
    make_cluster(session, "behind", network)
    arn = "arn:aws:eks:us-west-2:123456789012:cluster/behind"
    group = {
        "InstanceGroupName": "workers",
        "ExecutionRole": "arn:aws:iam::123456789012:role/hyperpod",
        "LifeCycleConfig": {"SourceS3Uri": "s3://scripts-of-ours/base", "OnCreate": "on_create.sh"},
    }
    reply = {
        "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
        "ClusterName": "ml",
        "ClusterStatus": "InService",
        "InstanceGroups": [group],
        "Orchestrator": {"Eks": {"ClusterArn": arn}},
    }
    gaps["sagemaker", "describe_cluster"] = reply
    found = discover.discover(session, change("gpu-hyperpod"), "ml")
    expected = {
        "ADOPTED": "true",
        "HYPERPOD_CLUSTER_NAME": "ml",
        "CLUSTER_NAME": "behind",
        "HYPERPOD_EXECUTION_ROLE_ARN": "arn:aws:iam::123456789012:role/hyperpod",
        "HYPERPOD_BUCKET": "scripts-of-ours",
    }
    assert expected.items() <= found.facts.items()
    gaps["sagemaker", "describe_cluster"] = {key: reply[key] for key in reply if key != "Orchestrator"}
    with pytest.raises(UserError, match="has no EKS cluster"):
        discover.discover(session, change("gpu-hyperpod"), "ml")


def test_what_is_not_in_service_is_reported(session: Session, gaps: Gaps, change: Change) -> None:
    """A HyperPod cluster and its instance groups, with their nodes."""
    make_cluster(session, "behind", make_network(session, ZONES[:2]))
    groups = [
        {"InstanceGroupName": "good", "Status": "InService", "CurrentCount": 2, "TargetCount": 2},
        {"InstanceGroupName": "short", "Status": "InService", "CurrentCount": 1, "TargetCount": 4},
        {"InstanceGroupName": "broken", "Status": "Degraded", "CurrentCount": 3, "TargetCount": 3},
    ]
    gaps["sagemaker", "describe_cluster"] = {
        "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
        "ClusterName": "ml",
        "ClusterStatus": "Updating",
        "InstanceGroups": groups,
        "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/behind"}},
    }
    found = discover.discover(session, change("gpu-hyperpod"), "ml")
    assert found.missing[:3] == [
        "the HyperPod cluster ml is Updating, not InService",
        "the instance group short is InService: 1 of 4 nodes",
        "the instance group broken is Degraded: 3 of 3 nodes",
    ]


def test_with_several_file_systems_none_is_chosen(session: Session, change: Change) -> None:
    network = make_network(session, ZONES[:2])
    make_cluster(session, "gpu", network)
    first, second = (make_lustre(session, network, "us-west-2a")["FileSystemId"] for _ in range(2))
    found = discover.discover(session, change("gpu", FSX_FILE_SYSTEM_ID="fs-000"), None)
    assert "FSX_FILE_SYSTEM_ID" not in found.facts
    assert any(first in line and second in line for line in found.missing)
    found = discover.discover(session, change("gpu", FSX_FILE_SYSTEM_ID=second), None)
    assert found.facts["FSX_FILE_SYSTEM_ID"] == second


def test_valid_facts_stay(session: Session, change: Change, gaps: Gaps) -> None:
    """Security groups of cluster.env stay if they exist. A file system of another VPC is not used."""
    network, other = make_network(session, ZONES[:2]), make_network(session, ZONES[:2], "10.9")
    make_cluster(session, "gpu", network)
    group = make_group(session, network.vpc, "files")
    away = make_lustre(session, other, "us-west-2a")["FileSystemId"]
    row = {"FileSystemId": away, "FileSystemType": "LUSTRE", "VpcId": other.vpc}  # which moto lacks
    gaps["fsx", "describe_file_systems"] = {"FileSystems": [row]}
    found = discover.discover(
        session, change("gpu", FSX_FILE_SYSTEM_ID=away, FSX_SECURITY_GROUP_IDS=group), None
    )
    assert found.facts["FSX_SECURITY_GROUP_IDS"] == group
    assert "FSX_FILE_SYSTEM_ID" not in found.facts
    assert any(
        f"{away} is in {other.vpc}, and the cluster is in {network.vpc}" in one for one in found.missing
    )
    found = discover.discover(session, change("gpu", FSX_SECURITY_GROUP_IDS="sg-0123456789abcdef0"), None)
    assert found.facts.get("FSX_SECURITY_GROUP_IDS") != "sg-0123456789abcdef0"


def test_the_subnet_with_most_addresses_is_chosen(session: Session, change: Change) -> None:
    network = make_network(session, ZONES[:2])
    block = {"VpcId": network.vpc, "CidrBlock": "10.0.64.0/20", "AvailabilityZone": "us-west-2a"}
    large = session.call("ec2", "create_subnet", **block)["Subnet"]["SubnetId"]
    block |= {"CidrBlock": "10.0.9.0/28"}
    small = session.call("ec2", "create_subnet", **block)["Subnet"]["SubnetId"]
    for number, subnets in enumerate(((small, large), (large, small))):
        wide = Network(network.vpc, dict(zip("ab", subnets, strict=True)), network.group)
        make_cluster(session, f"gpu{number}", wide)
        found = discover.discover(session, change("gpu", CLUSTER_NAME=f"gpu{number}"), None)
        assert found.facts["CLUSTER_SUBNETS"] == f"us-west-2a={large}"


def test_writing_keeps_comments_and_returns_changes(tmp_path: Path) -> None:
    path = tmp_path / "cluster.env"
    path.write_text("# first\nA=1\n\n# second\nB=2\n", encoding="utf-8")
    assert cluster_env.write(path, {"A": "1", "B": r"\1", "C": "x=y"}) == ["B", "C"]
    assert path.read_text(encoding="utf-8") == ("# first\nA=1\n\n# second\nB=\\1\n\n# Found in AWS.\nC=x=y\n")
    assert {name: fact.value for name, fact in cluster_env.read(path).items()} == {
        "A": "1",
        "B": r"\1",
        "C": "x=y",
    }
    assert cluster_env.write(path, {"A": "1"}) == []


def test_the_command_writes(moto: None, session: Session, yard: Yard, checkout: Path) -> None:
    make_cluster(session, "cpu-demo", make_network(session, ZONES[:2]))
    ran = yard("facts", "cpu-demo", "--write")
    assert ran.code == 0, ran.err
    facts = cluster_env.read(checkout / "clusters/cpu-demo/cluster.env")
    assert facts["FSX_SUBNET_ID"].value in facts["CLUSTER_SUBNETS"].value
    assert yard("config", "cpu-demo").code == 0
    assert yard("facts", "cpu-demo", "--write").err.count("changed nothing") == 1
