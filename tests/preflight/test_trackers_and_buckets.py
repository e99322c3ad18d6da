"""What preflight says of the trackers and buckets of a cell, and what it leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tools.cells.knobs import Knobs, rendered
from tools.core.verdict import State
from tools.preflight.evaluate import evaluate
from tools.workload import kinds

PASS, WARN, FAIL = State.PASS, State.WARN, State.FAIL
Change = Callable[[dict[str, Any]], None]
ONLINE, BUCKET = "track.wandb.project=a", "checkpoint.tiers.s3={every: 50, to: s3://bucket/runs/a}"


def _local(path: str) -> str:
    return f"checkpoint.tiers.local={{every: 10, path: {path}}}"


def _nothing(spec: dict[str, Any]) -> None:
    """The pods of the cell as they are: with the key mounted and an account of their own."""


def _writable_root(spec: dict[str, Any]) -> None:
    for container in spec["containers"]:
        container["securityContext"]["readOnlyRootFilesystem"] = False


def _no_key(spec: dict[str, Any]) -> None:
    spec["volumes"] = [one for one in spec["volumes"] if "trackers" not in str(one)]
    for container in spec["containers"]:
        container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != "trackers"]


def _whole(spec: dict[str, Any]) -> None:
    _no_key(spec)
    spec["volumes"].append({"name": "all", "secret": {"secretName": "trackers"}})


def _from_a_secret(spec: dict[str, Any]) -> None:
    _no_key(spec)
    spec["containers"][0]["envFrom"] = [{"secretRef": {"name": "mine"}}]


def _default_account(spec: dict[str, Any]) -> None:
    spec["serviceAccountName"] = "default"


def _own_keys(spec: dict[str, Any]) -> None:
    _default_account(spec)
    spec["containers"][0]["env"].append({"name": "AWS_ACCESS_KEY_ID", "value": "x"})


@pytest.mark.parametrize(
    ("rule", "setting", "change", "state", "said"),
    [
        ("track", ONLINE, _nothing, PASS, "no key is missing"),
        ("track", ONLINE, _no_key, WARN, "no key for Weights & Biases"),
        ("track", ONLINE, _whole, WARN, "may hold the key"),
        ("track", ONLINE, _from_a_secret, WARN, "may hold the key"),
        ("track", "track.wandb={mode: offline, server: 'http://wandb.team:8080'}", _no_key, PASS, "no key is missing"),
        ("track", "track.wandb={server: 'http://wandb.team:8080'}", _nothing, WARN, "port 8080 of wandb.team"),
        ("track", "track.mlflow.uri=http://mlflow.team:5000", _nothing, WARN, "port 5000 of mlflow.team"),
        (
            "config",
            _local("/nvme"),
            _nothing,
            FAIL,
            "/nvme, which the pod cannot write; nearest value that works: /tmp/che",
        ),
        ("config", _local("/etc/trainyard"), _nothing, FAIL, "/etc/trainyard, which the pod cannot write"),
        ("config", _local("/proc/x"), _writable_root, FAIL, "/proc/x, which the pod cannot write"),
        ("config", _local("/nvme"), _writable_root, PASS, "a valid configuration"),
        ("checkpoint-places", _local("/nvme"), _writable_root, WARN, "in the container's own layer"),
        ("checkpoint-places", _local("/dev/shm"), _nothing, PASS, "emptyDir"),
        ("checkpoint-places", BUCKET, _nothing, PASS, "a service account of their own"),
        ("checkpoint-places", BUCKET, _default_account, WARN, "no service account of their own to give a role to"),
        ("checkpoint-places", BUCKET, _own_keys, WARN, "may bring keys of AWS"),
    ],
)
def test_a_place_is_judged_by_what_the_manifest_shows(
    rule: str, setting: str, change: Change, state: State, said: str
) -> None:
    manifests = rendered("cpu/llama-tiny", None, Knobs(settings=(setting,)))
    for spec in kinds.job_of(manifests).training_specs():
        change(spec)
    found = [one for one in evaluate(manifests).verdicts if one.details["rule"] == rule]
    assert {one.state for one in found} == {state}
    assert all(said in one.summary for one in found)


def test_the_role_that_a_bucket_needs_is_named_as_needed_and_not_as_seen() -> None:
    found = evaluate(rendered("cpu/llama-tiny", None, Knobs(settings=(BUCKET,))))
    assert any("with a role that has s3:ListBucket" in one for one in found.needs)
    assert not any("s3:ListBucket" in one.summary for one in found.verdicts)
