"""eksctl's JSON schema of ClusterConfig, fetched once from its Go module and checked by digest."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import pytest

from tests.parts.alone import alone
from tools.core import go_build, repo

MODULE, VERSION = "github.com/weaveworks/eksctl", "0.230.0"
FILE = "pkg/apis/eksctl.io/v1alpha5/assets/schema.json"
SHA256 = "e6357c8f6ed98a86bfe3c4fd95dfb119ebd5d05bf513b53161f2089d3684a4cf"


@cache
def schema() -> dict[str, Any]:
    """Return the schema. Skip the test where it cannot be fetched."""
    path = repo.root() / ".cache" / f"eksctl-{VERSION}.json"
    with alone(path):
        if not path.is_file():
            try:
                with go_build.workshop(repo.root()) as environment:
                    directory = go_build.module(MODULE, VERSION, environment, print)
                    (directory / FILE).replace(path)
            except go_build.Unusable as reason:
                pytest.skip(f"eksctl's schema cannot be fetched ({reason}): install Go, once with the network")
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    found: dict[str, Any] = json.loads(content)
    return found
