"""Stands in for the AWS CLI: does what `aws eks update-kubeconfig` does, without a question to AWS.

tests/aws/test_kubeconfig.py compares it with the real AWS CLI where one is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

KEYS = ("clusters", "users", "contexts")


def main(words: list[str]) -> int:
    """Write a cluster into the file of KUBECONFIG that has it, else into the first."""
    if log := os.environ.get("FAKE_AWS_LOG"):
        with Path(log).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(words) + "\n")
    parser = argparse.ArgumentParser(prog="aws", allow_abbrev=False)
    parser.add_argument("service", choices=["eks"])
    parser.add_argument("operation", choices=["update-kubeconfig"])
    for name in ("name", "region", "alias"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--profile")
    asked = parser.parse_args(words)
    arn = f"arn:aws:eks:{asked.region}:123456789012:cluster/{asked.name}"
    files = [Path(one) for one in os.environ["KUBECONFIG"].split(os.pathsep)]
    file = next((one for one in files if arn in str(load(one)["clusters"])), files[0])
    config = load(file)
    is_known = any(row["name"] == arn for row in config["clusters"])
    arguments = [
        "--region",
        asked.region,
        "eks",
        "get-token",
        "--cluster-name",
        asked.name,
        "--output",
        "json",
    ]
    run: dict[str, Any] = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "args": arguments,
        "command": "aws",
    }
    if asked.profile:
        run["env"] = [{"name": "AWS_PROFILE", "value": asked.profile}]
    server = f"https://{asked.name}.example"
    put(config, "clusters", {"name": arn, "cluster": {"certificate-authority-data": "eA==", "server": server}})
    put(config, "users", {"name": arn, "user": {"exec": run}})
    put(config, "contexts", {"name": asked.alias, "context": {"cluster": arn, "user": arn}})
    config["current-context"] = asked.alias
    file.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as stream:
        yaml.safe_dump(config, stream)
    print(f"{'Updated' if is_known else 'Added new'} context {asked.alias} {'in' if is_known else 'to'} {file}")
    return 0


def load(file: Path) -> dict[str, Any]:
    """Return a kubeconfig, an empty one where there is no file."""
    found = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
    config = found or {"apiVersion": "v1", "kind": "Config", "preferences": {}}
    return config | {key: config.get(key) or [] for key in KEYS}


def put(config: dict[str, Any], key: str, entry: dict[str, Any]) -> None:
    """Replace the entry of the same name, or add it."""
    names = [row["name"] for row in config[key]]
    at = names.index(entry["name"]) if entry["name"] in names else len(names)
    config[key][at : at + 1] = [entry]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
