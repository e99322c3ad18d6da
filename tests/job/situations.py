"""The corpus of `why`: situations planted in a healthy job, each with the cause that must come first.

`healthy` and `cannot tell` are answers too. The words of registries, kubelets, the operator, NCCL and torch
are theirs, as they print them.
"""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.job.world import World, ago, node
from training import watch

CPU, P5, G5 = "cpu/llama-tiny", "p5/llama-3-1-8b", "g5/llama-2-7b"
HEALTHY, CANNOT_TELL = "healthy", "cannot tell"


@dataclass(frozen=True)
class Situation:
    """A change to a healthy job's world, and what `why` must say of it."""

    name: str
    cell: str
    cause: str
    plant: Callable[[World], None]


SITUATIONS: list[Situation] = []
Plant = Callable[[World], None]


def situation(cause: str, cell: str = CPU) -> Callable[[Plant], Plant]:
    """Add the function to the corpus."""

    def add(plant: Plant) -> Plant:
        SITUATIONS.append(Situation(plant.__name__, cell, cause, plant))
        return plant

    return add


STEP = "step  {n}/400  loss 3.000  lr 1.00e-03  900 tokens/s  MFU unknown  1.0 GiB  ETA 1:00"
TORCHRUN = (
    "E1121 11:59:00.000000 17 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "Root Cause (first observed failure):",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)
PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.1.7]:31337"


# ---- healthy


@situation(HEALTHY)
def training_with_heartbeats(world: World) -> None:
    world.training()


@situation(HEALTHY)
def training_seen_in_the_log_only(world: World) -> None:
    world.log(0, *(STEP.format(n=n) for n in range(1, 60)), seconds=61)


@situation(HEALTHY, P5)
def eight_cards_a_pod(world: World) -> None:
    world.training(ranks=32)
    world.log(0, "node-0:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 16 nics)")


@situation(HEALTHY)
def succeeded(world: World) -> None:
    world.end("Succeeded")
    for index in (0, 1):
        world.ended(index, 0, STEP.format(n=400), reason="Completed")


@situation(HEALTHY)
def succeeded_after_a_failure(world: World) -> None:
    world.end("Succeeded")
    world.failed(1, "out of memory", "CUDA out of memory", seconds=500)


@situation(HEALTHY)
def one_worker_has_ended_and_the_other_writes_its_report(world: World) -> None:
    world.training(phase="sampling")
    world.ended(1, 0, "done", reason="Completed")


@situation(HEALTHY)
def restarted_and_training_again(world: World) -> None:
    """A cured failure is history."""
    world.running(1, seconds=300, restarts=1)
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": ago(310)}
    world.pods[1]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    world.training()
    world.failed(1, "communication", "gloo timed out", seconds=310)


@situation(HEALTHY)
def resuming_after_one_restart(world: World) -> None:
    """It has just come back and not taken a step yet."""
    world.running(0, seconds=20, restarts=1)
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": ago(25)}
    world.pods[0]["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended}
    world.training(silent=30, phase="loading")
    assert world.run is not None
    for beat in world.run["heartbeats"].values():
        beat["time"] += 28


@situation(HEALTHY)
def scheduled_a_moment_ago(world: World) -> None:
    world.pending(0, 1, seconds=3)
    world.nodes = [node(f"node-{index}", "m5.xlarge") for index in range(2)]


@situation(HEALTHY, P5)
def pulling_a_large_image(world: World) -> None:
    for index in range(4):
        world.waiting(index, "ContainerCreating")
        world.event("Pod", world.name(index), "Scheduled", "assigned", warning=False, seconds=500)
        world.event(
            "Pod", world.name(index), "Pulling", "Pulling image trainer-cuda", warning=False, seconds=490
        )


@situation(HEALTHY)
def compiling_for_ten_minutes(world: World) -> None:
    world.training(steps=1, silent=600, phase="compiling")


@situation(HEALTHY)
def evaluating_for_two_minutes(world: World) -> None:
    """A long evaluation is no hang."""
    world.training(silent=120, phase="evaluating")


@situation(HEALTHY)
def saving_a_large_checkpoint(world: World) -> None:
    world.training(silent=400, phase="saving")


@situation(HEALTHY)
def preparing_data(world: World) -> None:
    world.log(0, "tokenising 10 of 400 files", "tokenising 20 of 400 files", seconds=30)


@situation(HEALTHY)
def words_that_only_look_like_failures(world: World) -> None:
    """A config file not found, and errors that were handled, in the log of a job that trains."""
    lines = [
        "INFO config file not found, using defaults",
        "WARNING image pull secret not configured for the dataset cache: not found",
        "WARNING CUDA out of memory while probing the batch size, trying half of it",
        "INFO connection refused by metrics gateway, retrying without it",
        "INFO nan_to_num is on",
    ]
    world.log(0, *lines, *(STEP.format(n=n) for n in range(1, 60)), seconds=65)


@situation(HEALTHY)
def master_is_being_replaced(world: World) -> None:
    world.pods[0]["metadata"]["deletionTimestamp"] = ago(5)
    world.waiting(0, "ContainerCreating")


@situation(HEALTHY, G5)
def an_old_mount_event_of_a_running_pod(world: World) -> None:
    world.event("Pod", world.name(0), "FailedMount", "MountVolume.SetUp failed: timed out", seconds=800)
    world.training(ranks=32)


# ---- no pods yet


@situation("suspended")
def suspended_by_hand(world: World) -> None:
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []


@situation("queue")
def not_admitted_by_kueue(world: World) -> None:
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    message = "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor default"
    world.objects["LocalQueue"] = [{"metadata": {"name": "team-a"}}]
    world.objects["Workload"] = [
        {
            "metadata": {"name": "pytorchjob-x", "ownerReferences": [{"uid": "uid-job"}]},
            "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]},
        }
    ]


@situation("queue")
def local_queue_does_not_exist(world: World) -> None:
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-b"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    world.objects["LocalQueue"] = [{"metadata": {"name": "team-a"}}]


@situation("queue", G5)
def volcano_gang_not_admitted(world: World) -> None:
    world.only_created()
    world.pods = []
    name = world.job["metadata"]["name"]
    message = "queue resource quota insufficient"
    world.objects["PodGroup"] = [
        {
            "metadata": {"name": name},
            "spec": {"minMember": 4, "queue": "training"},
            "status": {"phase": "Pending", "conditions": [{"message": message}]},
        }
    ]


@situation("operator")
def operator_is_down(world: World) -> None:
    world.job["status"] = {}
    world.pods = []
    world.others.append(
        {
            "metadata": {"name": "training-operator-5d", "namespace": "kubeflow"},
            "spec": {"containers": [{"image": "ghcr.io/kubeflow/training-v1/training-operator:v1.9.4"}]},
            "status": {"phase": "Running", "containerStatuses": [{"ready": False}]},
        }
    )


@situation("operator")
def no_operator_at_all(world: World) -> None:
    world.job.pop("status")
    world.pods = []


def _refused(world: World, message: str) -> None:
    world.only_created()
    world.pods = []
    name = world.job["metadata"]["name"]
    world.event("PyTorchJob", name, "FailedCreatePod", f"Error creating: {message}")


@situation("quota", G5)
def quota_of_gpus_used_up(world: World) -> None:
    hard, used = {"requests.nvidia.com/gpu": "16"}, {"requests.nvidia.com/gpu": "12"}
    world.objects["ResourceQuota"] = [{"metadata": {"name": "gpus"}, "status": {"hard": hard, "used": used}}]
    _refused(
        world,
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 12, limited: 16',
    )


@situation("pod-security")
def restricted_namespace(world: World) -> None:
    _refused(
        world,
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes (volume "shm")',
    )


@situation("webhook")
def webhook_without_endpoints(world: World) -> None:
    _refused(
        world,
        'Internal error occurred: failed calling webhook "pods.policy.example": failed to call webhook: Post '
        '"https://policy.kyverno.svc:443/validate": no endpoints available for service "policy"',
    )


@situation("refused")
def webhook_says_no(world: World) -> None:
    _refused(
        world, 'admission webhook "policy.example" denied the request: images must come from our registry'
    )


@situation("serviceaccount-missing")
def service_account_missing(world: World) -> None:
    _refused(
        world,
        'pods "x" is forbidden: error looking up service account team-a/train: serviceaccount "train" not found',
    )


@situation("refused")
def restart_policy_misspelt(world: World) -> None:
    _refused(world, 'Pod "x" is invalid: spec.restartPolicy: Unsupported value: "OnFailur"')


# ---- no node


@situation("unschedulable/nvidia.com/gpu", G5)
def gpus_are_taken(world: World) -> None:
    world.pending(2, 3)
    world.hold("node-2", "notebook-a", gpu="8")
    world.hold("node-3", "notebook-b", gpu="1")


@situation("unschedulable/nvidia.com/gpu", P5)
def device_plugin_missing(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        del one["status"]["allocatable"]["nvidia.com/gpu"]


@situation("unschedulable/vpc.amazonaws.com/efa", P5)
def efa_plugin_missing(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        one["status"]["allocatable"]["vpc.amazonaws.com/efa"] = "0"


@situation("unschedulable/hugepages-2Mi", P5)
def no_huge_pages(world: World) -> None:
    world.pending(*range(4))
    for one in world.nodes:
        one["status"]["allocatable"]["hugepages-2Mi"] = "0"


@situation("unschedulable/memory")
def memory_is_taken(world: World) -> None:
    world.pending(1)
    world.nodes[1]["status"]["allocatable"]["memory"] = "4Gi"
    world.nodes[0]["status"]["allocatable"]["memory"] = "4Gi"
    world.hold("node-1", "cache", memory="2Gi")


@situation("unschedulable/cpu")
def processors_are_taken(world: World) -> None:
    world.pending(0, 1)
    world.hold("node-0", "builder-a", cpu="3500m")
    world.hold("node-1", "builder-b", cpu="3")
    world.hold("node-1", "builder-c", cpu="500m")


@situation("unschedulable/cpu")
def nodes_are_too_small(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["status"]["allocatable"]["cpu"] = "900m"


@situation("unschedulable/pods")
def nodes_are_full_of_pods(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["status"]["allocatable"]["pods"] = "4"
        for number in range(4):
            world.hold(one["metadata"]["name"], f"tiny-{one['metadata']['name']}-{number}", cpu="1m")


@situation("unschedulable/taint", G5)
def gpu_nodes_are_tainted(world: World) -> None:
    world.pending(*range(4))
    for pod in world.pods:
        pod["spec"]["tolerations"] = []
    for one in world.nodes:
        one["spec"]["taints"] = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]
    world.nodes.append(node("small", "m5.xlarge"))


@situation("unschedulable/affinity", P5)
def no_node_of_that_type(world: World) -> None:
    world.pending(*range(4))
    world.nodes = [node(f"node-{index}", "p4d.24xlarge") for index in range(4)]


@situation("unschedulable/selector")
def selector_matches_nothing(world: World) -> None:
    world.pending(0, 1)
    for pod in world.pods:
        pod["spec"]["nodeSelector"] = {"node-group": "training"}


@situation("unschedulable/cordoned")
def all_nodes_cordoned(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["spec"] = {"unschedulable": True}


@situation("unschedulable/not ready")
def nodes_not_ready(world: World) -> None:
    world.pending(0, 1)
    for one in world.nodes:
        one["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]


@situation("unschedulable/zone")
def volume_in_another_zone(world: World) -> None:
    world.pending(0, 1)
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-west-1b"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    world.objects["PersistentVolume"][0]["spec"]["nodeAffinity"] = affinity


@situation("unschedulable/apart")
def pods_exclude_each_other(world: World) -> None:
    world.pending(1)
    name = world.job["metadata"]["name"]
    term = {
        "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.pods[1]["spec"]["affinity"] = rule
    world.nodes = world.nodes[:1]


@situation("unschedulable/no-nodes")
def cluster_scaled_to_zero(world: World) -> None:
    world.pending(0, 1)
    world.nodes = []


@situation("unschedulable/nvidia.com/gpu", G5)
def one_rank_pending_and_the_others_wait_at_the_rendezvous(world: World) -> None:
    """The rendezvous that times out is the victim of the pod that has no node."""
    world.pending(3)
    world.hold("node-3", "other-job-worker-0", gpu="8")
    for index in range(3):
        world.crash_looping(
            index, 1, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: timed out", *TORCHRUN
        )


@situation("claim-missing")
def claim_was_never_made(world: World) -> None:
    world.pending(0, 1)
    world.objects["PersistentVolumeClaim"] = []


@situation("claim-pending")
def storage_class_misspelt(world: World) -> None:
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"] = {"storageClassName": "fsx-lustre"}
    claim["status"] = {"phase": "Pending"}


@situation("claim-pending")
def no_default_class(world: World) -> None:
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["spec"], claim["status"] = {}, {"phase": "Pending"}


@situation("claim-pending")
def provisioning_fails(world: World) -> None:
    world.pending(0, 1)
    claim = world.objects["PersistentVolumeClaim"][0]
    claim["status"] = {"phase": "Pending"}
    del claim["spec"]["volumeName"]
    message = 'failed to provision volume with StorageClass "gp3": rpc error: UnauthorizedOperation'
    world.event("PersistentVolumeClaim", "trainyard", "ProvisioningFailed", message)


@situation("scheduler-absent")
def volcano_is_not_installed(world: World) -> None:
    world.pending(0, 1, asked=False)
    for pod in world.pods:
        pod["spec"]["schedulerName"] = "volcano"


@situation("queue")
def pods_are_gated(world: World) -> None:
    world.pending(0, 1, asked=False)
    for pod in world.pods:
        pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]


# ---- the container does not start


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


# ---- failures


@situation("config")
def unknown_key(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index, 1, f"rank {index}: config: /etc/trainyard/model.yaml:7: unknown key train.lr", *TORCHRUN
        )


@situation("config")
def unknown_key_by_exit_code_alone(world: World) -> None:
    world.crash_looping(0, 78)
    world.crash_looping(1, 78)


@situation("oom-device", G5)
def one_rank_out_of_memory_the_others_lose_it(world: World) -> None:
    world.end("Failed")
    for index in (0, 1, 3):
        world.ended(index, 1, PEER, *TORCHRUN, seconds=40)
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total of 22 GiB"
    )
    world.ended(2, 1, f"[rank19]: {text}", *TORCHRUN, seconds=42)


@situation("oom-device", G5)
def record_of_the_first_rank(world: World) -> None:
    world.end("Failed")
    for index in range(4):
        world.ended(index, 160, "[rank0]: error", *TORCHRUN)
    world.training(ranks=32, silent=60)
    world.failed(19, "out of memory", "CUDA out of memory. Tried to allocate 2 GiB", 50, "OutOfMemoryError")
    for rank in (0, 7, 31):
        world.failed(rank, "lost peer", "Connection closed by peer", seconds=51 if rank == 0 else 49)


@situation("oom-device", G5)
def every_pod_concludes_with_the_same_rank(world: World) -> None:
    """As training.entrypoint ends a pod: with the first failure of the whole job, from the records of all."""
    world.end("Failed")
    end = "entrypoint: out of memory: rank 19 on g5-llama-2-7b-train-worker-2 at step 100: CUDA out of memory (exit code 160)"
    for index in range(4):
        world.ended(index, 160, f"[rank{8 * index}]: {PEER}", *TORCHRUN, end)


@situation("hang")
def the_guard_has_ended_a_rank(world: World) -> None:
    end = "entrypoint: hang: rank 1 on x-worker-1: no progress for 190 s in training after step 7 (limit 180 s): its process is stopped (exit code 162)"
    world.crash_looping(
        1, 162, "entrypoint: rank 1 hangs: no progress for 190 s; it is killed", *TORCHRUN, end
    )
    world.crash_looping(
        0, 164, PEER, "entrypoint: lost peer: rank 0 on x-worker-0: Connection closed by peer (exit code 164)"
    )


@situation("oom-host")
def out_of_memory_by_exit_code_on_processors(world: World) -> None:
    world.crash_looping(0, 160)


@situation("upload")
def bucket_refuses_the_model(world: World) -> None:
    world.end("Failed")
    world.ended(
        0,
        166,
        "entrypoint: upload: rank 0 on x-worker-0 at step 400: AccessDenied: s3://models/x (exit code 166)",
    )


@situation("oom-host")
def killed_by_the_kernel_for_memory(world: World) -> None:
    world.crash_looping(1, 137, STEP.format(n=7), reason="OOMKilled")
    world.crash_looping(0, 1, PEER, *TORCHRUN)


@situation("shared-memory", G5)
def shm_too_small(world: World) -> None:
    text = "RuntimeError: DataLoader worker (pid 88) is killed by signal: Bus error. It is possible that insufficient"
    world.crash_looping(
        0, 1, f"ERROR: Unexpected bus error encountered in worker. {text}", f"{text} shared memory (shm)."
    )


@situation("nan")
def loss_is_nan(world: World) -> None:
    world.end("Failed")
    text = "rank {n}: nan: the loss of rank 1 is not finite at step 88; nothing of this step was saved"
    for index in (0, 1):
        world.ended(index, 70, text.format(n=index), *TORCHRUN)


@situation("data")
def data_not_there(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "FileNotFoundError: [Errno 2] No such file or directory: '/shared/data/tokens/train-00000.bin'",
        )


@situation("hub-auth", G5)
def gated_model(world: World) -> None:
    text = "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url"
    for index in range(4):
        world.crash_looping(index, 1, f"{text} https://huggingface.co/meta-llama/Llama-2-7b", *TORCHRUN)


@situation("hub-unreachable", G5)
def hub_not_reached(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find",
        )


@situation("storage-full")
def volume_is_full(world: World) -> None:
    world.end("Failed")
    world.ended(0, 165, "rank 0: storage: step-00000100: No space left on device", *TORCHRUN, seconds=60)
    world.ended(1, 164, "rank 1: lost peer: Connection closed by peer", seconds=50)


@situation("storage")
def volume_reports_io_errors(world: World) -> None:
    world.crash_looping(0, 1, "OSError: [Errno 5] Input/output error: '/shared/runs/x/metrics.jsonl'")
    world.crash_looping(1, 1, PEER)


@situation("checkpoint")
def checkpoint_of_another_model(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM: size mismatch for lm_head",
        )


@situation("rendezvous-dns")
def name_does_not_resolve(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "[W1121 socket.cpp:755] [c10d] The IPv6 network addresses of (x-worker-0, 23456) cannot be retrieved",
            "torch.distributed.DistNetworkError: failed to resolve x-worker-0: Name or service not known",
        )


@situation("network-policy")
def policy_lets_nobody_in(world: World) -> None:
    world.objects["NetworkPolicy"] = [
        {"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    ]
    world.crash_looping(
        1,
        1,
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
    )


@situation("service-missing")
def service_of_the_host_missing(world: World) -> None:
    world.objects["Service"] = []
    world.crash_looping(
        1, 1, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms"
    )


@situation("rendezvous")
def host_does_not_answer(world: World) -> None:
    text = "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
    world.crash_looping(1, 1, f"torch.distributed.elastic.rendezvous.api.{text}")


@situation("port-taken")
def rendezvous_port_taken(world: World) -> None:
    text = "The server socket has failed to listen on any local network address. port: 23456, useIpv6: false, code: -98"
    world.crash_looping(
        0, 1, f"torch.distributed.DistNetworkError: {text}, name: EADDRINUSE, message: address already in use"
    )


@situation("efa", P5)
def efa_does_not_start(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin ofi",
            "node:1:1 [0] ofi_init:1 NCCL WARN NET/OFI Error: Failed to initialize: No eligible providers were found",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled system error",
        )


@situation("device", P5)
def card_fell_off_the_bus(world: World) -> None:
    world.end("Failed")
    for index in (0, 1, 2):
        world.ended(
            index, 1, "[rank2]: torch.distributed.DistBackendError: NCCL error: ncclRemoteError", seconds=30
        )
    world.ended(3, 1, "[rank31]: RuntimeError: CUDA error: uncorrectable ECC error encountered", seconds=33)


@situation("collective-timeout", P5)
def collective_timed_out_everywhere(world: World) -> None:
    world.end("Failed")
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=_ALLGATHER_BASE) ran for 600000ms"
    for index in range(4):
        world.ended(index, 1, f"[rank{index * 8}]: [E1121 ProcessGroupNCCL.cpp:607] {text}", *TORCHRUN)


@situation("code")
def module_not_in_the_image(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(index, 1, "ModuleNotFoundError: No module named 'training'", *TORCHRUN)


@situation("memory-fault")
def segmentation_fault(world: World) -> None:
    world.crash_looping(0, 139, "loading", reason="Error")
    world.crash_looping(1, 1, PEER)


@situation("killed")
def killed_from_outside(world: World) -> None:
    world.crash_looping(0, 137, STEP.format(n=3), reason="Error")


@situation("crash")
def an_exception_of_no_class(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(index, 1, "Traceback (most recent call last):", "KeyError: 'labels'", *TORCHRUN)


@situation("crash")
def config_file_not_found_is_no_cause(world: World) -> None:
    """Handled and warned of, long before the exception that ended it."""
    lines = [
        "INFO config file not found, using defaults",
        "WARNING image not found in the cache, computing it",
        "WARNING connection refused by the metrics gateway",
        "IndexError: list index out of range",
    ]
    world.crash_looping(0, 1, *lines, *TORCHRUN)


@situation("oom-device")
def handled_errors_before_the_real_one(world: World) -> None:
    lines = [
        "INFO retrying: connection reset by peer",
        "WARNING checkpoint of step 10 was not saved, the run goes on: Connection timed out",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    ]
    world.crash_looping(0, 1, *lines, *TORCHRUN)


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


# ---- it runs and does not get on


@situation("hang")
def one_rank_hangs_in_training(world: World) -> None:
    world.training()
    world.stop_rank(1, 400)


@situation("hang")
def the_pods_allow_less_than_the_default(world: World) -> None:
    """The same silence as of a healthy evaluation, with a shorter limit in the pods."""
    for index in (0, 1):
        world.container(index)["env"].append({"name": watch.STEP_VARIABLE, "value": "60"})
    world.training(silent=120, phase="evaluating")


@situation("hang", G5)
def one_of_many_ranks_is_behind(world: World) -> None:
    world.training(ranks=32)
    world.stop_rank(17, 700, step=99)


@situation("hang")
def a_rank_never_ends_saving(world: World) -> None:
    for index in (0, 1):
        world.running(index, seconds=9 * watch.LONG_SECONDS)
    world.training(phase="saving")
    world.stop_rank(0, 3 * watch.LONG_SECONDS)


@situation("straggler", G5)
def one_rank_is_slower(world: World) -> None:
    rows = [{"rank_step_s": [0.5] * 11 + [0.9] + [0.5] * 20} for _ in range(30)]
    world.training(ranks=32, rows=rows)


@situation("data-wait")
def waiting_for_data(world: World) -> None:
    world.training(rows=[{"data_wait_s": 0.6} for _ in range(30)])


@situation("slow-network", P5)
def tcp_instead_of_efa(world: World) -> None:
    world.training(ranks=32)
    lines = (
        "node:1:1 [0] NCCL INFO NET/IB : No device found.",
        "node:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.1.7<0>",
        "node:1:1 [0] NCCL INFO Using network Socket",
    )
    world.log(0, *lines, seconds=700)


@situation("slowdown")
def slower_than_it_was(world: World) -> None:
    world.training(steps=200, rows=[{"tokens_per_s": 500.0} for _ in range(30)])


# ---- nothing can be said


@situation(CANNOT_TELL)
def pods_run_and_say_nothing(world: World) -> None:
    world.log(0, "starting", seconds=790)


@situation(CANNOT_TELL)
def nothing_may_be_seen(world: World) -> None:
    world.unseen |= {"logs": "forbidden", "run directory": "forbidden"}


@situation(CANNOT_TELL)
def no_step_for_long_and_no_heartbeat(world: World) -> None:
    """Another trainer, a long phase or a hang: its log does not say."""
    lines = [f"{{'loss': 2.5, 'grad_norm': 0.1, 'learning_rate': 1e-05, 'epoch': 0.{n}}}" for n in range(9)]
    bars = [f"{n}/900 [00:10<00:50,  1.00it/s]" for n in range(9)]
    world.log(0, *(line for pair in zip(bars, lines, strict=True) for line in pair), seconds=780)


@situation(CANNOT_TELL)
def pending_and_nodes_may_not_be_seen(world: World) -> None:
    """Without the nodes there is no arithmetic, and no guess."""
    world.pending(0, 1)
    world.unseen["Node"] = "forbidden: nodes is forbidden: User cannot list"


@situation(CANNOT_TELL)
def failed_and_nothing_left(world: World) -> None:
    world.pods = []
    world.end("Failed", "PyTorchJob x has failed because 1 Worker replica(s) failed.")


@situation(CANNOT_TELL)
def pending_although_a_node_has_room(world: World) -> None:
    """Our arithmetic finds room where the scheduler did not: that is said, and no cause is made up."""
    world.pending(1)
