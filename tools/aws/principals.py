"""The IAM role or user of an ARN, also of a session's ARN."""

import re
from dataclasses import dataclass

from tools.aws.session import AwsError, Session
from tools.core import UserError

ARN = re.compile(r"arn:(?P<partition>aws[\w-]*):(?P<service>iam|sts)::(?P<account>\d{12}):(?P<rest>\S+)")
ASSUMED = re.compile(r"assumed-role/(?P<role>[\w+=,.@-]+)/(?P<session>.+)")


@dataclass(frozen=True)
class Principal:
    """An IAM role or user. `certain` is False where the path of a role is unknown."""

    arn: str
    kind: str  # role | user | root | federated-user
    name: str
    account: str
    certain: bool = True


def caller(session: Session) -> Principal:
    return resolve(session, session.identity()["arn"])


def resolve(session: Session, arn: str) -> Principal:
    """Return the role or user of an ARN. For the session of an assumed role, this is the role with its path.

    Access entries need the path, which the ARN of a session lacks, so it is read from IAM. Raises UserError
    for an ARN that is not a principal, and AwsError.
    """
    found = ARN.fullmatch(arn)
    if not found:
        raise UserError(f"{arn} is not the ARN of a principal", "such as arn:aws:iam::111122223333:role/NAME")
    account, rest = found["account"], found["rest"]
    session_ = ASSUMED.fullmatch(rest)
    if session_:
        return _role(session, found["partition"], account, session_["role"])
    kind, _, path = rest.partition("/")
    if rest == "root" or (kind in ("role", "user", "federated-user") and path):
        return Principal(arn, kind, path.rpartition("/")[2] or "root", account)
    raise UserError(f"{arn} is neither a role nor a user", "use a role, a user, or the session of a role")


def _role(session: Session, partition: str, account: str, name: str) -> Principal:
    try:
        arn = str(session.call("iam", "get_role", RoleName=name)["Role"]["Arn"])
        if f"::{account}:" in arn:
            return Principal(arn, "role", name, account)
    except AwsError as problem:
        if problem.kind not in ("denied", "missing"):
            raise
        # The role may be in another account, whose IAM cannot be read.
    return Principal(f"arn:{partition}:iam::{account}:role/{name}", "role", name, account, certain=False)
