"""IAM policies of a cluster's pods, each as small as its work: generated for one bucket and its prefixes.

Actions and conditions: the IAM service authorization reference; of the FSx driver: its own policy example
(kubernetes-sigs/aws-fsx-csi-driver v1.9.0, docs), narrowed to what trainyard's volumes are tagged with.
"""

from __future__ import annotations

import json
from typing import Any

Policy = dict[str, Any]
VERSION = "2012-10-17"
OWNER_TAG = "trainyard/cluster"  # what is ours carries it, with the cluster's name
TEAM_TAG = "trainyard/team"  # what base/storage/fsx-dynamic tags file systems with


# All inline policies of a role together, without white space (IAM user guide, quotas).
MOST_CHARACTERS = 10_240


def size(policy: Policy) -> int:
    """Return how many characters of a role's quota a policy takes."""
    return len(json.dumps(policy, separators=(",", ":")))


def trainer(bucket: str, data: str, runs: str, partition: str = "aws") -> Policy:
    """Return what a job may: read below `data`, read and write below `runs`; delete nothing."""
    return _policy(
        _listing(bucket, partition, data, runs),
        _objects("Read", ["s3:GetObject"], bucket, partition, data, runs),
        _objects("Write", ["s3:PutObject", "s3:AbortMultipartUpload"], bucket, partition, runs),
    )


def pruner(bucket: str, runs: str, partition: str = "aws") -> Policy:
    """Return what pruning may: list, read and delete below `runs`; write nothing."""
    return _policy(
        _listing(bucket, partition, runs),
        _objects("ReadAndDelete", ["s3:GetObject", "s3:DeleteObject"], bucket, partition, runs),
    )


def reader(bucket: str, data: str, partition: str = "aws") -> Policy:
    """Return what Mountpoint's read-only volume may: list and read below `data`."""
    return _policy(
        _listing(bucket, partition, data), _objects("Read", ["s3:GetObject"], bucket, partition, data)
    )


def secret_reader(team: str, partition: str = "aws") -> Policy:
    """Return what External Secrets may: read the secrets whose names begin with `team` and a slash."""
    actions = ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"]
    names = [f"arn:{partition}:secretsmanager:*:*:secret:{team}/*"]
    return _policy({"Sid": "Read", "Effect": "Allow", "Action": actions, "Resource": names})


def fsx_driver(team: str, dynamic: bool, partition: str = "aws") -> Policy:
    """Return what the FSx driver may: look; with `dynamic`, make and change file systems of `team` only."""
    look: Policy = {
        "Sid": "Look",
        "Effect": "Allow",
        "Action": ["fsx:DescribeFileSystems"],
        "Resource": "*",  # the action knows no resource
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
    """Return the right to list below prefixes; the condition is what keeps it from the rest of the bucket."""
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
