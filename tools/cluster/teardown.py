"""Deletes what a cluster consists of, thing by thing in the inventory's order, each until it is gone.

Nothing is remembered between runs: what is left is looked up anew, so a run that was killed is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tools.aws.session import AwsError, Session
from tools.cluster.inventory import Resource
from tools.cluster.spec import Spec
from tools.core.errors import UserError

POLL_SECONDS = 5.0
MOST_SECONDS = 1800.0  # a node group drains, and eksctl's largest stack takes a quarter of an hour
IN_USE = ("DependencyViolation", "ResourceInUseException", "InvalidGroup.InUse", "VolumeInUse")
IN_USE_SECONDS = 180.0  # interfaces of nodes that have ended go within a minute or two
SAY_SECONDS = 15.0
GONE = "gone"
GOING = ("DELETING", "DELETE_IN_PROGRESS", "shutting-down")

Say = Callable[[str], None]


def delete(session: Session, spec: Spec, resource: Resource, say: Say) -> None:
    """Delete one resource and wait until it is gone; one that is gone, or going, already is good.

    Raises AwsError where AWS refuses, UserError (1) where it does not go.
    """
    start, watch = _STEPS[resource.kind]
    # EKS refuses to delete what an earlier run has told it to delete and what is still on its way.
    if _state(watch, session, spec, resource.id) not in (GONE, *GOING):
        _start(lambda: start(session, spec, resource.id), resource, say)
    began = told = time.monotonic()
    while (state := _state(watch, session, spec, resource.id)) != GONE:
        now = time.monotonic()
        # A state of before the deletion, such as CREATE_FAILED, may still be told for a moment.
        if state == "DELETE_FAILED" or now - began > MOST_SECONDS:
            reason = _reason(session, resource)
            message = f"{resource.kind} {resource.id} does not go: {state}{reason}"
            raise UserError(message, "look there, then repeat", 1)
        if now - told > SAY_SECONDS:
            say(f"  {resource.kind} {resource.id}: {state} for {now - began:.0f} s")
            told = now
        time.sleep(POLL_SECONDS)


def _reason(session: Session, resource: Resource) -> str:
    """Return why CloudFormation did not delete a stack, as its newest failure has it; of others nothing."""
    if resource.kind != "stack":
        return ""
    try:
        rows = session.call("cloudformation", "describe_stack_events", StackName=resource.id)["StackEvents"]
    except AwsError as problem:
        return f" ({problem.message})"
    failed = [one for one in rows if one.get("ResourceStatus") == "DELETE_FAILED"]
    parts = (f"{one.get('LogicalResourceId')}: {one.get('ResourceStatusReason')}" for one in failed)
    return next((f": {part}" for part in parts), "")


def _start(call: Callable[[], None], resource: Resource, say: Say) -> None:
    """Ask for a deletion; what still hangs on the thing, such as a node's interface, is given time to go."""
    began = told = time.monotonic()
    while True:
        try:
            return call()
        except AwsError as problem:
            if problem.kind == "missing" or "does not exist" in problem.message:
                return None
            now = time.monotonic()
            if problem.aws_code not in IN_USE or now - began > IN_USE_SECONDS:
                raise
            if told == began or now - told > SAY_SECONDS:
                say(
                    f"  {resource.kind} {resource.id} is still in use: asked again for {IN_USE_SECONDS:.0f} s"
                )
                told = now
        time.sleep(POLL_SECONDS)


Watch = Callable[[Session, Spec, str], str]


def _state(watch: Watch, session: Session, spec: Spec, name: str) -> str:
    try:
        return watch(session, spec, name)
    except AwsError as problem:
        if problem.kind == "missing" or "does not exist" in problem.message:
            return GONE
        raise


def _delete_role(session: Session, spec: Spec, name: str) -> None:
    attached = session.pages("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=name)
    for row in list(attached):
        session.call("iam", "detach_role_policy", RoleName=name, PolicyArn=row["PolicyArn"])
    for policy in session.call("iam", "list_role_policies", RoleName=name)["PolicyNames"]:
        session.call("iam", "delete_role_policy", RoleName=name, PolicyName=policy)
    session.call("iam", "delete_role", RoleName=name)


def _instance_state(session: Session, spec: Spec, name: str) -> str:
    rows = session.call("ec2", "describe_instances", InstanceIds=[name])["Reservations"]
    state = rows[0]["Instances"][0]["State"]["Name"] if rows else "terminated"
    return GONE if state == "terminated" else str(state)


def _stack_state(session: Session, spec: Spec, name: str) -> str:
    state = str(session.call("cloudformation", "describe_stacks", StackName=name)["Stacks"][0]["StackStatus"])
    return GONE if state == "DELETE_COMPLETE" else state


def _exists(service: str, operation: str, parameter: str, key: str) -> Watch:
    """Return a watch that lists one thing by its id."""

    def watch(session: Session, spec: Spec, name: str) -> str:
        return "there" if session.call(service, operation, **{parameter: [name]})[key] else GONE

    return watch


def _call(
    service: str, operation: str, parameter: str, *cluster: str
) -> Callable[[Session, Spec, str], None]:
    """Return a call that takes an id, and the cluster's name where `cluster` says under which parameter."""

    def start(session: Session, spec: Spec, name: str) -> None:
        session.call(service, operation, **{parameter: name, **dict.fromkeys(cluster, spec.name)})

    return start


def _terminate(session: Session, spec: Spec, name: str) -> None:
    session.call("ec2", "terminate_instances", InstanceIds=[name])


def _role_state(session: Session, spec: Spec, name: str) -> str:
    return str(session.call("iam", "get_role", RoleName=name)["Role"]["RoleName"])


def _entry_state(session: Session, spec: Spec, name: str) -> str:
    found = session.call("eks", "describe_access_entry", clusterName=spec.name, principalArn=name)
    return str(found["accessEntry"]["principalArn"])


def _association_state(session: Session, spec: Spec, name: str) -> str:
    where = {"clusterName": spec.name, "associationId": name}
    return str(
        session.call("eks", "describe_pod_identity_association", **where)["association"]["associationId"]
    )


def _provider_state(session: Session, spec: Spec, name: str) -> str:
    found = session.call("iam", "get_open_id_connect_provider", OpenIDConnectProviderArn=name)
    return str(found.get("Url"))


def _cluster_state(session: Session, spec: Spec, name: str) -> str:
    return str(session.call("eks", "describe_cluster", name=name)["cluster"].get("status"))


def _group_state(session: Session, spec: Spec, name: str) -> str:
    found = session.call("eks", "describe_nodegroup", clusterName=spec.name, nodegroupName=name)["nodegroup"]
    return str(found.get("status"))


_STEPS: dict[str, tuple[Callable[[Session, Spec, str], None], Watch]] = {
    "node group": (_call("eks", "delete_nodegroup", "nodegroupName", "clusterName"), _group_state),
    "instance": (_terminate, _instance_state),
    "cluster": (_call("eks", "delete_cluster", "name"), _cluster_state),
    "stack": (_call("cloudformation", "delete_stack", "StackName"), _stack_state),
    "launch template": (
        _call("ec2", "delete_launch_template", "LaunchTemplateId"),
        _exists("ec2", "describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates"),
    ),
    "network interface": (
        _call("ec2", "delete_network_interface", "NetworkInterfaceId"),
        _exists("ec2", "describe_network_interfaces", "NetworkInterfaceIds", "NetworkInterfaces"),
    ),
    "volume": (
        _call("ec2", "delete_volume", "VolumeId"),
        _exists("ec2", "describe_volumes", "VolumeIds", "Volumes"),
    ),
    "security group": (
        _call("ec2", "delete_security_group", "GroupId"),
        _exists("ec2", "describe_security_groups", "GroupIds", "SecurityGroups"),
    ),
    "role": (_delete_role, _role_state),
    "identity provider": (
        _call("iam", "delete_open_id_connect_provider", "OpenIDConnectProviderArn"),
        _provider_state,
    ),
    "access entry": (_call("eks", "delete_access_entry", "principalArn", "clusterName"), _entry_state),
    "pod identity": (
        _call("eks", "delete_pod_identity_association", "associationId", "clusterName"),
        _association_state,
    ),
}
