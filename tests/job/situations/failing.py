"""Situations of processes that have failed: the first failure must be named, not its victims."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, P5, PEER, STEP, TORCHRUN, situation
from tests.job.world import World, ago


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


def _exit_event(world: World, index: int, code: int, words: str, seconds: float = 70) -> None:
    """The operator's two events about a container that has failed."""
    job, pod = world.job["metadata"]["name"], world.name(index)
    message = f"Error pod {pod} container pytorch exitCode: {code} terminated message: {words}"
    world.event("PyTorchJob", job, "Error", message, seconds=seconds)
    told = f"Pod: team-a.{pod} exited with code {code}"
    world.event("PyTorchJob", job, "ExitedWithCode", told, warning=False, seconds=seconds)


def _gone(world: World) -> None:
    """The restarts are used up, and the operator has taken the pods away."""
    name = world.job["metadata"]["name"]
    world.end("Failed", f"Job {name} has failed because it has reached the specified backoff limit")


NOT_STARTED = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed:"
    ' unable to start container process: exec: "{program}": {problem}: unknown'
)


@situation("command")
def program_is_not_there_between_two_starts(world: World) -> None:
    """The words are the runtime's, as containerd 1.6 has them, and no program's: nothing of ours is missing."""
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
    """Its name begins as ours."""
    world.pods = []
    _gone(world)
    message = NOT_STARTED.format(program="run", problem="no such file or directory")
    name = f"{world.job['metadata']['name']}-two-worker-0"
    world.event("Pod", name, "Failed", f"Error: {message}", seconds=90)


@situation("config")
def wrong_key_and_the_pods_are_gone(world: World) -> None:
    """As on real nodes: the job has failed, its pods are deleted, and the operator's events are left."""
    end = "entrypoint: config: rank 1 on x-worker-1: /etc/trainyard/model.yaml:32: unknown key train.lerning_rate (exit code 78)"
    for index in (0, 1):
        _exit_event(world, index, 78, f"traceback\n{end}\n")
    _gone(world)
    world.pods = []


@situation("oom-host")
def only_exit_codes_are_left_of_the_pods(world: World) -> None:
    """The victims' ends, and before them that of the one whose memory was used up."""
    _exit_event(world, 1, 160, "", seconds=90)
    _exit_event(world, 0, 164, "", seconds=75)
    _gone(world)
    world.pods = []


@situation("backoff")
def an_old_failure_is_not_why_it_ended(world: World) -> None:
    """It was cured an hour before the job failed."""
    _exit_event(world, 1, 160, "", seconds=3600)
    _gone(world)
    world.pods = []


@situation("config")
def the_log_is_gone_and_the_termination_message_is_left(world: World) -> None:
    end = "entrypoint: config: rank 0 on x-worker-0: /etc/trainyard/cell.yaml:3: unknown key paralel (exit code 78)"
    for index in (0, 1):
        world.crash_looping(index, 78)
        world.pods[index]["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] = end


# ---- from what users of such systems report


@situation("duplicate-device", G5)
def two_ranks_on_one_card(world: World) -> None:
    """awsome-distributed-ai #1041: set_device was forgotten, and all ranks went to GPU 0."""
    text = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage (run with"
        " NCCL_DEBUG=WARN for details), NCCL version 2.27.3 ncclInvalidUsage: This usually reflects invalid usage of"
        " NCCL library. Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b0"
    )
    for index in range(4):
        world.crash_looping(index, 1, f"[rank{8 * index}]: {text}", *TORCHRUN)


@situation("network-interface", P5)
def interface_is_named_that_no_pod_has(world: World) -> None:
    """awsome-distributed-ai #519: NCCL_SOCKET_IFNAME excluded the only interface."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, internal error - please report this"
            " issue to the NCCL developers, NCCL version 2.27.3 ncclInternalError: Internal check failed.",
            *TORCHRUN,
        )


@situation("efa", P5)
def locked_memory_is_limited(world: World) -> None:
    """The node's memlock limit: it reads like memory that is used up."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error: Cannot"
            " allocate memory",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled system error",
            *TORCHRUN,
        )


@situation("oom-host", P5)
def out_of_memory_that_looks_like_efa(world: World) -> None:
    """awsome-distributed-ai #312: 8 GB of memory for the pod, and the other pods' errors are libfabric's."""
    world.crash_looping(1, 137, "node:1:1 [0] NCCL INFO NET/OFI Selected provider is efa", reason="OOMKilled")
    for index in (0, 2, 3):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unreachable remote",
            "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: remote process exited",
            *TORCHRUN,
        )


@situation("hub-rate-limit", G5)
def hub_says_too_many_requests(world: World) -> None:
    """torchtitan #2239: every rank streams from the hub, and the hub answers 429."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url:"
            " https://huggingface.co/datasets/allenai/c4/resolve/main/en/c4-train.00000-of-01024.json.gz",
            *TORCHRUN,
        )


@situation("hub-auth", G5)
def token_of_the_hub_is_wrong(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url:"
            " https://huggingface.co/api/whoami-v2 Invalid user token.",
        )


@situation("image-accelerator", P5)
def torch_was_not_built_for_this_card(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
            *TORCHRUN,
        )


@situation("image-accelerator", P5)
def driver_is_older_than_the_images_cuda(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
            *TORCHRUN,
        )


@situation("config")
def node_rank_was_never_filled_in(world: World) -> None:
    """A worker-only job without elasticPolicy: the operator sets no RANK, and the shell's words stay as they are."""
    for index in (0, 1):
        world.crash_looping(
            index,
            2,
            "usage: torchrun [-h] [--nnodes NNODES]",
            "torchrun: error: argument --node-rank/--node_rank: invalid int value: '$(RANK)'",
        )


@situation("config")
def flag_that_the_trainer_does_not_know(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "usage: train.py [-h] [--lr LR]",
            "train.py: error: unrecognized arguments: --learning_rat 1e-4",
            *TORCHRUN,
        )


@situation("checkpoint", G5)
def nothing_in_the_state_dict_to_load_into(world: World) -> None:
    """The FSDP example that cannot resume: DCP loads into an empty dictionary."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            f"[rank{8 * index}]: RuntimeError: The model state_dict is required to save or load, but model state_dict is"
            " empty. rank = dist.get_rank()",
            *TORCHRUN,
        )


@situation("crash", G5)
def save_fails_with_a_type_error(world: World) -> None:
    """awsome-distributed-ai #996: it dies at the first checkpoint, on every rank."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "Traceback (most recent call last):",
            "TypeError: get_optimizer_state_dict() got an unexpected keyword argument 'optimizer'",
            *TORCHRUN,
        )


@situation("permission")
def volume_belongs_to_somebody_else(world: World) -> None:
    """No fsGroup, or a root directory of the file system that only root may write."""
    for index in (0, 1):
        world.crash_looping(
            index, 1, "PermissionError: [Errno 13] Permission denied: '/shared/runs/x'", *TORCHRUN
        )


@situation("permission")
def cache_on_the_read_only_root(world: World) -> None:
    """A container with readOnlyRootFilesystem and a program that writes to its home: no disk has failed."""
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "OSError: [Errno 30] Read-only file system: '/home/trainer/.cache/huggingface'",
            *TORCHRUN,
        )


@situation("shared-memory", G5)
def shm_has_no_room(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index, 1, "OSError: [Errno 28] No space left on device: '/dev/shm/torch_41_1'", *TORCHRUN
        )


@situation("device", P5)
def the_nodes_agent_has_seen_an_xid(world: World) -> None:
    """Everybody's collective times out; EKS' node monitoring agent says whose card it was."""
    world.end("Failed")
    text = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000ms"
    )
    for index in range(4):
        world.ended(index, 1, f"[rank{index * 8}]: [E1121 ProcessGroupNCCL.cpp:607] {text}", *TORCHRUN)
    world.nodes[2]["status"]["conditions"].append(
        {
            "type": "AcceleratedHardwareReady",
            "status": "False",
            "reason": "NvidiaXID79Error",
            "message": "GPU has fallen off the bus",
            "lastTransitionTime": ago(700),
        }
    )


@situation("node-lost")
def rendezvous_host_went_with_its_node(world: World) -> None:
    """The survivor's connection is refused: a consequence."""
    world.ended(0, 137)
    world.pods[0]["status"] |= {"phase": "Failed", "reason": "NodeLost", "message": "Node is gone"}
    text = "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
    world.crash_looping(1, 1, f"torch.distributed.elastic.rendezvous.api.{text}")


@situation("rendezvous-dns")
def cluster_dns_is_down(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index, 1, "socket.gaierror: [Errno -3] Temporary failure in name resolution", *TORCHRUN
        )


@situation("drained", G5)
def spot_node_was_taken_back(world: World) -> None:
    world.disrupted(2, "EvictionByEvictionAPI", "Eviction API: evicting")
    for index in (0, 1, 3):
        world.crash_looping(index, 1, PEER, *TORCHRUN)


@situation("nan", G5)
def another_trainer_finds_an_overflow(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index, 1, "FloatingPointError: Loss is nan at step 120, stopping training", *TORCHRUN
        )


@situation("data", G5)
def dataset_has_a_broken_row(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string. in row 17",
            "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
            *TORCHRUN,
        )
