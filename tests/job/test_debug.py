"""The path to the rendezvous, hop by hop: what the API server describes, what pods find, and the verdict."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.job.world import World
from tools.core.verdict import State, Verdict
from tools.job import rendezvous_check

PORT = 23456
ADDRESS = "10.0.0.1"


def with_addresses(made: World) -> World:
    """Give each pod an address, and its Service the operator's selector."""
    for index, pod in enumerate(made.pods):
        pod["status"]["podIP"] = f"10.0.0.{index + 1}"
    for service, pod in zip(made.objects["Service"], made.pods, strict=True):
        service["spec"] = {"clusterIP": "None", "selector": pod["metadata"]["labels"]}
    return made


def points(*addresses: str, ready: bool = True) -> list[dict[str, Any]]:
    """EndpointSlices with these addresses."""
    return [{"endpoints": [{"addresses": list(addresses), "conditions": {"ready": ready}}]}]


def states(found: list[Verdict]) -> dict[str, State]:
    """The state of each hop, the last one of its name."""
    return {one.details["hop"]: one.state for one in found}


def hops(made: World, slices: list[dict[str, Any]] | None) -> dict[str, State]:
    """The state of each hop that the API server describes."""
    return states(list(rendezvous_check.check_objects(made.snapshot(), slices)))


def test_every_hop_of_a_healthy_job_passes(world: NewWorld) -> None:
    found = hops(with_addresses(world()), points(ADDRESS))
    assert found == dict.fromkeys(("pod", "service", "endpoints", "policy"), State.PASS)


@pytest.mark.parametrize("slices", [points("10.0.0.9"), points(ADDRESS, ready=False), []])
def test_endpoints_that_lead_nowhere(slices: list[dict[str, Any]], world: NewWorld) -> None:
    found = hops(with_addresses(world()), slices)
    assert [name for name, state in found.items() if state is State.FAIL] == ["endpoints"]


def test_the_broken_hop_is_named(world: NewWorld) -> None:
    made = with_addresses(world())
    made.objects["Service"][0]["spec"]["selector"] = {"app": "other"}
    assert hops(made, points(ADDRESS))["service"] is State.FAIL
    made.objects["Service"] = []
    missing = {"service": State.FAIL, "endpoints": State.CANNOT_TELL}
    assert hops(made, None) == {"pod": State.PASS, **missing, "policy": State.PASS}
    made.objects["NetworkPolicy"] = [{"metadata": {"name": "deny"}, "spec": {"podSelector": {}}}]
    assert hops(made, None)["policy"] is State.FAIL
    made.pending(0)
    assert hops(made, None)["pod"] is State.FAIL


@pytest.mark.parametrize(
    ("state", "said"),
    [("silent", "security group"), ("refused", "torchrun of that pod is not up"), ("unreachable", "routes")],
)
def test_the_state_of_the_port_is_explained(state: str, said: str, world: NewWorld) -> None:
    seen = with_addresses(world()).snapshot()
    there = rendezvous_check.rendezvous(seen)
    assert (there.host, there.port) == ("cpu-llama-tiny-train-worker-0", PORT)
    name = {"addresses": [ADDRESS], "state": "good", "line": "it resolves"}
    reached = [name, name, name, {**name, "state": state, "line": "no"}]
    last = list(rendezvous_check.checked(there, seen.pods[1], reached))[-2]
    assert (last.details["hop"], last.state) == ("port", State.FAIL)
    assert said in str(last.remedy)
    stale = {**name, "addresses": ["10.0.0.7"]}
    found = states(list(rendezvous_check.checked(there, seen.pods[1], [name, stale, name, name])))
    assert found["name"] is State.FAIL, "a name that leads to another pod"


def test_the_command_checks_from_every_running_pod(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    """The stand-in runs a pod's program on this machine: the rendezvous is a port of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = with_addresses(world())
        for index in (0, 1):
            environment = made.container(index)["env"]
            environment[:] = [one for one in environment if one["name"] != "PET_RDZV_ENDPOINT"]
            endpoint = f"localhost:{listening.getsockname()[1]}"
            environment.append({"name": "PET_RDZV_ENDPOINT", "value": endpoint})
        cluster(made)
        answer = yard.json("debug", code=1)  # no pod has that name
    found = {(one["from"], one["hop"]): one["verdict"] for one in answer["hops"]}
    assert found[None, "pod"] == "FAIL"
    assert found[None, "endpoints"] == "CANNOT TELL", "the stand-in has no EndpointSlices"
    for index in (0, 1):
        assert found[made.name(index), "name"] == "PASS"
        assert found[made.name(index), "port"] == "PASS"


def test_without_a_running_pod_nothing_is_checked_from_there(world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = with_addresses(world())
    made.pending(0, 1)
    cluster(made)
    printed = yard.out("debug", code=1)
    assert "CANNOT TELL  look       no container is running to check from" in printed
