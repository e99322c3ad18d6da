"""Least-privilege IAM policies for a cluster's pods, for one account, one region, a bucket and its prefixes.

Sources: the IAM service authorization reference; for the FSx driver the example in its documentation
(kubernetes-sigs/aws-fsx-csi-driver v1.9.0, docs), restricted to the tag of trainyard's volumes.
"""

import json
from dataclasses import dataclass
from typing import Any, Self

from tools.aws.session import Session
from tools.core.tables import filled, load

Policy = dict[str, Any]
VERSION = "2012-10-17"
OWNER_TAG = "trainyard/cluster"  # on everything that trainyard creates; the value is that of `owner`
TEAM_TAG = "trainyard/team"  # on file systems of base/storage/fsx-dynamic, and on roles
# The limit of all inline policies of a role together, without white space (IAM user guide, quotas).
MOST_CHARACTERS = 10_240


@dataclass(frozen=True)
class Place:
    """The partition, region and account of a cluster."""

    partition: str
    region: str
    account: str

    @classmethod
    def of(cls, session: Session) -> Self:
        """Return the place of a session. Raises AwsError."""
        return cls(session.partition, session.region, session.identity()["account"])

    def arn(self, service: str, resource: str) -> str:
        region = "" if service == "iam" else self.region
        return f"arn:{self.partition}:{service}:{region}:{self.account}:{resource}"


@dataclass(frozen=True)
class Bucket:
    """A bucket and its owner. A name that was given up may belong to another account later."""

    name: str
    owner: str
    partition: str

    @property
    def arn(self) -> str:
        return f"arn:{self.partition}:s3:::{self.name}"


def owner(region: str, cluster: str) -> str:
    """Return the value of OWNER_TAG. IAM is global, so a name alone would also mean clusters elsewhere."""
    return f"{region}/{cluster}"


def size(policy: Policy) -> int:
    """Return how many characters of MOST_CHARACTERS a policy uses."""
    return len(json.dumps(policy, separators=(",", ":")))


def trainer(bucket: Bucket, data: str, team: str, own: str) -> Policy:
    """Allow a job to read below `data` and `team`, to write below `own`, and to delete nothing."""
    read = _objects("Read", ["s3:GetObject"], bucket, data, team)
    write = _objects("Write", ["s3:PutObject", "s3:AbortMultipartUpload"], bucket, own)
    return _policy(_listing(bucket, data, team), read, write)


def reader(bucket: Bucket, data: str) -> Policy:
    """Allow Mountpoint's read-only volume to list and read below `data`."""
    return _policy(_listing(bucket, data), _objects("Read", ["s3:GetObject"], bucket, data))


def secret_reader(place: Place, team: str) -> Policy:
    """Allow External Secrets to read the secrets whose names begin with `team` and a slash."""
    names = {"secrets": place.arn("secretsmanager", f"secret:{team}/*")}
    return _policy(*filled(load("aws/policies.yaml")["secret reader"], names))


def fsx_driver(place: Place, team: str, dynamic: bool) -> Policy:
    """Allow the FSx driver to describe file systems, and with `dynamic` to create those of `team`.

    It neither deletes nor changes one. fsx:TagResource, which creation needs, also tags what exists (FSx user
    guide, using tags). So a right that depends on the tag would be a right on every file system.
    """
    names = {
        "region": place.region, "team": team, "systems": place.arn("fsx", "file-system/*"),
        "role": place.arn("iam", "role/aws-service-role/fsx.amazonaws.com/*"),
    }  # fmt: skip
    parts = ("fsx driver", "dynamic fsx driver") if dynamic else ("fsx driver",)
    return _policy(*(one for part in parts for one in filled(load("aws/policies.yaml")[part], names)))


def _policy(*statements: Policy) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(sid: str, actions: list[str], resource: Any, bucket: Bucket, **conditions: Policy) -> Policy:
    owned = {**conditions, "StringEquals": {"aws:ResourceAccount": bucket.owner}}
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource, "Condition": owned}


def _listing(bucket: Bucket, *prefixes: str) -> Policy:
    """Allow listing below prefixes. The condition excludes the rest of the bucket."""
    wanted = [text for prefix in dict.fromkeys(prefixes) for text in ((prefix, f"{prefix}*") if prefix else ("*",))]
    return _allow("List", ["s3:ListBucket"], bucket.arn, bucket, StringLike={"s3:prefix": wanted})


def _objects(sid: str, actions: list[str], bucket: Bucket, *prefixes: str) -> Policy:
    return _allow(sid, actions, [f"{bucket.arn}/{prefix}*" for prefix in dict.fromkeys(prefixes)], bucket)
