"""What logs of failed containers say, and the class that each stands for: the first failure, not its victims.

The words are those of torch, NCCL, the Neuron runtime, Hugging Face's libraries, boto, shells and trainers. A
row is a class and lines. `! E` stands for a traceback that ends with E, behind the rank's own prefix where
there is one; `torchrun N` for what torchrun prints when a child ends with N; `steps` for a dozen steps.
"""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

import re

from tests.job.corpus import STEP

RAISED = re.compile(r"^((?:\[\w+\]: ?)*)! (.*)$", re.DOTALL)
CHILD = """
W1121 12:00:01.000000 1 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 41 closing signal SIGTERM
E1121 12:00:02.000000 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: 0 (pid: 44) of binary: python3
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_12:00:01
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 44)
  error_file: <N/A>
  traceback : {said}
============================================================"""


def text_of(*lines: str) -> str:
    """The log that a row stands for."""
    return "\n".join(each for line in lines for each in _written(line))


def _written(line: str) -> list[str]:
    if line == "steps":
        return [STEP.format(n=n) for n in range(1, 13)]
    if line.startswith("torchrun "):
        code = int(line.split()[1])
        signal = f"Signal {-code} received by PID 44"
        told = (
            signal
            if code < 0
            else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        )
        return CHILD.format(code=code, said=told).splitlines()
    if raised := RAISED.match(line):
        block = ("Traceback (most recent call last):", '  File "/w/train.py", line 10, in main', "    step()")
        return [f"{raised[1]}{each}" for each in (*block, raised[2])]
    return [line]


ROWS: tuple[tuple[str, ...], ...] = (
    (
        "oom-device",
        "[default3]:[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "x-worker-0:41:41 [0] include/alloc.h:185 NCCL WARN Cuda failure 2 'out of memory'",
        "[rank3]: ! torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
        "[rank3]: ncclUnhandledCudaError: Call to CUDA function failed.",
        "[rank3]: Last error:",
        "[rank3]: Cuda failure 2 'out of memory'",
        "torchrun 1",
    ),
    (
        "oom-device",
        "2026-Nov-21 11:59:58.221523 58096:58096 ERROR  TDRV:dmem_alloc_internal                     Failed to alloc DEVICE memory: 1073741824",
        "2026-Nov-21 11:59:58.3 58096:58096 ERROR  NMGR:dlr_kelf_stage  Failed to load subgraph",
        '! RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: LoadExecutable: nrt_load status=4, error message="Allocation Failure"',
        "torchrun 1",
    ),
    (
        "oom-device",
        "! jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 34359738368 bytes.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "[rank1]: ! torch.distributed.DistBackendError: NCCL error in: x.cpp:2000, remote process exited or there was a network error, NCCL version 2.27.3",
        "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "crash",
        "[rank3]: ! triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        "torchrun 1",
    ),
    (
        "oom-host",
        "[rank3]: ! numpy._core._exceptions._ArrayMemoryError: Unable to allocate 45.0 GiB for an array with shape (6039797760,) and data type int64",
        "torchrun 1",
    ),
    (
        "oom-host",
        "[rank3]: ! MemoryError",
        "torchrun 1",
    ),
    (
        "killed",
        "steps",
        "torchrun -9",
    ),
    (
        "killed",
        "steps",
        "[rank1]: ! torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error",
        "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "torchrun -9",
    ),
    (
        "memory-fault",
        "steps",
        "torchrun -11",
    ),
    (
        "memory-fault",
        "torchrun -4",
    ),
    (
        "memory-fault",
        "munmap_chunk(): invalid pointer",
        "torchrun -6",
    ),
    (
        "collective-timeout",
        "steps",
        "[rank3]:[E1121 11:48:25.440243908 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
        "[rank3]:[E1121 11:48:25.440238649 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work sequence id: 4242 PG status: last enqueued work: 4244, last completed work: 4241",
        "[rank3]:[E1121 11:48:25.440255440 ProcessGroupNCCL.cpp:670] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
        "[rank3]:[E1121 11:48:25.440250129 ProcessGroupNCCL.cpp:684] [Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "[rank3]:[E1121 11:48:25.440271515 ProcessGroupNCCL.cpp:698] [Rank 3] To avoid data inconsistency, we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
        "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x1554e8b12f86 in /usr/lib/libc10.so)",
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x1d2 (0x1 in /usr/lib/libtorch_cuda.so)",
        "frame #6: clone + 0x43 (0x155553e398d3 in /lib64/libc.so.6)",
        "",
        "torchrun -6",
    ),
    (
        "collective-timeout",
        "steps",
        "[rank3]:[E1121 11:48:25.4 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog.",
        "[rank3]:[F1121 11:48:25.4 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 3] [PG ID 0 PG GUID 0(default_pg) Rank 3] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        "torchrun -6",
    ),
    (
        "device",
        "[rank1]:[E1121 11:48:25.440243908 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
        "[rank1]:[E1121 11:48:25.440238649 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by watchdog at work sequence id: 4242 PG status: last enqueued work: 4244, last completed work: 4241",
        "[rank1]:[E1121 11:48:25.440255440 ProcessGroupNCCL.cpp:670] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
        "[rank1]:[E1121 11:48:25.440250129 ProcessGroupNCCL.cpp:684] [Rank 1] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "[rank1]:[E1121 11:48:25.440271515 ProcessGroupNCCL.cpp:698] [Rank 1] To avoid data inconsistency, we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
        "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x1554e8b12f86 in /usr/lib/libc10.so)",
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x1d2 (0x1 in /usr/lib/libtorch_cuda.so)",
        "frame #6: clone + 0x43 (0x155553e398d3 in /lib64/libc.so.6)",
        "[rank2]:[E1121 11:48:25.4 ProcessGroupNCCL.cpp:1895] [PG ID 0 Rank 2] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
        "torchrun -6",
    ),
    (
        "shared-memory",
        "x:41:66 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-8Zk2xW to 33030532 bytes, error: No space left on device (28)",
        "x:41:66 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-8Zk2xW (size 33030528), error: No space left on device (28)",
        "[rank3]: ! torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error",
        "[rank3]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "[rank3]: Last error:",
        "[rank3]: Error while creating shared memory segment /dev/shm/nccl-8Zk2xW (size 33030528), error: No space left on device (28)",
        "torchrun 1",
    ),
    (
        "shared-memory",
        "x:41:66 [0] include/shm.h:48 NCCL WARN Error: failed to extend /dev/shm/nccl-XXXX to 9637892 bytes",
        "[rank3]: ! RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled system error, NCCL version 2.14.3",
        "[rank3]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "x:22:572 [1] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "x:22:572 [1] NCCL INFO Using network Socket",
        "steps",
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "x:22:572 [1] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "x:22:572 [1] NCCL INFO Using network Socket",
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "crash",
        "x:22:572 [1] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "[rank3]: ! KeyError: 'labels'",
        "torchrun 1",
    ),
    (
        "efa",
        "x:22:572 [1] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        "x:22:572 [1] NCCL WARN Error: network OFI not found.",
        "[rank3]: ! torch.distributed.DistBackendError: NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3",
        "[rank3]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "[rank3]: Last error:",
        "[rank3]: Error: network OFI not found.",
        "torchrun 1",
    ),
    (
        "crash",
        "libfabric:85:1747438790::core:core:ofi_reg_dl_prov():675<warn> dlopen(libfabric/librxm-fi.so): failed: cannot open shared object file: No such file or directory",
        "[rank3]: ! ValueError: not enough values to unpack (expected 2, got 1)",
        "torchrun 1",
    ),
    (
        "data",
        "! pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! zlib.error: Error -3 while decompressing data: incorrect header check",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! gzip.BadGzipFile: Not a gzipped file (b'<!')",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! EOFError: Compressed file ended before the end-of-stream marker was reached",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! ValueError: num_samples should be a positive integer value, but got num_samples=0",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! FileNotFoundError: [Errno 2] No such file or directory: '/fsx/checkpoints/step-1000/model.safetensors'",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! _pickle.UnpicklingError: invalid load key, 'v'.",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])",
        "[rank3]: Traceback (most recent call last): (RANK 0)",
        '[rank3]:   File "/x.py", line 3, in f',
        "[rank3]: RuntimeError: Missing key in checkpoint state_dict: model.layers.0.weight.",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:",
        "[rank3]: \tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint, the shape in current model is torch.Size([32001, 4096]).",
        "torchrun 1",
    ),
    (
        "storage",
        "[rank3]: ! RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 67108992 vs 67108880",
        "torchrun 1",
    ),
    (
        "storage-full",
        "[rank3]: ! OSError: [Errno 28] No space left on device",
        "[rank3]: ",
        "[rank3]: During handling of the above exception, another exception occurred:",
        "[rank3]: ",
        "[rank3]: ! RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 67108992 vs 67108880",
        "torchrun 1",
    ),
    (
        "storage-full",
        "[rank3]: ! safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
        "torchrun 1",
    ),
    (
        "storage",
        "[rank3]: ! OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/fsx/ckpt/x'",
        "torchrun 1",
    ),
    (
        "permission",
        "mkdir: cannot create directory '/fsx/runs': Permission denied",
    ),
    (
        "storage-full",
        "cp: error writing '/scratch/x': No space left on device",
    ),
    (
        "hub-auth",
        "[rank3]: ! huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-69)",
        "[rank3]: ",
        "[rank3]: Repository Not Found for url: https://huggingface.co/api/models/meta-lama/Llama.",
        "[rank3]: Please make sure you specified the correct `repo_id` and `repo_type`.",
        "torchrun 1",
    ),
    (
        "hub-auth",
        "[rank3]: ! OSError: meta-lama/Llama-2 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        "[rank3]: If this is a private repository, make sure to pass a token having permission to this repo",
        "torchrun 1",
    ),
    (
        "hub-auth",
        "[rank3]: ! requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json",
        "[rank3]: ",
        "[rank3]: The above exception was the direct cause of the following exception:",
        "[rank3]: ",
        "[rank3]: ! huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1)",
        "[rank3]: ",
        "[rank3]: Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.",
        "[rank3]: Access to model meta-llama/Llama-3.1-8B is restricted and you are not in the authorized list.",
        "torchrun 1",
    ),
    (
        "hub-auth",
        "[rank3]: ! OSError: You are trying to access a gated repo.",
        "[rank3]: Make sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.",
        "torchrun 1",
    ),
    (
        "hub-rate-limit",
        "[rank3]: ! requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hf.co/api/x",
        "torchrun 1",
    ),
    (
        "hub-unreachable",
        "[rank3]: ! httpcore.ConnectError: [Errno -3] Temporary failure in name resolution",
        "[rank3]: ",
        "[rank3]: The above exception was the direct cause of the following exception:",
        "[rank3]: ",
        "[rank3]: ! httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
        "[rank3]: ",
        "[rank3]: The above exception was the direct cause of the following exception:",
        "[rank3]: ",
        "[rank3]: ! huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache. Please check your connection and try again or make sure your Internet connection is on.",
        "torchrun 1",
    ),
    (
        "hub-unreachable",
        "[rank3]: ! huggingface_hub.errors.HfHubHTTPError: 500 Server Error: Internal Server Error for url: https://huggingface.co/api/models/x",
        "torchrun 1",
    ),
    (
        "hub-unreachable",
        "[rank3]: ! requests.exceptions.HTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/x",
        "torchrun 1",
    ),
    (
        "hub-unreachable",
        "[rank3]: ! huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/x: offline mode is enabled.",
        "torchrun 1",
    ),
    (
        "object-store",
        "[rank3]: ! botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden",
        "[rank3]: ",
        "[rank3]: The above exception was the direct cause of the following exception:",
        "[rank3]: ",
        "[rank3]: ! PermissionError: Forbidden",
        "torchrun 1",
    ),
    (
        "object-store",
        "[rank3]: ! OSError: When reading information for key 'data/x.parquet' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
        "torchrun 1",
    ),
    (
        "object-store",
        "[rank3]: ! botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling the ListObjectsV2 operation: The specified bucket does not exist",
        "torchrun 1",
    ),
    (
        "object-store",
        "fatal error: Unable to locate credentials",
    ),
    (
        "config",
        "! omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct",
        "    full_key: train.lr",
        "torchrun 1",
    ),
    (
        "config",
        "Could not override 'train.lr'.",
        "To append to your config use +train.lr=1",
        "Key 'lr' is not in struct",
        "    full_key: train.lr",
        "    object_type=dict",
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        "torchrun 1",
    ),
    (
        "config",
        "! yaml.scanner.ScannerError: mapping values are not allowed here",
        '  in "/etc/cfg/train.yaml", line 3, column 9',
        "torchrun 1",
    ),
    (
        "config",
        "! yaml.parser.ParserError: while parsing a block mapping",
        '  in "/etc/x.yaml", line 2, column 1',
        "torchrun 1",
    ),
    (
        "config",
        "! tomllib.TOMLDecodeError: Invalid value (at line 3, column 8)",
        "torchrun 1",
    ),
    (
        "config",
        "Usage: train.py [OPTIONS]",
        "Try 'train.py --help' for help.",
        "",
        "Error: No such option: --learning-rat Did you mean --learning-rate?",
    ),
    (
        "config",
        "usage: train.py [-h]",
        "error: Unrecognized arguments: --modl.x",
    ),
    (
        "config",
        "[rank3]: ! ValueError: Some specified arguments are not used by the HfArgumentParser: ['--foo', '1']",
        "torchrun 1",
    ),
    (
        "config",
        "[rank3]: ! ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0",
        "torchrun 1",
    ),
    (
        "config",
        "[rank3]: ! RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16.",
        "torchrun 1",
    ),
    (
        "config",
        "[rank3]: ! RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        "torchrun 1",
    ),
    (
        "config",
        "[rank3]: ! deepspeed.runtime.config.DeepSpeedConfigError: DeepSpeedConfig: train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 8 * 16",
        "torchrun 1",
    ),
    (
        "config",
        "[rank3]: ! torch.AcceleratorError: CUDA error: invalid device ordinal",
        "[rank3]: CUDA kernel errors might be asynchronously reported at some other API call",
        "torchrun 1",
    ),
    (
        "code",
        "[rank3]: ! OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "torchrun 1",
    ),
    (
        "code",
        "[rank3]: ! RuntimeError: operator torchvision::nms does not exist",
        "torchrun 1",
    ),
    (
        "code",
        "python: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /opt/x.so)",
    ),
    (
        "code",
        "[rank3]: ! RuntimeError: Failed to import transformers.models.llama.modeling_llama because of the following error (look up to see its traceback):",
        "[rank3]: No module named 'flash_attn'",
        "torchrun 1",
    ),
    (
        "command",
        "exec /entrypoint.sh: no such file or directory",
    ),
    (
        "command",
        "bash: line 1: torchrun: command not found",
    ),
    (
        "device",
        "[rank3]: ! RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
        "torchrun 1",
    ),
    (
        "image-accelerator",
        "[rank3]: ! RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination",
        "torchrun 1",
    ),
    (
        "image-accelerator",
        "[rank3]: ! AssertionError: Torch not compiled with CUDA enabled",
        "torchrun 1",
    ),
    (
        "image-accelerator",
        "x:1:1 [0] NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
        "[rank3]: ! torch.distributed.DistBackendError: NCCL error in: x, unhandled cuda error",
        "torchrun 1",
    ),
    (
        "crash",
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [39,0,0], thread: [32,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        "[rank3]: ! RuntimeError: CUDA error: device-side assert triggered",
        "torchrun 1",
    ),
    (
        "device",
        "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "[rank2]:[E1121 11:48:25.440243908 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
        "[rank2]:[E1121 11:48:25.440238649 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 2]  failure detected by watchdog at work sequence id: 4242 PG status: last enqueued work: 4244, last completed work: 4241",
        "[rank2]:[E1121 11:48:25.440255440 ProcessGroupNCCL.cpp:670] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
        "[rank2]:[E1121 11:48:25.440250129 ProcessGroupNCCL.cpp:684] [Rank 2] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "[rank2]:[E1121 11:48:25.440271515 ProcessGroupNCCL.cpp:698] [Rank 2] To avoid data inconsistency, we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.",
        "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x1554e8b12f86 in /usr/lib/libc10.so)",
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x1d2 (0x1 in /usr/lib/libtorch_cuda.so)",
        "frame #6: clone + 0x43 (0x155553e398d3 in /lib64/libc.so.6)",
        "",
        "torchrun -6",
    ),
    (
        "device",
        "[rank3]: ! pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded",
        "torchrun 1",
    ),
    (
        "device",
        "2026-Nov-21 16:08:34.244955 58100:58100 ERROR  TDRV:tdrv_init_mla_phase1                    Could not open the nd3",
        "2026-Nov-21 16:08:34.2 58100:58100 ERROR   NRT:nrt_init                                Failed to initialize devices, error:1",
        "! RuntimeError: Bad StatusOr access: INTERNAL: RuntimeError: Neuron device not found",
        "torchrun 1",
    ),
    (
        "device",
        "2026-Nov-21 16:08:34.2 58100:58100 ERROR   NRT:nrt_allocate_neuron_cores               NeuronCore(s) not available - Requested:32 Available:0",
        "! RuntimeError: The PyTorch Neuron Runtime could not be initialized. Neuron Driver issues are logged to your system logs.",
        "torchrun 1",
    ),
    (
        "device",
        "2026-Nov-21 16:08:34.2 58100:58100 ERROR  TDRV:exec_consume_infer_status_notifications  [FATAL-RT-UNDEFINED-STATE] encountered uncorrectable memory error on Neuron Device 0. execution results may be invalid.",
        "! RuntimeError: nrt_execute status=1204 NRT_EXEC_HW_ERR_HBM_UE",
        "torchrun 1",
    ),
    (
        "nan",
        "[rank3]: ! AssertionError: found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective. Device: 3, node: x-worker-0",
        "torchrun 1",
    ),
    (
        "nan",
        "[rank3]: ! Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "torchrun 1",
    ),
    (
        "nan",
        "[rank3]: ! RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "torchrun 1",
    ),
    (
        "nan",
        "[rank3]: ! RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`",
        "torchrun 1",
    ),
    (
        "rendezvous-dns",
        "[W1121 11:55:00.1 socket.cpp:759] [c10d] The IPv4 network addresses of (x-worker-0, 23456) cannot be retrieved (gai error: -2 - Name or service not known).",
        "[W1121 11:55:00.1 socket.cpp:759] [c10d] The IPv4 network addresses of (x-worker-0, 23456) cannot be retrieved (gai error: -2 - Name or service not known).",
        "[W1121 11:55:00.1 socket.cpp:759] [c10d] The IPv4 network addresses of (x-worker-0, 23456) cannot be retrieved (gai error: -2 - Name or service not known).",
        "[W1121 11:55:00.1 socket.cpp:759] [c10d] The IPv4 network addresses of (x-worker-0, 23456) cannot be retrieved (gai error: -2 - Name or service not known).",
        "[W1121 11:55:00.1 socket.cpp:759] [c10d] The IPv4 network addresses of (x-worker-0, 23456) cannot be retrieved (gai error: -2 - Name or service not known).",
        "! torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (x-worker-0, 23456).",
        "torchrun 1",
    ),
    (
        "drained",
        "W1121 12:00:01.0 1 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down workers",
        "W1121 12:00:01.0 1 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 41 closing signal SIGTERM",
        "! torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
    ),
    (
        "drained",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
        "! torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
    ),
    (
        "data",
        "[rank3]:   + Exception Group Traceback (most recent call last):",
        '[rank3]:   |   File "/w/t.py", line 3, in <module>',
        "[rank3]:   | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "[rank3]:   +-+---------------- 1 ----------------",
        "[rank3]:     | Traceback (most recent call last):",
        '[rank3]:     |   File "/w/t.py", line 9, in f',
        "[rank3]:     | FileNotFoundError: [Errno 2] No such file or directory: '/fsx/data/shard-1.bin'",
        "[rank3]:     +------------------------------------",
        "torchrun 1",
    ),
    (
        "oom-device",
        '{"time":"2026-11-21T11:59:00Z","level":"info","msg":"no space left on device is not a problem here"}',
        '{"time":"2026-11-21T11:59:01Z","level":"error","msg":"training failed","exc_info":"Traceback (most recent call last):\\n  File \\"x\\", line 3\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}',
    ),
    (
        "storage-full",
        '{"severity":"ERROR","message":"OSError: [Errno 28] No space left on device"}',
    ),
    (
        "crash",
        '{"level":"INFO","message":"ERROR budget: no space left on device checks passed"}',
        "[rank3]: ! KeyError: 'labels'",
        "torchrun 1",
    ),
    (
        "oom-device",
        "\x1b[31mTraceback (most recent call last):\x1b[0m",
        '\x1b[31m  File "/w/train.py", line 10, in <module>\x1b[0m',
        "\x1b[31m    main()\x1b[0m",
        "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.\x1b[0m",
        "torchrun 1",
    ),
    (
        "oom-device",
        "\r  3%|#         | 12/400 [00:10<05:21,  1.21it/s]Traceback (most recent call last):",
        '  File "/w/train.py", line 10, in <module>',
        "    main()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "crash",
        "[rank3]: ! __main__.StopTraining",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! mylib.CorruptShard: dataset shard 17 is corrupt",
        "torchrun 1",
    ),
    (
        "crash",
        "[rank3]: ! KeyError: 'lr_scheduler'",
        "[rank3]: ",
        "[rank3]: During handling of the above exception, another exception occurred:",
        "[rank3]: ",
        "[rank3]: ! AttributeError: 'NoneType' object has no attribute 'step'",
        "torchrun 1",
    ),
    (
        "oom-device",
        "ERROR:root:could not upload metrics",
        '! botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3"',
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "ERROR:root:could not upload metrics",
        '! botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3"',
        "steps",
        "! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "crash",
        "ERROR:root:apex missing",
        "! ModuleNotFoundError: No module named 'apex'",
        "steps",
        "! KeyError: 'labels'",
        "torchrun 1",
    ),
    (
        "crash",
        "! ModuleNotFoundError: No module named 'apex'",
        "INFO apex is not there, going on without it",
        "[rank3]: ! KeyError: 'labels'",
        "torchrun 1",
    ),
    (
        "crash",
        "sample 1: Error: no space left on device, please free some",
        "sample 2: the job failed with Fatal error: connection refused",
        "steps",
        "[rank3]: ! TypeError: 'int' object is not callable",
        "torchrun 1",
    ),
    (
        "crash",
        "val error: 0.31 word_error: nan loss nan_count 0",
        "[rank3]: ! TypeError: 'int' object is not callable",
        "torchrun 1",
    ),
    (
        "crash",
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
        "To disable this warning, you can either:",
        "[rank3]: ! TypeError: 'int' object is not callable",
        "torchrun 1",
    ),
    (
        "storage-full",
        "cp: Fehler beim Schreiben von '/fsx/x': Auf dem Gerät ist kein Speicherplatz mehr verfügbar",
        "! OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar",
        "torchrun 1",
    ),
    (
        "data",
        "! FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        '  File "/x.py", line 3',
        "FileNotFoundError: [Errno 2] No such file or directory: '/fsx/img/1.jpg'",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>",
        "torchrun 1",
    ),
    (
        "crash",
        "[rank3]: ! KeyError: 'maxid'",
        "torchrun 1",
    ),
    (
        "crash",
        "[rank3]: ! ValueError: unknown scene igloo",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! OSError: /fsx/models/llama does not appear to have a file named config.json. Checkout 'https://huggingface.co//fsx/models/llama/tree/main' for available files.",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! ValueError: Can't find 'adapter_config.json' at '/fsx/lora'",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! megatron.core.dist_checkpointing.core.CheckpointingException: Cannot find global shape metadata for N-D flattened tensor",
        "torchrun 1",
    ),
    (
        "storage-full",
        "steps",
        "ERROR:trainer:saving failed: [Errno 28] No space left on device",
        "[rank3]: ! RuntimeError: could not save the checkpoint",
        "torchrun 1",
    ),
    (
        "oom-device",
        "(RayTrainWorker pid=4009, ip=10.0.0.1) [rank3]: Traceback (most recent call last):",
        '(RayTrainWorker pid=4009, ip=10.0.0.1) [rank3]:   File "/w/train.py", line 10, in <module>',
        "(RayTrainWorker pid=4009, ip=10.0.0.1) [rank3]:     main()",
        "(RayTrainWorker pid=4009, ip=10.0.0.1) [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "2: Traceback (most recent call last):",
        '2:   File "/w/train.py", line 10, in <module>',
        "2:     main()",
        "2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "object-store",
        "! fsspec.exceptions.FSTimeoutError: Caught FSTimeoutError in DataLoader worker process 1.",
        "torchrun 1",
    ),
    (
        "data",
        "! Exception:",
        "",
        "-- Process 3 terminated with the following error:",
        "! FileNotFoundError: [Errno 2] No such file or directory: '/fsx/data/train.bin'",
        "torchrun 1",
    ),
    (
        "killed",
        "! torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
    ),
    (
        "killed",
        "[2026-11-21 11:59:00,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=0'] exits with return code = -9",
    ),
    (
        "killed",
        "! subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    ),
    (
        "crash",
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'x_17_0' has failed to shutdown the rendezvous 'none' due to an error of type RendezvousConnectionError.",
        "! torch.distributed.DistStoreError: Socket Timeout",
        "[rank3]: ! KeyError: 'labels'",
        "torchrun 1",
    ),
    (
        "oom-device",
        "[rank0]:[W1121 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe",
        "Exception raised from sendBytes at Utils.hpp:653 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x98 (0x7f in libc10.so)",
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "network-interface",
        "[rank3]: ! RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:80] ifa != nullptr. Unable to find address for: eth9",
        "torchrun 1",
    ),
    (
        "efa",
        "x:1:1 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        "[rank3]: ! torch.distributed.DistBackendError: NCCL error in: x, unhandled system error",
        "[rank3]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "torchrun 1",
    ),
    (
        "hub-auth",
        "[rank3]: ! OSError: Can't load tokenizer for 'meta-llama/Llama-3'. If you were trying to load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
        "torchrun 1",
    ),
    (
        "hub-auth",
        "[rank3]: ! datasets.exceptions.DatasetNotFoundError: Dataset 'bigcode/the-stack' is a gated dataset on the Hub. You must be authenticated to access it.",
        "torchrun 1",
    ),
    (
        "permission",
        "[rank3]: ! tensorflow.python.framework.errors_impl.PermissionDeniedError: /logs/x; Permission denied",
        "torchrun 1",
    ),
    (
        "storage",
        "[rank3]: ! OSError: [Errno 37] No locks available",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! tarfile.ReadError: unexpected end of data",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! ValueError: mmap length is greater than file size",
        "torchrun 1",
    ),
    (
        "data",
        "[rank3]: ! AssertionError: One or both of the .idx and .bin files cannot be found at the path prefix /fsx/data/c4_text_document",
        "torchrun 1",
    ),
    (
        "config",
        "Usage: train [OPTIONS]",
        "",
        "Error: Invalid value for '--lr': 'x' is not a valid float.",
    ),
    (
        "config",
        "╭─ Unrecognized options ─────────╮",
        "│ Unrecognized options: --lrr     │",
        "╰─────────╯",
    ),
    (
        "collective-timeout",
        "2026-Nov-21 11:59:58.2 1:1 ERROR   NRT:nrt_infodump   x",
        "2026-Nov-21 11:59:58.2 1:1 ERROR  TDRV:exec_request_wait  (FATAL-RT-UNDEFINED-STATE) [ND 0][NC 1] execution timeout (120000 ms) on model /tmp/x.neff, possibly caused by missing collectives status on ND0",
        "torchrun 1",
    ),
    (
        "oom-host",
        "Memory cgroup out of memory: Killed process 4121 (python) total-vm:123kB",
    ),
    (
        "crash",
        "INFO writing /fsx/errors/no space left on device.txt",
        "[rank3]: ! TypeError: f() missing 1 required positional argument: 'x'",
        "torchrun 1",
    ),
    (
        "crash",
        "/usr/lib/x.py:3: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old",
        "  warnings.warn(",
        "[rank3]: ! AttributeError: 'X' object has no attribute 'y'",
        "torchrun 1",
    ),
    (
        "crash",
        "[rank3]: ! KeyError: 'labels'",
        "Exception ignored in: <function X.__del__ at 0x7f>",
        "! ConnectionRefusedError: [Errno 111] Connection refused",
        "torchrun 1",
    ),
    (
        "oom-device",
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "Exception ignored in atexit callback:",
        "! BrokenPipeError: [Errno 32] Broken pipe",
        "torchrun 1",
    ),
    (
        "crash",
        "Exception in thread Thread-5 (_upload):",
        "! botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        "[rank3]: ! KeyError: 'labels'",
        "torchrun 1",
    ),
    (
        "oom-device",
        "[rank: 3] Traceback (most recent call last):",
        '[rank: 3]   File "/w/train.py", line 10, in <module>',
        "[rank: 3]     main()",
        "[rank: 3] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "2026-11-21 11:59:00.123 | ERROR    | trainer:main:12 - An error has been caught in function 'main', process 'MainProcess' (41):",
        "! > File x",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "oom-device",
        "╭───────────── Traceback (most recent call last) ─────────────╮",
        "│ /w/train.py:10 in <module>                                   │",
        "╰──────────────────────────────────────────────────────────────╯",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torchrun 1",
    ),
    (
        "device",
        "[rank3]: ! RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! ValueError: Can't find a valid checkpoint at /fsx/out/checkpoint-500",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! ValueError: No valid checkpoint found in output directory (/fsx/out)",
        "torchrun 1",
    ),
    (
        "checkpoint",
        "[rank3]: ! deepspeed.runtime.base_optimizer.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 4. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported.",
        "torchrun 1",
    ),
    (
        "shared-memory",
        "! RuntimeError: unable to write to file </torch_41_123_0>: No space left on device (28)",
        "torchrun 1",
    ),
    (
        "object-store",
        "[rank3]: ! google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/x: x does not have storage.buckets.get access",
        "torchrun 1",
    ),
    (
        "object-store",
        "[rank3]: ! azure.core.exceptions.ClientAuthenticationError: Server failed to authenticate the request.",
        "torchrun 1",
    ),
    (
        "code",
        "[rank3]: ! deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)",
        "torchrun 1",
    ),
    (
        "rendezvous",
        "! torch.distributed.elastic.rendezvous.api.RendezvousGracefulExitError",
        "torchrun 1",
    ),
    (
        "lost-peer",
        "x:1:1 [0] int process_completions(struct fid_cq*):1 NCCL WARN NET/OFI Request 0x7 completed with error. RC: 5. Error: 4123 (Unresponsive receiver (reachable by EFA device but handshake failed or peer may be gone))",
        "[rank3]: ! torch.distributed.DistBackendError: NCCL error in: x, unhandled system error",
        "[rank3]: ncclSystemError: x",
        "torchrun 1",
    ),
    (
        "nan",
        "WARNING huggingface 429 retry",
        "! requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
        "INFO retry 1 succeeded",
        "steps",
        "[rank3]: ! FloatingPointError: loss is nan",
        "torchrun 1",
    ),
    (
        "oom-device",
        "ERROR: checkpoint step-50 is corrupt, falling back to step-40",
        "[rank3]: ! torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch.",
        "torchrun 1",
    ),
    (
        "crash",
        "2026-11-21 11:58:00.1 E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
        "[rank3]: ! KeyError: 3",
        "torchrun 1",
    ),
    (
        "crash",
        "fatal: not a git repository (or any of the parent directories): .git",
        "[rank3]: ! KeyError: 3",
        "torchrun 1",
    ),
    (
        "data",
        '{"level":"fatal","msg":"DataError: shard 3 is corrupt"}',
    ),
    (
        "oom-host",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "  what():  std::bad_alloc",
    ),
)
