"""Situations of pods that the cluster ended or deleted: the answer uses what is left of them."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, PEER, STEP, TORCHRUN, situation
from tests.job.world import World, ago


@situation("killed")
def killed_from_outside(world: World) -> None:
    world.crash_looping(0, 137, STEP.format(n=3), reason="Error")


@situation("evicted")
def node_was_short_of_disk(world: World) -> None:
    world.end("Failed")
    world.ended(0, 137)
    message = (
        "The node was low on resource: ephemeral-storage. Container pytorch was using 12Gi, request is 0"
    )
    world.pods[0]["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}


@situation("preempted", G5)
def a_more_important_pod_came(world: World) -> None:
    world.disrupted(
        1, "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"
    )
    for index in (0, 2, 3):
        world.crash_looping(index, 1, PEER)


@situation("drained")
def node_was_drained(world: World) -> None:
    world.disrupted(1, "EvictionByEvictionAPI", "Eviction API: evicting")


@situation("node-lost")
def node_went_away(world: World) -> None:
    ready = world.nodes[1]["status"]["conditions"][0]
    ready |= {
        "status": "Unknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": ago(70),
    }
    world.training(silent=90)


@situation("node-lost")
def node_was_deleted(world: World) -> None:
    world.nodes = world.nodes[:1]


@situation("deadline")
def deadline_is_over(world: World) -> None:
    world.pods = []
    name = world.job["metadata"]["name"]
    world.end("Failed", f"PyTorchJob {name} has failed because it was active longer than specified deadline")


@situation("backoff")
def restarts_are_used_up_and_pods_gone(world: World) -> None:
    world.pods = []
    name = world.job["metadata"]["name"]
    world.end("Failed", f"PyTorchJob {name} has failed because it has reached the specified backoff limit")


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


@situation("command")
def program_is_not_there_between_two_starts(world: World) -> None:
    """The message is containerd 1.6's: no file of the training program is missing."""
    message = NOT_STARTED.format(program="no-such-program", problem="executable file not found in $PATH")
    for index in (0, 1):
        world.crash_looping(index, 128, reason="StartError", message=message)


@situation("command")
def program_was_not_there_and_the_pods_are_gone(world: World) -> None:
    message = NOT_STARTED.format(program="/opt/run.sh", problem="permission denied")
    for index in (0, 1):
        world.event("Pod", world.name(index), "Failed", f"Error: {message}", seconds=90)
    world.pods = []
    _gone(world)


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


@situation("drained", G5)
def spot_node_was_taken_back(world: World) -> None:
    world.disrupted(2, "EvictionByEvictionAPI", "Eviction API: evicting")
    for index in (0, 1, 3):
        world.crash_looping(index, 1, PEER, *TORCHRUN)


@situation("killed")
def the_liveness_probe_has_failed(world: World) -> None:
    """torchrun reports the kubelet's SIGTERM, but the node was not drained."""
    world.crash_looping(
        1,
        1,
        STEP.format(n=3),
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
    )
    message = "Container pytorch failed liveness probe, will be restarted"
    world.event("Pod", world.name(1), "Killing", message, warning=False, seconds=65)


@situation("node-lost", G5)
def the_node_has_restarted_and_lost_the_container(world: World) -> None:
    message = "The container could not be located when the pod was terminated"
    world.crash_looping(1, 137, reason="ContainerStatusUnknown", message=message)
