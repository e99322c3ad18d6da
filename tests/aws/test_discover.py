"""Facts of a cluster from an account into its cluster.env."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws.account import Network, make_cluster, make_group, make_lustre, make_network
from tests.aws.conftest import Change, Gaps, Yard
from tools.aws.session import Session
from tools.cells import kustomize
from tools.cluster import cluster_directory, cluster_env, discover, platform
from tools.cluster import spec as specs
from tools.cluster.discover import Found
from tools.cluster.ownership import Row
from tools.cluster.snapshot import Snapshot
from tools.core import repo
from tools.core.errors import UserError

ZONES = ["us-west-2a", "us-west-2b", "us-west-2c"]


def test_all_facts_of_an_eks_cluster_are_read(session: Session, change: Change) -> None:
    spec = change("gpu", FSX_FILE_SYSTEM_ID="fs-000", CLUSTER_NAME="gpu")
    network = make_network(session, ZONES)
    make_cluster(session, "gpu", network, "1.34")
    system = make_lustre(session, network, "us-west-2a")
    found, _ = discover.discover(session, spec, "gpu")
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


def test_a_cluster_that_does_not_exist_is_an_error_with_the_nearest_name(session: Session, change: Change) -> None:
    make_cluster(session, "gpu", make_network(session, ZONES[:2]))
    with pytest.raises(UserError, match="no EKS cluster gpus in us-west-2") as caught:
        discover.discover(session, change("gpu"), "gpus")
    assert caught.value.hint == "did you mean gpu?"


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
    found, _ = discover.discover(session, change("gpu-hyperpod"), None, "ml")
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
        discover.discover(session, change("gpu-hyperpod"), None, "ml")


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
    found, _ = discover.discover(session, change("gpu-hyperpod"), None, "ml")
    assert found.missing[:3] == [
        "the HyperPod cluster ml is Updating, not InService",
        "the instance group short is InService: 1 of 4 nodes",
        "the instance group broken is Degraded: 3 of 3 nodes",
    ]


def test_with_several_file_systems_none_is_chosen(session: Session, change: Change) -> None:
    network = make_network(session, ZONES[:2])
    make_cluster(session, "gpu", network)
    first, second = (make_lustre(session, network, "us-west-2a")["FileSystemId"] for _ in range(2))
    found, _ = discover.discover(session, change("gpu", FSX_FILE_SYSTEM_ID="fs-000"), "gpu")
    assert "FSX_FILE_SYSTEM_ID" not in found.facts
    assert any(first in line and second in line for line in found.missing)
    found, _ = discover.discover(session, change("gpu", FSX_FILE_SYSTEM_ID=second), "gpu")
    assert found.facts["FSX_FILE_SYSTEM_ID"] == second


def test_valid_facts_stay(session: Session, change: Change, gaps: Gaps) -> None:
    """Security groups of cluster.env stay if they exist. A file system of another VPC is not used."""
    network, other = make_network(session, ZONES[:2]), make_network(session, ZONES[:2], "10.9")
    make_cluster(session, "gpu", network)
    group = make_group(session, network.vpc, "files")
    away = make_lustre(session, other, "us-west-2a")["FileSystemId"]
    row = {"FileSystemId": away, "FileSystemType": "LUSTRE", "VpcId": other.vpc}  # which moto lacks
    gaps["fsx", "describe_file_systems"] = {"FileSystems": [row]}
    found, _ = discover.discover(session, change("gpu", FSX_FILE_SYSTEM_ID=away, FSX_SECURITY_GROUP_IDS=group), "gpu")
    assert found.facts["FSX_SECURITY_GROUP_IDS"] == group
    assert "FSX_FILE_SYSTEM_ID" not in found.facts
    assert any(f"{away} is in {other.vpc}, and the cluster is in {network.vpc}" in one for one in found.missing)
    found, _ = discover.discover(session, change("gpu", FSX_SECURITY_GROUP_IDS="sg-0123456789abcdef0"), "gpu")
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
        found, _ = discover.discover(session, change("gpu"), f"gpu{number}")
        assert found.facts["CLUSTER_SUBNETS"] == f"us-west-2a={large}"


def test_writing_keeps_comments(tmp_path: Path) -> None:
    text = "# first\nA=1\n\n# second\nB=2\n"
    new = cluster_env.updated(text, {"A": "1", "B": r"\1", "C": "x=y"})
    assert new == "# first\nA=1\n\n# second\nB=\\1\n\n# Found by `yard cluster init`.\nC=x=y\n"
    path = tmp_path / "cluster.env"
    path.write_text(new, encoding="utf-8")
    facts = {name: fact.value for name, fact in cluster_env.read(path).items()}
    assert facts == {"A": "1", "B": r"\1", "C": "x=y"}
    assert cluster_env.updated(new, {"A": "1"}) == new


def test_init_adds_to_a_directory_only_with_yes(
    moto: None, session: Session, yard: Yard, checkout: Path, no_context: None
) -> None:
    make_cluster(session, "cpu-demo", make_network(session, ZONES[:2]))
    path = checkout / "clusters/cpu-demo/cluster.env"
    before = path.read_text(encoding="utf-8")
    ran = yard("init", "cpu-demo", "--eks", "cpu-demo")
    assert ran.code == 1
    assert "+CLUSTER_VPC_ID=vpc-" in ran.out
    assert path.read_text(encoding="utf-8") == before, "without --yes nothing is written"
    ran = yard("init", "cpu-demo", "--eks", "cpu-demo", "--yes")
    assert ran.code == 0, ran.err
    facts = cluster_env.read(path)
    assert facts["FSX_SUBNET_ID"].value in facts["CLUSTER_SUBNETS"].value
    kept = [line for line in before.splitlines() if line.startswith(("#", "NODES_", "S3_", "CELLS", "TEAM_"))]
    assert set(kept) <= set(path.read_text(encoding="utf-8").splitlines()), "nothing is lost"
    assert yard("config", "cpu-demo").code == 0
    again = yard("init", "cpu-demo", "--eks", "cpu-demo")
    assert (again.code, again.out) == (0, "clusters/cpu-demo: up to date\n")


def test_init_writes_a_new_directory_that_every_command_reads(
    moto: None, session: Session, gaps: Gaps, yard: Yard, checkout: Path, no_context: None
) -> None:
    """Groups of nodes become facts; one whose type is unknown becomes a comment."""
    network = make_network(session, ZONES[:2])
    make_cluster(session, "theirs", network)
    row: Row = {"FileSystemId": "fs-0123456789abcdef0", "FileSystemType": "LUSTRE", "VpcId": network.vpc}
    row |= {"StorageCapacity": 1200, "LustreConfiguration": {"MountName": "abcd"}}  # which moto lacks
    gaps["fsx", "describe_file_systems"] = {"FileSystems": [row]}
    for name, kinds, zones in (
        ("cpu", ["m5.2xlarge"], ZONES[:2]),
        ("p5-big", ["p5.48xlarge"], ZONES[:1]),
        ("spread", ["p5.48xlarge"], ZONES[:2]),
        ("mixed", ["m5.large", "m5.xlarge"], ZONES[:1]),
    ):
        session.call(
            "eks", "create_nodegroup", clusterName="theirs", nodegroupName=name, instanceTypes=kinds,
            subnets=[network.subnets[zone] for zone in zones], nodeRole="arn:aws:iam::123456789012:role/node",
            scalingConfig={"minSize": 0, "maxSize": 4, "desiredSize": 1},
        )  # fmt: skip
    ran = yard("init", "lab", "--eks", "theirs", "--region", "us-west-2", "-n", "team-a")
    assert ran.code == 0, ran.err
    spec = specs.load(checkout, "lab")
    assert (spec.name, spec.namespace, spec.adopted) == ("theirs", "team-a", True)
    groups = {one.name: (one.instance.name, one.least, one.most, one.zones) for one in spec.groups}
    assert groups == {
        "cpu": ("m5.2xlarge", 0, 4, ("us-west-2a", "us-west-2b")),
        "p5-big": ("p5.48xlarge", 0, 4, ("us-west-2a",)),
    }
    text = (checkout / "clusters/lab/cluster.env").read_text(encoding="utf-8")
    assert "# NODES_SPREAD is unknown: nodes of p5.48xlarge use EFA, and their one zone is unknown" in text
    assert "# NODES_MIXED is unknown: several types" in text
    assert "base/storage/fsx-static" in (checkout / "clusters/lab/storage/kustomization.yaml").read_text()
    assert "null" not in text
    renderer = kustomize.ensure(repo.root(), print)
    rendered = platform.render(checkout, platform.load(checkout, "lab/storage"), renderer)
    assert f"namespace: {spec.namespace}" in rendered


def test_init_numbers_machines_anew_and_names_the_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is gone leaves no line behind; where nodes are not seen, lines stay."""
    monkeypatch.setattr(repo, "project", lambda: tmp_path)
    monkeypatch.setattr(repo, "is_checkout", lambda: False)
    directory = tmp_path / "clusters/lab"
    directory.mkdir(parents=True)
    before = "TEAM_NAMESPACE=a\nMACHINES_1=1 cpu=1\nMACHINES_2=1 cpu=2\nMACHINES_POOL=1 cpu=3\n"
    (directory / "cluster.env").write_text(before, encoding="utf-8")
    seen, found = Snapshot({"nodes": []}, {}), Found({"MACHINES_1": "1 cpu=2"})
    after = before.replace("MACHINES_1=1 cpu=1\nMACHINES_2=1 cpu=2\n", "MACHINES_1=1 cpu=2\n")
    assert cluster_directory.texts(directory, found, seen, "x") == {"cluster.env": after}
    assert cluster_directory.texts(directory, Found(), Snapshot({}, {"nodes": "forbidden"}), "x") == {}
    with pytest.raises(UserError, match=r"^clusters/lab/cluster\.env:2: MACHINES_1=two: two is not a number"):
        cluster_directory.write(directory, {"cluster.env": before.replace("=1 cpu=1", "=two")})
    assert (directory / "cluster.env").read_text(encoding="utf-8") == before


def test_init_refuses_names_and_contradictions(yard: Yard, checkout: Path) -> None:
    for words, said in (
        (("../x",), "is not a name for a cluster"),
        (("lab", "--eks", "a", "--hyperpod", "b"), "give one of them"),
    ):
        ran = yard("init", *words)
        assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not (checkout / "clusters/lab").exists()


@pytest.fixture
def no_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
