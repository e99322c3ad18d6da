"""Transient situations, and next to them those that only look transient."""

from __future__ import annotations

from tests.job.corpus import G5, HEALTHY, STEP, situation
from tests.job.world import World, ago

NO_ADDRESS = (
    'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "0b8b":'
    ' plugin type="aws-cni" name="aws-cni" failed (add): add cmd: failed to assign an IP address to container'
)
NO_DRIVER = (
    'MountVolume.MountDevice failed for volume "fsx": kubernetes.io/csi: attacher.MountDevice failed to create'
    " newCsiDriverClient: driver name fsx.csi.aws.com not found in the list of registered CSI drivers"
)


def _new(world: World, index: int, seconds: float) -> None:
    """The pod has been on its node for `seconds`."""
    world.only_created()
    world.waiting(index, "ContainerCreating")
    world.pods[index]["metadata"]["creationTimestamp"] = ago(seconds)


@situation(HEALTHY)
def the_network_plugin_has_no_address_at_once(world: World) -> None:
    """amazon-vpc-cni-k8s #3066 and #3494: every pod gets this event, and its address a second later."""
    _new(world, 1, seconds=6)
    world.event("Pod", world.name(1), "FailedCreatePodSandBox", NO_ADDRESS, seconds=4)


@situation(HEALTHY)
def it_is_asked_in_the_very_second(world: World) -> None:
    _new(world, 1, seconds=0)
    world.event("Pod", world.name(1), "FailedCreatePodSandBox", NO_ADDRESS, seconds=0)


@situation("pod-network")
def the_network_plugin_has_no_address_at_the_fourth_try(world: World) -> None:
    _new(world, 1, seconds=25)
    for seconds in (24, 20, 14, 3):
        world.event("Pod", world.name(1), "FailedCreatePodSandBox", NO_ADDRESS, seconds=seconds)


@situation(HEALTHY)
def the_driver_of_a_new_node_registers(world: World) -> None:
    _new(world, 1, seconds=12)
    world.event("Pod", world.name(1), "FailedMount", NO_DRIVER, seconds=8)


@situation("volume")
def the_driver_never_registers(world: World) -> None:
    _new(world, 1, seconds=120)
    world.event("Pod", world.name(1), "FailedMount", NO_DRIVER, seconds=8)


# ---- nodes that are starting and volumes that are being created


def _waits_for_a_node(world: World, reason: str, message: str, seconds: float) -> None:
    world.pending(*range(4), seconds=seconds + 5)
    for index in range(4):
        world.hold(f"node-{index}", f"notebook-{index}", gpu="8")
        world.event("Pod", world.name(index), reason, message, warning=False, seconds=seconds)


@situation(HEALTHY, G5)
def the_autoscaler_starts_nodes(world: World) -> None:
    message = "pod triggered scale-up: [{eks-g5-1 4->8 (max: 8)}]"
    _waits_for_a_node(world, "TriggeredScaleUp", message, seconds=140)


@situation(HEALTHY, G5)
def karpenter_starts_nodes(world: World) -> None:
    _waits_for_a_node(world, "Nominated", "Pod should schedule on: nodeclaim/g5-x7k2p", seconds=95)


@situation("unschedulable/nvidia.com/gpu", G5)
def karpenter_has_tried_for_an_hour(world: World) -> None:
    _waits_for_a_node(world, "Nominated", "Pod should schedule on: nodeclaim/g5-x7k2p", seconds=3600)


@situation("unschedulable/nvidia.com/gpu", G5)
def the_autoscaler_has_given_up(world: World) -> None:
    _waits_for_a_node(world, "TriggeredScaleUp", "pod triggered scale-up: [{eks-g5-1 4->8}]", seconds=800)
    message = "pod didn't trigger scale-up: 1 in backoff after failed scale-up"
    for index in range(4):
        world.event("Pod", world.name(index), "NotTriggerScaleUp", message, warning=False, seconds=300)


@situation(HEALTHY)
def the_file_system_is_being_made(world: World) -> None:
    """FSx for Lustre takes about ten minutes."""
    world.pending(0, 1, seconds=200)
    world.objects["StorageClass"].append({"metadata": {"name": "fsx"}, "volumeBindingMode": "Immediate"})
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"], claim["status"] = {"storageClassName": "fsx"}, {"phase": "Pending"}
    message = 'External provisioner is provisioning volume for claim "team-a/trainyard"'
    world.event("PersistentVolumeClaim", "trainyard", "Provisioning", message, warning=False, seconds=190)


@situation(HEALTHY, G5)
def a_pull_secret_is_missing_and_the_image_is_public(world: World) -> None:
    for index in range(4):
        world.waiting(index, "ContainerCreating")
        world.event("Pod", world.name(index), "Pulling", "Pulling image", warning=False, seconds=490)
        message = "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed."
        world.event("Pod", world.name(index), "FailedToRetrieveImagePullSecret", message, seconds=400)


# ---- refusals that have passed, or are not refusals


def _was_refused(world: World, message: str, seconds: float) -> None:
    name = world.job["metadata"]["name"]
    world.event("PyTorchJob", name, "FailedCreatePod", f"Error creating: {message}", seconds=seconds)


@situation(HEALTHY)
def a_webhook_was_down_before_the_pods_were_made(world: World) -> None:
    _was_refused(world, "Internal error occurred: failed calling webhook: no endpoints available", 950)
    world.pods = world.pods[:1]
    world.training(ranks=1)


@situation(HEALTHY)
def the_pod_before_it_is_still_going(world: World) -> None:
    _was_refused(world, 'pods "x-worker-1" already exists', 5)
    world.training()
    world.pods = world.pods[:1]


# ---- jobs that make progress although something is wrong


@situation(HEALTHY)
def a_container_beside_the_trainer_crashes(world: World) -> None:
    world.training()
    crashing = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    for index in (0, 1):
        beside = {"name": "uploader", "state": crashing, "lastState": {}, "restartCount": 9}
        world.pods[index]["status"]["containerStatuses"].append(beside)
    world.log(0, "OSError: [Errno 28] No space left on device", *(STEP.format(n=n) for n in range(20)))


@situation(HEALTHY)
def it_has_trained_between_two_restarts(world: World) -> None:
    world.running(1, seconds=30, restarts=2)
    ended = {"exitCode": 1, "reason": "Error", "startedAt": ago(4000), "finishedAt": ago(40)}
    world.pods[1]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    world.training(silent=45, phase="loading")
    assert world.run is not None
    for beat in world.run["heartbeats"].values():
        beat["time"] += 43


@situation("crash")
def it_has_restarted_without_a_step(world: World) -> None:
    world.running(1, seconds=20, restarts=3)
    ended = {"exitCode": 1, "reason": "Error", "startedAt": ago(60), "finishedAt": ago(40)}
    world.pods[1]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}


@situation(HEALTHY)
def the_kubelet_is_silent_and_the_ranks_are_not(world: World) -> None:
    world.training()
    said = {"status": "Unknown", "message": "Kubelet stopped posting node status."}
    world.nodes[1]["status"]["conditions"][0] |= {**said, "lastTransitionTime": ago(15)}


@situation(HEALTHY)
def the_first_gradients_overflow(world: World) -> None:
    world.training(steps=6, rows=[{"grad_norm": float("nan")} for _ in range(3)])


@situation("nan")
def there_are_no_gradients_any_more(world: World) -> None:
    """With half precision, transformers.Trainer prints the loss as 0."""
    world.training(rows=[{"grad_norm": float("nan"), "loss": 0.0} for _ in range(30)])


# ---- traces of an earlier attempt in the run directory


@situation(HEALTHY)
def a_rank_of_another_size_of_the_job_left_its_heartbeat(world: World) -> None:
    """Elastic: two workers before, one now."""
    world.training(ranks=2)
    assert world.run is not None
    world.run["heartbeats"]["rank-00001.json"]["time"] -= 5000
    world.pods = world.pods[:1]
