"""Healthy jobs. Some have lines in their logs that only look like failures."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, HEALTHY, P5, STEP, TOO_EARLY, situation
from tests.job.world import World, ago, node


@situation(HEALTHY)
def training_seen_in_the_log_only(world: World) -> None:
    world.log(0, *(STEP.format(n=n) for n in range(1, 60)), seconds=61)


@situation(HEALTHY)
def restarted_and_training_again(world: World) -> None:
    """The job has recovered from the failure."""
    world.running(1, seconds=300, restarts=1)
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": ago(310)}
    world.pods[1]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    world.training()
    world.failed(1, "communication", "gloo timed out", seconds=310)


@situation(HEALTHY)
def resuming_after_one_restart(world: World) -> None:
    """The pod has just restarted and has not taken a step yet."""
    world.running(0, seconds=20, restarts=1)
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": ago(25)}
    world.pods[0]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    world.training(silent=30, phase="loading")
    assert world.run is not None
    for beat in world.run["heartbeats"].values():
        beat["time"] += 28


@situation(HEALTHY)
def resumed_and_its_last_steps_were_slow(world: World) -> None:
    """The slow steps are from before the suspension, not from the pods that are loading now."""
    _resumed(world, {"tokens_per_s": 500.0, "data_wait_s": 0.6, "rank_step_s": [0.9, 0.4]})


@situation(HEALTHY)
def resumed_behind_steps_without_a_loss(world: World) -> None:
    _resumed(world, {"loss": float("nan")})


def _resumed(world: World, last: dict[str, object]) -> None:
    """New pods are loading; the last steps of the earlier pods had the values `last`."""
    world.training(steps=200, silent=60, phase="loading", rows=[last] * 30)
    assert world.run is not None
    for index in (0, 1):
        world.running(index, seconds=20)
    for beat in world.run["heartbeats"].values():
        beat["time"] += 59


@situation(HEALTHY)
def scheduled_a_moment_ago(world: World) -> None:
    world.pending(0, 1, seconds=3)
    world.nodes = [node(f"node-{index}", "m5.xlarge") for index in range(2)]


@situation(HEALTHY, P5)
def pulling_a_large_image(world: World) -> None:
    for index in range(4):
        world.waiting(index, "ContainerCreating")
        world.event("Pod", world.name(index), "Scheduled", "assigned", warning=False, seconds=500)
        world.event("Pod", world.name(index), "Pulling", "Pulling image trainer-cuda", warning=False, seconds=490)


@situation(HEALTHY)
def preparing_data(world: World) -> None:
    world.log(0, "tokenising 10 of 400 files", "tokenising 20 of 400 files", seconds=30)


@situation(HEALTHY)
def words_that_only_look_like_failures(world: World) -> None:
    """A missing optional file and handled errors in the log of a job that makes progress."""
    lines = [
        "INFO config file not found, using defaults",
        "WARNING image pull secret not configured for the dataset cache: not found",
        "WARNING CUDA out of memory while probing the batch size, trying half of it",
        "INFO connection refused by metrics gateway, retrying without it",
        "INFO nan_to_num is on",
    ]
    world.log(0, *lines, *(STEP.format(n=n) for n in range(1, 60)), seconds=65)


@situation(HEALTHY)
def the_kubelet_asked_too_early(world: World) -> None:
    world.waiting(1, "ContainerCreating")
    world.pods[1]["metadata"]["creationTimestamp"] = ago(9)
    world.event("Pod", world.name(1), "FailedMount", TOO_EARLY, seconds=8)


# ---- from reports of users of such systems


@situation(HEALTHY, G5)
def hub_is_asked_again(world: World) -> None:
    """Successful retries in the log of a job that makes progress."""
    lines = [
        "WARNING:huggingface_hub.utils._http:HTTP Error 429 thrown while requesting GET https://huggingface.co/x",
        "WARNING:huggingface_hub.utils._http:Retrying in 1s [Retry 1/5].",
        "[W1121 socket.cpp:755] [c10d] The client socket has failed to connect to [host]:23456 (errno: 111 - Connection refused).",
    ]
    world.log(0, *lines, *(STEP.format(n=n) for n in range(1, 60)), seconds=63)


@situation(HEALTHY)
def status_could_not_be_asked_and_the_log_shows_steps(world: World) -> None:
    """skypilot #10155: a request that times out is not a failure of the job."""
    world.unseen |= {"Event": "no answer from the cluster for 60 s", "run directory": "exec timed out"}
    world.log(0, *(STEP.format(n=n) for n in range(1, 60)), seconds=61)


@situation(HEALTHY)
def a_long_evaluation_between_two_steps(world: World) -> None:
    """dlrover #1727: some minutes without a step are an evaluation, not a hang."""
    steps = [STEP.format(n=n) for n in range(1, 60)]
    world.log(0, *steps, seconds=200)
    world.log(0, "***** Running Evaluation *****", "Num examples = 40000", seconds=139)


@situation(HEALTHY)
def admitted_by_kueue_and_training(world: World) -> None:
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    world.objects["LocalQueue"] = [{"metadata": {"name": "team-a"}}]
    world.training()


@situation(HEALTHY, P5)
def loading_a_seventy_billion_checkpoint(world: World) -> None:
    for index in range(4):
        world.running(index, seconds=1300)
    world.training(ranks=32, steps=1, silent=1200, phase="loading")
    assert world.run is not None
    world.run["metrics"] = []


@situation(HEALTHY)
def one_rank_is_slower_for_some_seconds(world: World) -> None:
    """Other load on its node takes the processors for 20 seconds."""
    world.training(steps=400, step_s=0.2, rows=[{"rank_step_s": [0.16, 0.08]} for _ in range(100)])


@situation(HEALTHY)
def steps_are_slower_for_some_seconds(world: World) -> None:
    """Other load on the nodes lasts for 12 seconds."""
    world.training(steps=400, step_s=0.2, rows=[{"tokens_per_s": 2000.0, "data_wait_s": 0.1} for _ in range(60)])


@situation(HEALTHY)
def a_sidecar_crashes_again_and_again_and_it_trains(world: World) -> None:
    world.training()
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}}
    last = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": ago(30)}}
    world.init(1, "fluent-bit", waits, last, restartPolicy="Always")


@situation(HEALTHY)
def a_tracker_is_not_reached_and_an_unknown_trainer_works(world: World) -> None:
    warns = "wandb: Network error (ConnectionError), entering retry loop."
    world.log(0, *(line for n in range(150) for line in (warns, f"it {n}: {n / 7:.3f}")), seconds=301)


@situation(HEALTHY)
def an_unknown_trainer_has_recovered_long_ago(world: World) -> None:
    """Its lines show no step, but it runs much longer than before the restart."""
    world.running(1, seconds=7200, restarts=2)
    ended = {"exitCode": 1, "reason": "Error", "startedAt": ago(7600), "finishedAt": ago(7210)}
    world.pods[1]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    world.log(1, *(f"it {n}: {n / 7:.3f}" for n in range(50)), seconds=51)
