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
    return _policy(
        _listing(bucket, partition, runs),
        _objects("ReadAndDelete", ["s3:GetObject", "s3:DeleteObject"], bucket, partition, runs),
    )


def reader(bucket: str, data: str, partition: str = "aws") -> Policy:
    """Allow Mountpoint's read-only volume to list and read below `data`."""
    return _policy(
        _listing(bucket, partition, data), _objects("Read", ["s3:GetObject"], bucket, partition, data)
    )


def secret_reader(team: str, partition: str = "aws") -> Policy:
    """Allow External Secrets to read the secrets whose names begin with `team` and a slash."""
    actions = ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"]
    names = [f"arn:{partition}:secretsmanager:*:*:secret:{team}/*"]
    return _policy({"Sid": "Read", "Effect": "Allow", "Action": actions, "Resource": names})


def fsx_driver(team: str, dynamic: bool, partition: str = "aws") -> Policy:
    """Allow the FSx driver to describe file systems, and with `dynamic` to manage those of `team`."""
    look: Policy = {
        "Sid": "Look",
        "Effect": "Allow",
        "Action": ["fsx:DescribeFileSystems"],
        "Resource": "*",  # the action has no resource
    }
    if not dynamic:
        return _policy(look)
    system = f"arn:{partition}:fsx:*:*:file-system/*"
    request = {"StringEquals": {f"aws:RequestTag/{TEAM_TAG}": team}}
    owned = {"StringEquals": {f"aws:ResourceTag/{TEAM_TAG}": team}}
    role = f"arn:{partition}:iam::*:role/aws-service-role/fsx.amazonaws.com/*"
    return _policy(
        look,
        {
            "Sid": "Make",
            "Effect": "Allow",
            "Action": ["fsx:CreateFileSystem", "fsx:TagResource"],
            "Resource": system,
            "Condition": request,
        },
        {
            "Sid": "ChangeOwn",
            "Effect": "Allow",
            "Action": ["fsx:UpdateFileSystem", "fsx:DeleteFileSystem"],
            "Resource": system,
            "Condition": owned,
        },
        {
            "Sid": "FirstFileSystemOfAnAccount",
            "Effect": "Allow",
            "Action": ["iam:CreateServiceLinkedRole"],
            "Resource": role,
            "Condition": {"StringEquals": {"iam:AWSServiceName": "fsx.amazonaws.com"}},
        },
    )


def _policy(*statements: Policy) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def _listing(bucket: str, partition: str, *prefixes: str) -> Policy:
    """Allow listing below prefixes. The condition excludes the rest of the bucket."""
    wanted = [text for prefix in _unique(prefixes) for text in ((prefix, f"{prefix}*") if prefix else ("*",))]
    return {
        "Sid": "List",
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": f"arn:{partition}:s3:::{bucket}",
        "Condition": {"StringLike": {"s3:prefix": wanted}},
    }


def _objects(sid: str, actions: list[str], bucket: str, partition: str, *prefixes: str) -> Policy:
    resources = [f"arn:{partition}:s3:::{bucket}/{prefix}*" for prefix in _unique(prefixes)]
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def _unique(prefixes: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(prefixes))
