"""Least-privilege IAM policies for a cluster's pods, generated for one bucket and its prefixes.

Sources: the IAM service authorization reference; for the FSx driver the example in its documentation
(kubernetes-sigs/aws-fsx-csi-driver v1.9.0, docs), restricted to the tag of trainyard's volumes.
"""

from __future__ import annotations

import json
from typing import Any

Policy = dict[str, Any]
VERSION = "2012-10-17"
OWNER_TAG = "trainyard/cluster"  # on everything that trainyard creates; the value is the cluster's name
TEAM_TAG = "trainyard/team"  # on file systems of base/storage/fsx-dynamic
# The limit of all inline policies of a role together, without white space (IAM user guide, quotas).
MOST_CHARACTERS = 10_240


def size(policy: Policy) -> int:
    """Return how many characters of MOST_CHARACTERS a policy uses."""
    return len(json.dumps(policy, separators=(",", ":")))


def trainer(bucket: str, data: str, runs: str, partition: str = "aws") -> Policy:
    """Allow a job to read below `data`, and to read and write below `runs`, but not to delete."""
    return _policy(
        _listing(bucket, partition, data, runs),
        _objects("Read", ["s3:GetObject"], bucket, partition, data, runs),
        _objects("Write", ["s3:PutObject", "s3:AbortMultipartUpload"], bucket, partition, runs),
    )


def pruner(bucket: str, runs: str, partition: str = "aws") -> Policy:
    """Allow the pruner to list, read and delete below `runs`, but not to write."""
    actions = ["s3:GetObject", "s3:DeleteObject"]
    return _policy(
        _listing(bucket, partition, runs), _objects("ReadAndDelete", actions, bucket, partition, runs)
    )


def reader(bucket: str, data: str, partition: str = "aws") -> Policy:
    """Allow Mountpoint's read-only volume to list and read below `data`."""
    return _policy(
        _listing(bucket, partition, data), _objects("Read", ["s3:GetObject"], bucket, partition, data)
    )


def secret_reader(team: str, partition: str = "aws") -> Policy:
    """Allow External Secrets to read the secrets whose names begin with `team` and a slash."""
    actions = ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"]
    return _policy(_allow("Read", actions, [f"arn:{partition}:secretsmanager:*:*:secret:{team}/*"]))


def fsx_driver(team: str, dynamic: bool, partition: str = "aws") -> Policy:
    """Allow the FSx driver to describe file systems, and with `dynamic` to manage those of `team`."""
    look = _allow("Look", ["fsx:DescribeFileSystems"], "*")  # the action has no resource
    if not dynamic:
        return _policy(look)
    system = f"arn:{partition}:fsx:*:*:file-system/*"
    role = f"arn:{partition}:iam::*:role/aws-service-role/fsx.amazonaws.com/*"
    requested = {"StringEquals": {f"aws:RequestTag/{TEAM_TAG}": team}}
    owned = {"StringEquals": {f"aws:ResourceTag/{TEAM_TAG}": team}}
    service = {"StringEquals": {"iam:AWSServiceName": "fsx.amazonaws.com"}}
    return _policy(
        look,
        _allow("Make", ["fsx:CreateFileSystem", "fsx:TagResource"], system, requested),
        _allow("ChangeOwn", ["fsx:UpdateFileSystem", "fsx:DeleteFileSystem"], system, owned),
        _allow("FirstFileSystemOfAnAccount", ["iam:CreateServiceLinkedRole"], role, service),
    )


def _policy(*statements: Policy) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(sid: str, actions: list[str], resource: Any, condition: Policy | None = None) -> Policy:
    statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource}
    return {**statement, **({"Condition": condition} if condition else {})}


def _listing(bucket: str, partition: str, *prefixes: str) -> Policy:
    """Allow listing below prefixes. The condition excludes the rest of the bucket."""
    wanted = [text for prefix in _unique(prefixes) for text in ((prefix, f"{prefix}*") if prefix else ("*",))]
    condition = {"StringLike": {"s3:prefix": wanted}}
    return _allow("List", ["s3:ListBucket"], f"arn:{partition}:s3:::{bucket}", condition)


def _objects(sid: str, actions: list[str], bucket: str, partition: str, *prefixes: str) -> Policy:
    return _allow(sid, actions, [f"arn:{partition}:s3:::{bucket}/{prefix}*" for prefix in _unique(prefixes)])


def _unique(prefixes: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(prefixes))
