"""Deletes the resources of a cluster one by one, and waits for each until it is gone.

Nothing is stored between runs: each run lists again what is left, so an interrupted run can be repeated.
"""

from dataclasses import dataclass
from typing import Any

from tools.aws import AwsError, Session
from tools.cluster import inventory
from tools.cluster.inventory import Resource
from tools.cluster.spec import Spec
from tools.core import Say, UserError, tables, wait

POLL_SECONDS = 5.0
MOST_SECONDS = 1800.0  # a node group drains first; eksctl's largest stack takes 15 minutes
IN_USE = ("DependencyViolation", "ResourceInUseException", "InvalidGroup.InUse")
IN_USE_SECONDS = 180.0  # interfaces of terminated nodes are deleted within a minute or two
SAY_SECONDS = 15.0
GONE = "gone"
DELETING = ("DELETING", "DELETE_IN_PROGRESS", "shutting-down")


def delete(session: Session, spec: Spec, resource: Resource, say: Say) -> None:
    """Delete a resource that may be gone or deleting already, and wait until it is gone.

    Its tag and its second proof are read again before. Raises AwsError where AWS refuses, and UserError with
    exit code 1 where the resource stays, or is no longer the one that was listed.
    """
    title, say = f"{resource.kind} {resource.id}", wait.sparing(say, SAY_SECONDS)
    state = _state(session, spec, resource)
    # EKS refuses to delete what an earlier run has started to delete.
    if state not in (GONE, *DELETING):
        if not inventory.still_ours(session, spec, resource):
            message = f"{title} has changed since it was listed and is not deleted"
            raise UserError(message, f"yard cluster down {spec.title} lists it again", 1)
        _start(session, spec, resource, say)

    def is_over() -> bool:
        nonlocal state
        state = _state(session, spec, resource)
        # Only this state is final. The state from before the deletion may be reported for a moment.
        return state in (GONE, "DELETE_FAILED")

    wait.until(is_over, MOST_SECONDS, POLL_SECONDS, lambda waited: say(f"  {title}: {state} for {waited:.0f} s"))
    if state != GONE:
        message = f"{title} is not deleted: {state}{_reason(session, resource)}"
        raise UserError(message, "fix the cause in AWS, then repeat the command", 1)


def _start(session: Session, spec: Spec, resource: Resource, say: Say) -> None:
    """Request the deletion. Repeat it while something else, such as a node's interface, uses the resource."""
    refusal: AwsError | None = None

    def requested() -> bool:
        nonlocal refusal
        try:
            STEPS[resource.kind].delete(session, spec, resource.id)
        except AwsError as problem:
            if problem.aws_code not in IN_USE and not problem.is_missing:
                raise
            refusal = None if problem.is_missing else problem
            return problem.is_missing
        return True

    def report(waited: float) -> None:
        say(f"  {resource.kind} {resource.id} is in use for {waited:.0f} of {IN_USE_SECONDS:.0f} s")

    if not wait.until(requested, IN_USE_SECONDS, POLL_SECONDS, report) and refusal:
        raise refusal


def _state(session: Session, spec: Spec, resource: Resource) -> str:
    """Return the state of a resource as AWS reports it, or GONE."""
    step = STEPS[resource.kind]
    found: Any = session.find(step.service, step.describe, **step.parameters(spec, resource.id))
    for key in step.path:
        if not found:
            return GONE
        found = found[key]
    return GONE if not found or found in ("terminated", "DELETE_COMPLETE") else str(found)


def _reason(session: Session, resource: Resource) -> str:
    """Return why CloudFormation did not delete a stack, from its newest failure."""
    if resource.kind != "stack":
        return ""
    try:
        rows = session.call("cloudformation", "describe_stack_events", StackName=resource.id)["StackEvents"]
    except AwsError as problem:
        return f" ({problem.message})"
    failed = [one for one in rows if one.get("ResourceStatus") == "DELETE_FAILED"]
    parts = (f"{one.get('LogicalResourceId')}: {one.get('ResourceStatusReason')}" for one in failed)
    return next((f": {part}" for part in parts), "")


@dataclass(frozen=True)
class Step:
    """The operations that delete a kind of resource and report its state."""

    service: str
    remove: str
    id: str  # the parameter of the id
    describe: str
    state: str  # the path to the state in the answer of `describe`

    @property
    def path(self) -> list[str | int]:
        return [int(key) if key.isdigit() else key for key in self.state.split(".")]

    def parameters(self, spec: Spec, name: str) -> dict[str, Any]:
        """Return the parameters of `describe`, which takes a list of ids in EC2."""
        if self.service == "ec2":
            return {f"{self.id.removesuffix('s')}s": [name]}
        return {self.id: name, **self._cluster(spec)}

    def delete(self, session: Session, spec: Spec, name: str) -> None:
        if self.remove == "delete_role":
            _empty_role(session, name)
        ids = [name] if self.id.endswith("s") else name
        session.call(self.service, self.remove, **{self.id: ids, **self._cluster(spec)})

    def _cluster(self, spec: Spec) -> dict[str, str]:
        return {"clusterName": spec.name} if self.service == "eks" and self.id != "name" else {}


def _empty_role(session: Session, name: str) -> None:
    """Remove a role's policies, without which IAM does not delete it."""
    for row in list(session.pages("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=name)):
        session.call("iam", "detach_role_policy", RoleName=name, PolicyArn=row["PolicyArn"])
    for policy in session.call("iam", "list_role_policies", RoleName=name)["PolicyNames"]:
        session.call("iam", "delete_role_policy", RoleName=name, PolicyName=policy)


STEPS = {kind: Step(*row) for kind, row in tables.load("cluster/teardown.yaml").items()}
