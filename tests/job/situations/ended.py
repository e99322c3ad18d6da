"""Situations of pods that the cluster ended or deleted: the answer uses what is left of them."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from typing import Any

from tests.job.corpus import STEP, situation
from tests.job.world import World, ago


def _exit_event(world: World, index: int, code: int, words: str, seconds: float = 70) -> None:
    """The operator's two events about a container that has failed."""
    job, pod = world.job["metadata"]["name"], world.name(index)
    message = f"Error pod {pod} container pytorch exitCode: {code} terminated message: {words}"
    world.event("PyTorchJob", job, "Error", message, seconds=seconds)
    told = f"Pod: team-a.{pod} exited with code {code}"
    world.event("PyTorchJob", job, "ExitedWithCode", told, warning=False, seconds=seconds)


def _gone(world: World) -> None:
    """All restarts are used, and the operator has deleted the pods."""
    name = world.job["metadata"]["name"]
    world.end("Failed", f"Job {name} has failed because it has reached the specified backoff limit")


NOT_STARTED = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed:"
    ' unable to start container process: exec: "{program}": {problem}: unknown'
)


@situation("backoff")
def another_jobs_program_was_not_there(world: World) -> None:
    """The other job's name begins with this job's name."""
    world.pods = []
    _gone(world)
    message = NOT_STARTED.format(program="run", problem="no such file or directory")
    name = f"{world.job['metadata']['name']}-two-worker-0"
    world.event("Pod", name, "Failed", f"Error: {message}", seconds=90)


@situation("config")
def wrong_key_and_the_pods_are_gone(world: World) -> None:
    """As on real nodes: the job has failed, its pods are deleted, and only the operator's events are left."""
    end = "entrypoint: config: rank 1 on x-worker-1: /etc/trainyard/model.yaml:32: unknown key train.lerning_rate (exit code 78)"
    for index in (0, 1):
        _exit_event(world, index, 78, f"traceback\n{end}\n")
    _gone(world)
    world.pods = []


@situation("oom-host")
def only_exit_codes_are_left_of_the_pods(world: World) -> None:
    """Events of the victims, and before them that of the pod that ran out of memory."""
    _exit_event(world, 1, 160, "", seconds=90)
    _exit_event(world, 0, 164, "", seconds=75)
    _gone(world)
    world.pods = []


@situation("backoff")
def an_old_failure_is_not_why_it_ended(world: World) -> None:
    """The pod recovered an hour before the job failed."""
    _exit_event(world, 1, 160, "", seconds=3600)
    _gone(world)
    world.pods = []


@situation("config")
def the_log_is_gone_and_the_termination_message_is_left(world: World) -> None:
    end = "entrypoint: config: rank 0 on x-worker-0: /etc/trainyard/cell.yaml:3: unknown key paralel (exit code 78)"
    for index in (0, 1):
        world.crash_looping(index, 78)
        world.pods[index]["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] = end


def _terminated(code: int, reason: str = "Error", seconds: float = 50) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": ago(seconds)}}


@situation("oom-device")
def the_sidecar_ends_after_the_training_has_failed(world: World) -> None:
    """The kubelet ends a sidecar when the training has ended: its exit code is not a cause."""
    world.end("Failed")
    for index in (0, 1):
        world.ended(index, 1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
        world.init(index, "gcsfuse", _terminated(143), restartPolicy="Always")


@situation("oom-host")
def the_container_beside_a_training_that_ended_well_has_failed(world: World) -> None:
    """The pod counts as failed, although the training's exit code is 0."""
    world.end("Failed")
    for index in (0, 1):
        world.ended(index, 0, STEP.format(n=400), reason="Completed")
    status = world.pods[1]["status"]
    status["phase"] = "Failed"
    status["containerStatuses"].append({"name": "log-shipper", "state": _terminated(137, "OOMKilled")})


@situation("crash")
def a_sidecar_that_never_starts_keeps_the_training_from_starting(world: World) -> None:
    world.only_created()
    for index in (0, 1):
        world.waiting(index, "PodInitializing")
        waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}}
        world.init(index, "proxy", waits, _terminated(1), restartPolicy="Always")
