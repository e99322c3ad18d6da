"""Situations of programs that have failed: the first failure must be named, not its victims."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, PEER, TORCHRUN, situation
from tests.job.world import World


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


@situation("upload")
def bucket_refuses_the_model(world: World) -> None:
    world.end("Failed")
    world.ended(
        0,
        166,
        "entrypoint: upload: rank 0 on x-worker-0 at step 400: AccessDenied: s3://models/x (exit code 166)",
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


@situation("checkpoint")
def checkpoint_of_another_model(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM: size mismatch for lm_head",
        )


@situation("code")
def module_not_in_the_image(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(index, 1, "ModuleNotFoundError: No module named 'training'", *TORCHRUN)


@situation("memory-fault")
def segmentation_fault(world: World) -> None:
    world.crash_looping(0, 139, "loading", reason="Error")
    world.crash_looping(1, 1, PEER)


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
