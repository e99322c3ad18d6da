"""Situations of pods that have a node, but whose container does not start."""

from __future__ import annotations

from tests.job.corpus import G5, P5, TOO_EARLY, situation
from tests.job.world import World
from tools.job.snapshot.snapshot import OTHER


def _pull(world: World, message: str, reason: str = "ErrImagePull") -> None:
    world.only_created()
    for index in range(len(world.pods)):
        world.waiting(index, reason, message)


@situation("image-name")
def answer_only_in_the_events(world: World) -> None:
    _pull(world, 'Back-off pulling image "registry.example/trainer:0.2"', "ImagePullBackOff")
    for index in (0, 1):
        message = 'Failed to pull image "registry.example/trainer:0.2": rpc error: manifest unknown'
        world.event("Pod", world.name(index), "Failed", message)
        world.event("Pod", world.name(index), "Failed", "Error: ImagePullBackOff", seconds=10)


@situation("secret-missing")
def secret_missing(world: World) -> None:
    world.only_created()
    entry = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "token"}}}
    for index in (0, 1):
        world.container(index)["env"].append(entry)
        world.waiting(index, "CreateContainerConfigError", 'secret "wandb" not found')


@situation("volume")
def the_kubelet_may_not_have_the_claim(world: World) -> None:
    """A complaint that usually passes within seconds has lasted for minutes."""
    world.only_created()
    world.waiting(1, "ContainerCreating")
    world.event("Pod", world.name(1), "FailedMount", TOO_EARLY, seconds=40)


# ---- from reports of users of such systems


@situation("volume", P5)
def lustre_does_not_mount_and_it_looks_like_a_slow_pull(world: World) -> None:
    """skypilot #7925: a volume that does not mount was reported as an image pull."""
    world.only_created()
    for index in range(4):
        world.waiting(index, "ContainerCreating")
        world.event("Pod", world.name(index), "Scheduled", "assigned", warning=False, seconds=500)
        message = (
            'MountVolume.SetUp failed for volume "fsx" : rpc error: code = Internal desc = Could not mount'
            ' "fs-0a.fsx.eu-west-1.amazonaws.com@tcp:/abc" at "/var/lib/kubelet/pods/x": exit status 19'
        )
        world.event("Pod", world.name(index), "FailedMount", message, seconds=40)


def _init(world: World, code: int, reason: str) -> None:
    """An init container fails again and again."""
    world.only_created()
    ended = {"exitCode": code, "reason": reason, "finishedAt": "2026-11-21T11:59:00Z"}
    waits = {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=fetch"}
    status = {"name": "fetch", "state": {"waiting": waits}, "lastState": {"terminated": ended}}
    for index in range(len(world.pods)):
        world.waiting(index, "PodInitializing")
        world.pods[index]["status"]["initContainerStatuses"] = [status | {"restartCount": 4}]


@situation("storage-full", G5)
def an_init_container_fails(world: World) -> None:
    _init(world, 1, "Error")
    world.log(0, "cp: error writing '/scratch/x': No space left on device", which=OTHER)


@situation("oom-host", G5)
def an_init_container_needs_more_memory(world: World) -> None:
    _init(world, 137, "OOMKilled")


@situation("command", G5)
def an_init_container_has_no_such_program(world: World) -> None:
    _init(world, 127, "Error")


@situation("rendezvous-dns")
def the_masters_name_never_resolves(world: World) -> None:
    """The operator's init container looks the name up, and gives up."""
    _init(world, 1, "Error")
    for pod in world.pods:
        pod["status"]["initContainerStatuses"][0]["name"] = "init-pytorch"


@situation("image-rate-limit")
def the_operators_init_container_is_rate_limited(world: World) -> None:
    world.only_created()
    said = 'Back-off pulling image "alpine:3.10": ErrImagePull: toomanyrequests: You have reached your pull rate limit'
    world.waiting(1, "PodInitializing")
    world.init(1, "init-pytorch", {"waiting": {"reason": "ImagePullBackOff", "message": said}}, image="alpine:3.10")


@situation("node-refused", G5)
def cards_and_processors_are_not_on_one_socket(world: World) -> None:
    world.running(1)
    message = "Resources cannot be allocated with Topology locality"
    world.pods[1]["status"] |= {"phase": "Failed", "reason": "TopologyAffinityError", "message": message}
    world.pods[1]["status"].pop("containerStatuses")
