"""Stands in for eksctl: creates in moto what the config file asks for, as far as AWS shows it.

FAKE_EKSCTL_FAIL=GROUP fails before that node group, as eksctl does when a zone has no capacity.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError
from ruamel.yaml import YAML

ROLE = "arn:aws:iam::123456789012:role/eks"


def main(words: list[str]) -> int:
    """Run `eksctl create KIND --config-file=FILE`."""
    with Path(os.environ["FAKE_EKSCTL_LOG"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps(words) + "\n")
    file = next(word.partition("=")[2] for word in words if word.startswith("--config-file="))
    config: dict[str, Any] = YAML(typ="safe").load(Path(file))
    name = config["metadata"]["name"]
    eks = boto3.client("eks", region_name=config["metadata"]["region"])
    if words[1] == "cluster":
        print("[i]  building cluster stack", flush=True)
        ec2 = boto3.client("ec2", region_name=config["metadata"]["region"])
        vpc = {"subnetIds": [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]][:2]}
        tags = config["metadata"]["tags"]
        stack = f"eksctl-{name}-cluster"
        make_stack(config["metadata"]["region"], stack, tags)
        tags = {**tags, "aws:cloudformation:stack-name": stack}
        version = config["metadata"]["version"]
        eks.create_cluster(name=name, version=version, roleArn=ROLE, resourcesVpcConfig=vpc, tags=tags)
    if words[1] in ("cluster", "nodegroup"):
        for group in config["managedNodeGroups"]:
            if os.environ.get("FAKE_EKSCTL_FAIL") == group["name"]:
                print(f"[x]  no capacity for {group['name']}", flush=True)
                return 1
            make_group(eks, name, group)
    return 0


def make_stack(region: str, name: str, tags: dict[str, str]) -> None:
    """Create the stack of the cluster, unless an earlier test has left it."""
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    template = '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}'
    client = boto3.client("cloudformation", region_name=region)
    try:
        client.create_stack(StackName=name, TemplateBody=template, Tags=pairs)
    except client.exceptions.AlreadyExistsException:
        print("the stack exists", flush=True)


def make_group(eks: Any, cluster: str, group: dict[str, Any]) -> None:
    """Create a node group unless it exists."""
    scaling = {
        "minSize": group["minSize"],
        "maxSize": group["maxSize"],
        "desiredSize": group["desiredCapacity"],
    }
    try:
        eks.create_nodegroup(
            clusterName=cluster,
            nodegroupName=group["name"],
            nodeRole=ROLE,
            subnets=["subnet-1"],
            scalingConfig=scaling,
            tags=group["tags"],
        )
    except ClientError as problem:
        if problem.response["Error"]["Code"] != "ResourceInUseException":
            raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
