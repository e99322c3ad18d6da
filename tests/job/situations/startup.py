"""Situations of pods that have a node and whose container does not start."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from functools import partial

from tests.job.corpus import G5, P5, TOO_EARLY, planted, situation
from tests.job.world import World


def _pull(world: World, message: str, reason: str = "ErrImagePull") -> None:
    world.only_created()
    for index in range(len(world.pods)):
        world.waiting(index, reason, message)


@situation("image-name")
def tag_does_not_exist(world: World) -> None:
    _pull(
        world,
        'rpc error: code = NotFound desc = failed to pull and unpack image "registry.example/trainer:0.2": failed to'
        ' resolve reference "registry.example/trainer:0.2": registry.example/trainer:0.2: not found',
    )


@situation("image-name")
def answer_only_in_the_events(world: World) -> None:
    _pull(world, 'Back-off pulling image "registry.example/trainer:0.2"', "ImagePullBackOff")
    for index in (0, 1):
        message = 'Failed to pull image "registry.example/trainer:0.2": rpc error: manifest unknown'
        world.event("Pod", world.name(index), "Failed", message)
        world.event("Pod", world.name(index), "Failed", "Error: ImagePullBackOff", seconds=10)


@situation("image-name")
def name_is_no_name(world: World) -> None:
    _pull(world, "Failed to apply default image tag: couldn't parse image name", "InvalidImageName")


@situation("image-auth")
def private_registry(world: World) -> None:
    _pull(
        world,
        'failed to pull and unpack image: failed to resolve reference "123456789012.dkr.ecr.eu-west-1.amazonaws.com'
        '/trainer:0.1": pull access denied, repository does not exist or may require authorization: authorization'
        " failed: no basic auth credentials",
    )


@situation("image-auth")
def token_has_expired(world: World) -> None:
    _pull(world, "failed to authorize: failed to fetch oauth token: unexpected status: 401 Unauthorized")


@situation("image-rate-limit")
def rate_limit(world: World) -> None:
    _pull(
        world,
        "failed to copy: httpReadSeeker: unexpected status code 429 Too Many Requests - Server message: toomanyrequests:"
        " You have reached your unauthenticated pull rate limit",
    )


@situation("image-architecture")
def image_for_another_processor(world: World) -> None:
    _pull(world, 'failed to pull image: no match for platform in manifest: not found "linux/arm64"')


@situation("image-registry")
def registry_not_reached(world: World) -> None:
    _pull(
        world, 'failed to do request: Head "https://registry.example/v2/": dial tcp 10.0.0.9:443: i/o timeout'
    )


@situation("image-registry")
def registry_name_does_not_resolve(world: World) -> None:
    _pull(world, "dial tcp: lookup registry.example on 10.0.0.2:53: no such host")


@situation("image-absent")
def image_may_not_be_pulled(world: World) -> None:
    _pull(
        world,
        'Container image "localhost/trainer:0.1" is not present with pull policy of Never',
        "ErrImageNeverPull",
    )


@situation("config-missing")
def config_map_missing(world: World) -> None:
    world.only_created()
    world.objects["ConfigMap"] = world.objects["ConfigMap"][1:]
    for index in (0, 1):
        world.waiting(index, "ContainerCreating")
        message = (
            'MountVolume.SetUp failed for volume "config" : configmap "cpu-llama-tiny-cell-abc" not found'
        )
        world.event("Pod", world.name(index), "FailedMount", message)


@situation("config-missing")
def key_of_the_config_map_missing(world: World) -> None:
    message = "couldn't find key cell.yaml in ConfigMap team-a/cell"
    world.only_created()
    for index in (0, 1):
        world.waiting(index, "CreateContainerConfigError", message)


@situation("secret-missing")
def secret_missing(world: World) -> None:
    world.only_created()
    entry = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "token"}}}
    for index in (0, 1):
        world.container(index)["env"].append(entry)
        world.waiting(index, "CreateContainerConfigError", 'secret "wandb" not found')


@situation("secret-missing")
def secret_missing_and_secrets_not_seen(world: World) -> None:
    """Most users may not look at secrets; the kubelet's words are left."""
    world.unseen["Secret"] = "forbidden"
    world.only_created()
    for index in (0, 1):
        world.waiting(index, "CreateContainerConfigError", 'secret "wandb" not found')


@situation("volume")
def driver_not_on_the_node(world: World) -> None:
    world.only_created()
    for index in (0, 1):
        world.waiting(index, "ContainerCreating")
        message = 'MountVolume.MountDevice failed for volume "fsx": driver name fsx.csi.aws.com not found in the list'
        world.event("Pod", world.name(index), "FailedMount", message)


@situation("volume")
def the_kubelet_may_not_have_the_claim(world: World) -> None:
    """What passes within seconds elsewhere stands for minutes here."""
    world.only_created()
    world.waiting(1, "ContainerCreating")
    world.event("Pod", world.name(1), "FailedMount", TOO_EARLY, seconds=40)


@situation("pod-network")
def no_address_left(world: World) -> None:
    world.only_created()
    world.waiting(1, "ContainerCreating")
    message = 'plugin type="aws-cni" failed (add): add cmd: failed to assign an IP address to container'
    world.event("Pod", world.name(1), "FailedCreatePodSandBox", f"Failed to create pod sandbox: {message}")


@situation("run-as-root")
def image_runs_as_root(world: World) -> None:
    world.only_created()
    message = "container has runAsNonRoot and image will run as root"
    for index in (0, 1):
        world.waiting(index, "CreateContainerConfigError", message)


@situation("command")
def no_such_program(world: World) -> None:
    message = 'OCI runtime create failed: exec: "torchrunn": executable file not found in $PATH: unknown'
    for index in (0, 1):
        world.waiting(index, "RunContainerError", message)


@situation("image-architecture")
def exec_format_error(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(index, 1, "exec /usr/local/bin/torchrun: exec format error")


@situation("node-refused", G5)
def device_was_given_away(world: World) -> None:
    world.running(1)
    message = (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8"
    )
    world.pods[1]["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    world.pods[1]["status"].pop("containerStatuses")


# ---- from what users of such systems report


@situation("volume", P5)
def lustre_does_not_mount_and_it_looks_like_a_slow_pull(world: World) -> None:
    """skypilot #7925: a volume that does not mount was reported as an image that is being pulled."""
    world.only_created()
    for index in range(4):
        world.waiting(index, "ContainerCreating")
        world.event("Pod", world.name(index), "Scheduled", "assigned", warning=False, seconds=500)
        message = (
            'MountVolume.SetUp failed for volume "fsx" : rpc error: code = Internal desc = Could not mount'
            ' "fs-0a.fsx.eu-west-1.amazonaws.com@tcp:/abc" at "/var/lib/kubelet/pods/x": exit status 19'
        )
        world.event("Pod", world.name(index), "FailedMount", message, seconds=40)


@situation("volume")
def a_disk_for_one_node_is_wanted_by_two(world: World) -> None:
    world.only_created()
    world.waiting(1, "ContainerCreating")
    message = (
        'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) cpu-llama-tiny-train-worker-0'
    )
    world.event("Pod", world.name(1), "FailedAttachVolume", message)


@situation("image-rate-limit")
def docker_hub_says_too_many(world: World) -> None:
    _pull(
        world,
        'Back-off pulling image "pytorch/pytorch:2.10": ErrImagePull: rpc error: code = Unknown desc = failed to pull and'
        " unpack image: toomanyrequests: You have reached your pull rate limit. You may increase the limit by"
        " authenticating and upgrading: https://www.docker.com/increase-rate-limit",
        "ImagePullBackOff",
    )


@situation("image-architecture")
def manifest_list_without_the_nodes_processor(world: World) -> None:
    _pull(world, "no matching manifest for linux/arm64/v8 in the manifest list entries")


@situation("image-registry")
def certificate_of_the_registry_is_unknown(world: World) -> None:
    _pull(
        world,
        'failed to do request: Head "https://registry.internal/v2/trainer/manifests/1": tls: failed to verify'
        " certificate: x509: certificate signed by unknown authority",
    )


@situation("storage-full")
def the_nodes_disk_has_no_room_for_the_image(world: World) -> None:
    _pull(
        world,
        "failed to pull and unpack image: failed to extract layer sha256:ab: write /var/lib/containerd/x:"
        " no space left on device: unknown",
    )


@situation("image-auth")
def node_role_may_not_read_the_registry(world: World) -> None:
    _pull(
        world,
        "failed to resolve reference: unexpected status from HEAD request to https://1234.dkr.ecr.eu-west-1."
        "amazonaws.com/v2/trainer/manifests/1: 403 Forbidden",
    )


@situation("command")
def entrypoint_may_not_be_executed(world: World) -> None:
    message = 'failed to create containerd task: exec: "/opt/run.sh": permission denied: unknown'
    for index in (0, 1):
        world.waiting(index, "RunContainerError", message)


@situation("config-missing")
def key_is_missing_and_config_maps_are_not_seen(world: World) -> None:
    world.unseen["ConfigMap"] = "forbidden"
    world.only_created()
    world.waiting(0, "ContainerCreating")
    message = 'MountVolume.SetUp failed for volume "config" : references non-existent config key: model.yaml'
    world.event("Pod", world.name(0), "FailedMount", message)


# What registries and runtimes answer: name, cause, reason, message.
ANSWERS = (
    (
        "ngc_wants_a_subscription", "image-auth", "ErrImagePull",
        "unexpected status from HEAD request to https://nvcr.io/v2/nvidia/nemo/manifests/25.07: 402 Payment Required",
    ),
    (
        "an_images_name_has_tls_in_it", "image-name", "ErrImagePull",
        'failed to resolve reference "registry.example/ttls-trainer:1": registry.example/ttls-trainer:1: not found',
    ),
    (
        "a_short_name_has_no_registry", "image-name", "ErrImagePull",
        'short-name "trainer:1" did not resolve to an alias and no unqualified-search registries are defined',
    ),
    (
        "node_role_lacks_a_right", "image-auth", "ErrImagePull",
        "User: arn:aws:sts::1:assumed-role/node is not authorized to perform: ecr:BatchGetImage on resource: x",
    ),
    (
        "driver_is_too_old_for_the_image", "image-accelerator", "RunContainerError",
        "OCI runtime create failed: error running prestart hook #0: nvidia-container-cli: requirement error:"
        " unsatisfied condition: cuda>=12.8, please update your driver to a newer version",
    ),
    (
        "driver_is_not_loaded", "device", "RunContainerError",
        "OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded",
    ),
    (
        "card_is_not_known_to_the_runtime", "device", "CreateContainerError",
        "failed to generate spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
    ),
    (
        "what_is_mounted_is_not_there", "volume", "RunContainerError",
        'OCI runtime create failed: error mounting "/dev/infiniband" to rootfs: stat /dev/infiniband: no such file or directory',
    ),
    (
        "sub_path_fails", "volume", "CreateContainerConfigError",
        'failed to prepare subPath for volumeMount "shared" of container "pytorch"',
    ),
    (
        "image_without_a_command", "command", "CreateContainerError",
        "failed to generate container spec: failed to generate spec: no command specified",
    ),
    (
        "no_room_for_the_container", "storage-full", "CreateContainerError",
        "failed to prepare extraction snapshot: mkdir /var/lib/containerd/x: no space left on device",
    ),
)  # fmt: skip


def _answered(world: World, reason: str, message: str) -> None:
    _pull(world, message, reason)


for name, cause, reason, message in ANSWERS:
    planted(name, cause, partial(_answered, reason=reason, message=message))


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
    world.log(0, "cp: error writing '/scratch/x': No space left on device")


@situation("oom-host", G5)
def an_init_container_needs_more_memory(world: World) -> None:
    _init(world, 137, "OOMKilled")


@situation("command", G5)
def an_init_container_has_no_such_program(world: World) -> None:
    _init(world, 127, "Error")


@situation("rendezvous-dns")
def the_masters_name_never_resolves(world: World) -> None:
    """The operator's own init container looks for it, and gives up."""
    _init(world, 1, "Error")
    for pod in world.pods:
        pod["status"]["initContainerStatuses"][0]["name"] = "init-pytorch"


@situation("node-refused", G5)
def cards_and_processors_are_not_on_one_socket(world: World) -> None:
    world.running(1)
    message = "Resources cannot be allocated with Topology locality"
    world.pods[1]["status"] |= {"phase": "Failed", "reason": "TopologyAffinityError", "message": message}
    world.pods[1]["status"].pop("containerStatuses")
