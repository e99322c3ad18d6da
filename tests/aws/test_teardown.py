"""Cost and deletion in an account that has other clusters too: ours is deleted in order, theirs stay."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.aws.account import (
    ROLE,
    make_cluster,
    make_group,
    make_lustre,
    make_network,
    make_nodes,
    make_stack,
    tag,
)
from tests.aws.conftest import Change, Gaps, Yard, refusal
from tests.aws.eks_state import Access, Associations
from tools.aws import policies
from tools.aws.session import Session
from tools.cluster import inventory, ownership, remains, teardown
from tools.cluster.spec import Spec

TAG = [{"Key": "trainyard/cluster", "Value": "us-west-2/cpu-demo"}]
POLICY = json.dumps(policies.reader(policies.Bucket("bucket", "123456789012", "aws"), "text/"))
ORDER = ["node group", "instance", "instance", "cluster", "network interface", "security group"]
ORDER += ["stack", "stack", "role"]
ACCOUNT = "123456789012"


def marks(owner: str, region: str = "us-west-2") -> dict[str, str]:
    return {"trainyard/cluster": f"{region}/{owner}", "trainyard/team": "training"}


def make_role(session: Session, owner: str, account: str, region: str = "us-west-2") -> str:
    """Create the role of a service account, as `yard cluster identity` does."""
    place = policies.Place("aws", region, ACCOUNT)
    role = ownership.role_name(place, owner, "training", "training", account)
    tags = ownership.pairs({**marks(owner, region), "trainyard/service-account": f"training/{account}"})
    session.call("iam", "create_role", RoleName=role, AssumeRolePolicyDocument="{}", Tags=tags)
    session.call("iam", "put_role_policy", RoleName=role, PolicyName="trainyard", PolicyDocument=POLICY)
    return role


def populate(session: Session, owner: str) -> str:
    """Create a cluster called `owner` with everything that belongs to it; return its VPC.

    Only cpu-demo is ours.
    """
    tags, region = marks(owner, session.region), session.region
    zones = [f"{region}a", f"{region}b"]
    cidr = "10.0" if owner == "cpu-demo" else "10.9"
    vpc = make_stack(session, f"eksctl-{owner}-cluster", cidr, **tags)
    make_stack(session, f"eksctl-{owner}-nodegroup-cpu", **tags)
    network = make_network(session, zones, cidr, vpc)
    made_by = {ownership.STACK_TAG: f"eksctl-{owner}-cluster"}
    make_cluster(session, owner, network, **tags, **made_by)
    subnets = list(network.subnets.values())
    group = {"clusterName": owner, "nodegroupName": "cpu", "nodeRole": ROLE, "subnets": subnets}
    session.call("eks", "create_nodegroup", **group, tags=tags)
    make_nodes(session, "m5.2xlarge", 2, network, zones[0], **tags)
    name = f"{owner}-{uuid.uuid4().hex}"  # an earlier one stays
    data = {"LaunchTemplateName": name, "LaunchTemplateData": {"ImageId": "ami-12c6146b"}}
    template = session.call("ec2", "create_launch_template", **data)
    tag(session, template["LaunchTemplate"]["LaunchTemplateId"], **tags)
    made = session.call("ec2", "create_network_interface", SubnetId=network.subnets[zones[0]])
    tag(session, made["NetworkInterface"]["NetworkInterfaceId"], **tags)
    volume = session.call("ec2", "create_volume", Size=100, VolumeType="gp3", AvailabilityZone=zones[0])
    tag(session, volume["VolumeId"], **tags)
    make_group(session, network.vpc, "extra", **tags)
    make_role(session, owner, "cpu-llama-tiny-train", region)
    team = {"trainyard/team": "training" if owner == "cpu-demo" else "theirs"}
    make_lustre(session, network, zones[0], **team)
    return vpc


def picture(session: Session) -> dict[str, Any]:
    """Return everything in the account."""
    instances = [
        (one["InstanceId"], one["State"]["Name"], one.get("Tags"))
        for row in session.call("ec2", "describe_instances")["Reservations"]
        for one in row["Instances"]
    ]
    found = {
        "clusters": session.call("eks", "list_clusters")["clusters"],
        "instances": [one for one in instances if one[1] != "terminated"],
        "stacks": [one["StackName"] for one in session.pages("cloudformation", "describe_stacks", "Stacks")],
        "roles": [one["RoleName"] for one in session.pages("iam", "list_roles", "Roles")],
        "files": [row["FileSystemId"] for row in session.pages("fsx", "describe_file_systems", "FileSystems")],
    }
    for name, key, number in (
        ("launch_templates", "LaunchTemplates", "LaunchTemplateId"),
        ("network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
        ("volumes", "Volumes", "VolumeId"),
        ("security_groups", "SecurityGroups", "GroupId"),
        ("subnets", "Subnets", "SubnetId"),
        ("vpcs", "Vpcs", "VpcId"),
    ):
        found[name] = sorted(one[number] for one in session.call("ec2", f"describe_{name}")[key])
    return found


@pytest.fixture
def spec(change: Change, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    return change("cpu-demo")


def test_what_stays_is_listed_with_its_price_and_never_deleted(
    session: Session, spec: Spec, change: Change, gaps: Gaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours and what other clusters own: only what names this cluster is listed, and nothing of it is deleted."""
    spec = change("cpu-demo", S3_BUCKET="checkpoints-of-the-team", S3_RUNS_PREFIX="runs/")
    network = make_network(session, ["us-west-2a", "us-west-2b"], "10.7")
    for owner in ("cpu-demo", "others"):
        tags = ownership.pairs(marks(owner))
        lower = [{"key": each["Key"], "value": each["Value"]} for each in tags]
        session.call("ecr", "create_repository", repositoryName=f"images-of-{owner}", tags=tags)
        session.call("logs", "create_log_group", logGroupName=f"/aws/eks/{owner}/cluster")
        session.call("logs", "create_log_group", logGroupName=f"/aws/eks/{owner}-2/cluster")
        project = {"source": {"type": "S3", "location": "sources/one.zip"}, "artifacts": {"type": "NO_ARTIFACTS"}}
        environment = {
            "type": "LINUX_CONTAINER",
            "image": "aws/codebuild/standard:7.0",
            "computeType": "BUILD_GENERAL1_SMALL",
        }
        role = f"arn:aws:iam::{ACCOUNT}:role/service-role/builds"
        session.call("codebuild", "create_project", name=f"build-{owner}", **project, environment=environment,
                     serviceRole=role, tags=lower)  # fmt: skip
        mark = [{"Key": f"kubernetes.io/cluster/{owner}", "Value": "owned"}]
        subnets = list(network.subnets.values())
        session.call("elbv2", "create_load_balancer", Name=f"lb-{owner}", Subnets=subnets, Tags=mark)
        listener = {"Protocol": "TCP", "LoadBalancerPort": 80, "InstancePort": 80}
        session.call("elb", "create_load_balancer", LoadBalancerName=f"classic-{owner}", Listeners=[listener],
                     AvailabilityZones=["us-west-2a"], Tags=mark)  # fmt: skip
        address = session.call("ec2", "allocate_address", Domain="vpc")
        tag(session, address["AllocationId"], **marks(owner))
    session.call("s3", "create_bucket", Bucket="checkpoints-of-the-team",
                 CreateBucketConfiguration={"LocationConstraint": "us-west-2"})  # fmt: skip
    for key in ("runs/a/step-1", "runs/b/step-2", "text/data"):
        session.call("s3", "put_object", Bucket="checkpoints-of-the-team", Key=key, Body=b"x" * 1000)
    found = {one.kind: one for one in remains.remains(session, spec)}
    assert {kind: one.id for kind, one in found.items() if kind != "elastic IP"} == {
        "image repository": "images-of-cpu-demo",
        "build project": "build-cpu-demo",
        "log group": "/aws/eks/cpu-demo/cluster",
        "runs": "s3://checkpoints-of-the-team/runs/",
        "load balancer": "lb-cpu-demo",
        "classic load balancer": "classic-cpu-demo",
    }
    assert found["runs"].detail.startswith("2 objects, ")
    assert found["runs"].price == pytest.approx(2000 / 1e9 * 0.023 / 730)
    monkeypatch.setattr(remains, "MOST_OBJECTS", 1)
    (part,) = [one for one in remains.remains(session, spec) if one.kind == "runs"]
    assert part.detail.startswith("more than 1 objects, ")
    assert part.price is None, "the rest was not counted"
    assert found["elastic IP"].price == 0.005
    assert all(one.why for one in found.values())
    gaps["ecr", "describe_repositories"] = refusal("AccessDeniedException", "not authorized")
    (unlisted,) = [one for one in remains.remains(session, spec) if one.id == remains.UNLISTED]
    assert unlisted.price is None
    assert unlisted.kind == "image repository"


def test_ours_is_found_in_the_order_of_deletion(session: Session, spec: Spec) -> None:
    populate(session, "others")
    populate(session, "cpu-demo")
    found = inventory.owned(session, spec)
    assert [one.kind for one in found] == ORDER
    stacks = [one.id for one in found if one.kind == "stack"]
    assert stacks == ["eksctl-cpu-demo-nodegroup-cpu", "eksctl-cpu-demo-cluster"]
    assert all("others" not in one.id for one in found)


def test_down_deletes_ours_and_nothing_else(session: Session, spec: Spec, down: Yard) -> None:
    populate(session, "others")
    before = picture(session)
    populate(session, "cpu-demo")
    network = set(picture(session)["subnets"]) - set(before["subnets"])
    ran = down("cpu-demo")
    assert ran.code == 0, ran.err
    assert "9 resources deleted" in ran.out
    after = picture(session)
    assert len(after["files"]) == 2, "data is never deleted"
    for kind, theirs in before.items():
        extra = set(map(str, after[kind])) - set(map(str, theirs))
        assert set(map(str, theirs)) <= set(map(str, after[kind])), kind
        # Resources without our tag stay too: the network of the test, and what instances leave behind.
        # Volumes are data, and nothing proves whose a launch template is.
        untagged = {"files", "subnets", "vpcs", "security_groups", "network_interfaces", "volumes"}
        untagged |= {"launch_templates"}
        assert not extra or kind in untagged, (kind, extra)
    assert network <= set(after["subnets"])
    assert down("cpu-demo").out.splitlines()[1] == "  nothing with our tag"


def test_a_run_that_is_killed_at_every_step_is_repeated_and_finishes(
    session: Session, spec: Spec, down: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is killed after its first deletion, before the result is known."""
    populate(session, "cpu-demo")
    original, looks = teardown._state, []

    def state(*arguments: Any) -> str:
        looks.append(arguments)
        if len(looks) > 1:  # the first one is before the deletion
            raise KeyboardInterrupt
        return original(*arguments)

    for step in range(len(ORDER)):
        monkeypatch.setattr(teardown, "_state", state)
        looks.clear()
        assert down("cpu-demo").code == 130, step
    monkeypatch.setattr(teardown, "_state", original)
    assert down("cpu-demo").code == 0
    assert inventory.owned(session, spec) == []


def test_nothing_is_deleted_without_a_yes(
    session: Session, spec: Spec, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(session, "cpu-demo")
    before = picture(session)
    assert yard("down", "cpu-demo", "--dry-run").code == 1
    for answer in ("y", "gpu", ""):
        monkeypatch.setattr("click.prompt", lambda *_, answer=answer, **__: answer)
        ran = yard("down", "cpu-demo")
        assert (ran.code, "nothing was deleted" in ran.err) == (2, True)
    assert picture(session) == before
    monkeypatch.setattr("click.prompt", lambda *_, **__: "cpu-demo")
    assert yard("down", "cpu-demo").code == 0


def test_the_plan_as_data(session: Session, spec: Spec, yard: Yard) -> None:
    populate(session, "cpu-demo")
    assert yard("down", "cpu-demo", "--json").code == 2, "it cannot ask"
    ran = yard("down", "cpu-demo", "--json", "--dry-run")
    found = json.loads(ran.out)
    assert (ran.code, found["deleted"], [one["kind"] for one in found["delete"]]) == (1, False, ORDER)
    assert "aws fsx delete-file-system" in found["keep"][0]["why"]


def test_a_cluster_with_a_foreign_node_group_is_not_touched(session: Session, spec: Spec, down: Yard) -> None:
    populate(session, "cpu-demo")
    group = {"clusterName": "cpu-demo", "nodegroupName": "theirs", "nodeRole": ROLE, "subnets": ["a"]}
    session.call("eks", "create_nodegroup", **group)
    before = picture(session)
    ran = down("cpu-demo")
    assert (ran.code, "node groups without our tag: theirs" in ran.err) == (1, True), ran
    assert picture(session) == before


def test_roles_with_long_names_are_deleted_with_their_policies(session: Session, change: Change, spec: Spec) -> None:
    """A role's name has 64 characters, so the cluster's is shortened in it. Roles of other clusters stay."""
    long = change("cpu-demo", CLUSTER_NAME="c" * 80)
    names = [make_role(session, "c" * length, "cpu-llama-tiny-train") for length in (80, 81)]
    made = session.call("iam", "create_policy", PolicyName="extra", PolicyDocument=POLICY)["Policy"]["Arn"]
    session.call("iam", "attach_role_policy", RoleName=names[0], PolicyArn=made)
    (found,) = inventory.owned(session, long)
    assert (found.kind, found.id) == ("role", names[0])
    assert max(map(len, names)) <= 64
    teardown.delete(session, long, found, print)
    assert picture(session)["roles"] == [names[1]]


def test_a_cluster_of_the_same_name_without_our_tag_stays(session: Session, spec: Spec, down: Yard) -> None:
    make_cluster(session, "cpu-demo", make_network(session, ["us-west-2a", "us-west-2b"]))
    assert down("cpu-demo").code == 0
    assert session.call("eks", "list_clusters")["clusters"] == ["cpu-demo"]


def test_an_adopted_cluster_keeps_what_was_not_added(
    session: Session, spec: Spec, gaps: Gaps, change: Change, down: Yard
) -> None:
    """Control plane, nodes, and the access entries and pod identities of others stay."""
    populate(session, "cpu-demo")
    access, identities = Access(gaps), Associations(gaps)
    theirs = "arn:aws:iam::123456789012:role/theirs"
    ours = f"arn:aws:iam::123456789012:role/{make_role(session, 'cpu-demo', 'ours')}"
    for arn, name, tags in ((ours, "ours", marks("cpu-demo")), (theirs, "theirs", {"a": "b"})):
        access.create_access_entry("cpu-demo", arn, "STANDARD", tags, [ownership.ENTRY_GROUP])
        where = {"clusterName": "cpu-demo", "namespace": "training", "serviceAccount": name}
        identities.create(**where, roleArn=arn, tags=tags)
    change("cpu-demo", ADOPTED="true")
    before = picture(session)
    assert down("cpu-demo").code == 0
    after = picture(session)
    assert (before["clusters"], before["instances"]) == (after["clusters"], after["instances"])
    assert list(access.entries) == [theirs]
    assert [row["roleArn"] for row in identities.rows.values()] == [theirs]


def test_a_running_deletion_is_waited_for(session: Session, spec: Spec, gaps: Gaps, down: Yard) -> None:
    """EKS refuses to delete a node group that an earlier run is deleting."""
    network = make_network(session, ["us-west-2a", "us-west-2b"])
    stack = "eksctl-cpu-demo-cluster"
    make_stack(session, stack, **marks("cpu-demo"))
    make_cluster(session, "cpu-demo", network, **marks("cpu-demo"), **{ownership.STACK_TAG: stack})
    looks: list[str] = []

    def describe(**_: Any) -> dict[str, Any]:
        looks.append("look")
        if len(looks) > 6:
            raise refusal("ResourceNotFoundException", "gone", 404)
        tags = {"trainyard/cluster": "us-west-2/cpu-demo"}
        return {"nodegroup": {"nodegroupName": "cpu", "status": "DELETING", "tags": tags}}

    gaps["eks", "list_nodegroups"] = lambda **_: {"nodegroups": ["cpu"] if len(looks) <= 6 else []}
    gaps["eks", "describe_nodegroup"] = describe
    gaps["eks", "delete_nodegroup"] = refusal("ResourceInUseException", "the node group is DELETING", 409)
    ran = down("cpu-demo")
    assert (ran.code, len(looks)) == (0, 7), ran.err
    assert gaps.parameters("delete_nodegroup") == []


def test_nothing_is_deleted_if_a_listing_is_denied(session: Session, spec: Spec, gaps: Gaps, yard: Yard) -> None:
    populate(session, "cpu-demo")
    gaps["ec2", "describe_volumes"] = refusal("UnauthorizedOperation", "You are not authorized", 403)
    ran = yard("down", "cpu-demo", "--yes", "--expect", "9")
    assert (ran.code, "missing permission: ec2:DescribeVolumes" in ran.err) == (3, True)
    assert session.call("eks", "list_clusters")["clusters"] == ["cpu-demo"]


def test_the_deletion_of_a_resource_in_use_is_repeated(session: Session, spec: Spec, gaps: Gaps, down: Yard) -> None:
    """The last interface of a node is deleted a little later than the node."""
    vpc = make_stack(session, "eksctl-cpu-demo-cluster", "10.0", **marks("cpu-demo"))
    group = make_group(session, vpc, "extra", **marks("cpu-demo"))
    row = {"GroupId": group, "GroupName": "extra", "VpcId": vpc, "Tags": TAG}
    tries = []

    def delete(GroupId: str) -> dict[str, Any]:
        tries.append(GroupId)
        if len(tries) < 3:
            raise refusal("DependencyViolation", "resource has a dependent object")
        raise refusal("InvalidGroup.NotFound", "gone")

    gaps["ec2", "delete_security_group"] = delete
    gaps["ec2", "describe_security_groups"] = lambda **_: {"SecurityGroups": [row] if len(tries) < 3 else []}
    assert down("cpu-demo").code == 0
    assert tries == [group] * 3


def test_a_resource_that_stays_in_use_is_reported(
    session: Session, spec: Spec, gaps: Gaps, down: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "IN_USE_SECONDS", 0.0)
    vpc = make_stack(session, "eksctl-cpu-demo-cluster", "10.0", **marks("cpu-demo"))
    make_group(session, vpc, "extra", **marks("cpu-demo"))
    gaps["ec2", "delete_security_group"] = refusal("DependencyViolation", "resource has a dependent object")
    ran = down("cpu-demo")
    assert (ran.code, "has a dependent object" in ran.err) == (2, True)


def test_a_failed_deletion_is_reported_with_its_reason(session: Session, spec: Spec, gaps: Gaps, down: Yard) -> None:
    populate(session, "cpu-demo")
    name, day = "eksctl-cpu-demo-cluster", "2026-01-01"
    failed = {"StackName": name, "CreationTime": day, "StackStatus": "DELETE_FAILED"}
    gaps["cloudformation", "describe_stacks"] = {"Stacks": [{**failed, "Tags": TAG}]}
    event = {"StackId": "s", "StackName": name, "Timestamp": day, "LogicalResourceId": "VPC"}
    said = {"ResourceStatus": "DELETE_FAILED", "ResourceStatusReason": "fs-0 has an interface in it"}
    events = [
        {**event, "EventId": "2", **said},
        {**event, "EventId": "1", "ResourceStatus": "CREATE_COMPLETE"},
    ]
    gaps["cloudformation", "describe_stack_events"] = {"StackEvents": events}
    ran = down("cpu-demo")
    assert ran.code == 1
    assert "is not deleted: DELETE_FAILED: VPC: fs-0 has an interface in it" in ran.err


def test_what_a_kept_file_system_uses_is_kept(session: Session, spec: Spec, gaps: Gaps, yard: Yard, down: Yard) -> None:
    """The stack of its network and its security group are kept, and deleted once it is deleted."""
    vpc = populate(session, "cpu-demo")
    group = make_group(session, vpc, "lustre", **marks("cpu-demo"))
    subnet = next(session.ec2("Subnets", {"vpc-id": [vpc]}))["SubnetId"]
    where = {"SubnetId": subnet, "Groups": [group]}
    made = session.call("ec2", "create_network_interface", **where)["NetworkInterface"]
    system = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "VpcId": vpc,
        "NetworkInterfaceIds": [made["NetworkInterfaceId"]],
        "Tags": [{"Key": "trainyard/team", "Value": "training"}],
    }
    gaps["fsx", "describe_file_systems"] = {"FileSystems": [system]}
    planned = yard("down", "cpu-demo", "--dry-run")
    assert planned.code == 1
    for name in ("stack eksctl-cpu-demo-cluster", f"security group {group}"):
        assert f"keep    {name}" in planned.out, planned.out
    assert "used by fs-0123456789abcdef0" in planned.out
    ran = down("cpu-demo")
    assert (ran.code, "everything else is deleted: " in ran.err) == (1, True), ran
    kept = [(one.kind, one.id) for one in inventory.owned(session, spec)]
    assert kept == [("security group", group), ("stack", "eksctl-cpu-demo-cluster")]
    gaps["fsx", "describe_file_systems"] = {"FileSystems": []}
    session.call("ec2", "delete_network_interface", NetworkInterfaceId=made["NetworkInterfaceId"])
    assert down("cpu-demo").code == 0
    assert inventory.owned(session, spec) == []


def test_resources_that_lost_our_tag_are_listed_and_stay(session: Session, spec: Spec, yard: Yard, down: Yard) -> None:
    """The stack of a cluster without our tag stays too."""
    populate(session, "cpu-demo")
    arn = session.call("eks", "describe_cluster", name="cpu-demo")["cluster"]["arn"]
    session.call("eks", "untag_resource", resourceArn=arn, tagKeys=["trainyard/cluster"])
    role = next(one for one in picture(session)["roles"] if "cpu-llama-tiny" in one)
    session.call("iam", "untag_role", RoleName=role, TagKeys=["trainyard/cluster"])
    make_stack(session, "trainyard-cpu-demo")
    planned = yard("down", "cpu-demo", "--dry-run")
    for name in (
        "cluster cpu-demo",
        f"role {role}",
        "stack trainyard-cpu-demo",
        "stack eksctl-cpu-demo-cluster",
    ):
        assert f"keep    {name}" in planned.out, planned.out
        assert f"delete  {name}" not in planned.out
    assert down("cpu-demo").code == 1
    after = picture(session)
    assert session.call("eks", "list_clusters")["clusters"] == ["cpu-demo"]
    assert role in after["roles"]
    stacks = [row["StackName"] for row in session.pages("cloudformation", "describe_stacks", "Stacks")]
    assert {"trainyard-cpu-demo", "eksctl-cpu-demo-cluster"} <= set(stacks)


def test_cost_adds_up(session: Session, spec: Spec, yard: Yard) -> None:
    """2 m5.2xlarge, a control plane, 1200 GiB of Lustre at 125 MB/s per TiB, a disk of 100 GiB."""
    populate(session, "others")
    populate(session, "cpu-demo")
    ran = yard("cost", "cpu-demo", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    expected = 2 * 0.384 + 0.10 + 1200 * 0.145 / 730 + 100 * 0.08 / 730
    assert found["usd_per_hour"] == pytest.approx(expected, abs=1e-4)
    assert "2026-07-20" in found["prices"]["machines"]


def test_an_unknown_price_is_not_free(session: Session, spec: Spec, yard: Yard) -> None:
    network = make_network(session, ["us-west-2a"])
    make_nodes(session, "p5e.48xlarge", 1, network, "us-west-2a", trainyard__cluster="us-west-2/cpu-demo")
    make_nodes(session, "m5.large", 1, network, "us-west-2a", trainyard__cluster="us-west-2/cpu-demo")
    ran = yard("cost", "cpu-demo")
    assert ran.code == 3
    assert "unknown  instance" in ran.out
    assert "0.096 $/h  per hour, and 1 resource without a price" in ran.out
