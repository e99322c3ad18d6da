"""What the log of a container that has failed says about why: one line, and the class that it stands for.

Only lines that report an error are looked at: the trainer's own record, an exception's last line, a line of
level ERROR or above, a message of the runtime below Python. A word in an INFO line or in a warning proves
nothing: `config file not found, using defaults` is not why a job failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.job.loglines import Line
from training.failure import CODES

# The trainer's own line: `rank 3: out of memory: ...`, its classes those of training/failure.py.
_OWN = re.compile(rf"^(?:\S+ )*?(?:ERROR )?rank (\d+): ({'|'.join(CODES)}): (.*)")
# How a pod's first process concludes (training/entrypoint.py): the first failing rank of the whole job.
_END = re.compile(
    rf"^entrypoint: ({'|'.join(CODES)}): (?:rank (\d+) on (\S+?)(?: at step \d+)?: )?(.*) \(exit code \d+\)$"
)
_EXCEPTION = re.compile(
    r"^(?:\[\w+\]:)?(?:\s*)"
    r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Timeout)|(?:\w+\.)+\w*error)(?:: |$)"
)
_LEVEL = re.compile(r"\b(ERROR|FATAL|CRITICAL|Fatal|fatal|panic)\b|(?:^|\s)(?i:error):\s|\[E\d{3}|^E\d{4} ")
_MILD = re.compile(r"\b(INFO|DEBUG|TRACE|WARN|WARNING|Warning|UserWarning|FutureWarning)\b")
_RUNTIME = re.compile(
    r"NCCL (?:WARN|error)|terminate called|what\(\):|Segmentation fault|Bus error|Killed$|"
    r"exec format error|can't open file|No module named|NRT:|nrt_|libfabric|libc10|symbol lookup error|"
    r"ImportError|NVRM: Xid|c10::|executable file not found"
)
# torchrun's own words about its children: the consequence, never the cause.
_AGENT = re.compile(
    r"ChildFailedError|torch[./]distributed[./]elastic[./](?:multiprocessing|agent)|Root Cause|"
    r"traceback : (?:To enable|$)|error_file:|SignalException"
)


@dataclass(frozen=True)
class Sign:
    """A class of failure and the text that gives it away; a `victim` fails because another one has failed."""

    kind: str
    pattern: re.Pattern[str]
    victim: bool = False


def _sign(kind: str, *patterns: str, victim: bool = False) -> Sign:
    return Sign(kind, re.compile("|".join(f"(?:{one})" for one in patterns)), victim)


# The first that matches a line is its class: from the special to the general.
SIGNS = (
    _sign("duplicate-device", r"Duplicate GPU detected"),
    _sign(
        "network-interface",
        r"(?i:no (?:such |socket )?interface found|unable to find (?:address|interface) for)",
    ),
    # What a rank sees of a peer that is gone, over EFA.
    _sign("lost-peer", r"NET/OFI Request .*completed with error", victim=True),
    _sign(
        "efa",
        r"(?i:no eligible providers were found|unable to find a usable net plugin)",
        r"(?i:NET/OFI.*(?:error|fail|unable))",
        r"(?i:fi_\w+ (?:failed|error)|libfabric.*(?:error|fail|unable)|failed to initialize any NET plugin)",
        r"(?i:couldn't (?:open|alloc\w*) .*efa)",
    ),
    _sign(
        "image-accelerator",
        r"(?i:no kernel image is available|driver on your system is too old)",
        r"(?i:cuda driver version is insufficient|forward compatibility was attempted)",
        r"(?i:compiled with an unsupported toolchain)",
    ),
    _sign(
        "shared-memory",
        r"(?i:insufficient shared memory|bus error.*shm|out of shared memory)",
        r"unable to (?:open|allocate|mmap) shared memory",
        r"No space left on device.*/dev/shm",
        r"DataLoader worker .* Bus error",
    ),
    _sign(
        "oom-device",
        r"(?i:cuda out of memory|cuda error: out of memory|cudaErrorMemoryAllocation)",
        r"torch\.(?:cuda\.)?OutOfMemoryError",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        r"(?i:(?:nrt|neuron).*(?:out of memory|failed to allocate|NRT_RESOURCE))",
        r"HIP out of memory",
    ),
    _sign(
        "oom-host",
        r"(?i:cannot allocate memory)",
        r"DefaultCPUAllocator: can't allocate",
        r"^MemoryError",
        r"DataLoader worker .* killed by signal: Killed",
        r"std::bad_alloc",
        r"for memory: the container was at its limit",
    ),
    _sign(
        "storage-full",
        r"(?i:no space left on device)",
        r"(?i:disk quota exceeded)",
        r"\[Errno (?:28|122)\]",
    ),
    _sign(
        "permission",
        r"PermissionError|\[Errno 13\]",
        # Where no volume is mounted it is the container's own root, and no disk has failed.
        r"Read-only file system: '/(?!shared|fsx|data|mnt|checkpoints)",
    ),
    _sign(
        "storage",
        r"(?i:read-only file system)",
        r"(?i:input/output error|stale file handle)",
        r"\[Errno (?:5|30|116)\]",
        r"(?i:transport endpoint is not connected)",
    ),
    _sign(
        "checkpoint",
        r"Checkpoint(?:Error|Exception|ing[A-Z]\w*)",
        r"(?i:checkpoint.*(?:corrupt|not whole|does not verify|no such|missing|mismatch|failed to load))",
        r"Error\(s\) in loading state_dict",
        r"(?:Missing|Unexpected) key\(s\) in state_dict",
        r"PytorchStreamReader failed",
        r"state_dict is (?:required to save or load|empty)",
    ),
    _sign(
        "nan",
        r"NanError",
        r"(?i:\b(?:loss|grad(?:ient)?(?:[ _]norm)?)\b.{0,40}\b(?:nan|inf|not finite)\b)",
        r"(?i:floating ?point ?error.*(?:nan|loss|overflow))",
        r"(?i:found nan or inf|nan/inf)",
    ),
    _sign(
        "hub-rate-limit",
        r"(?i:hugg?ing_?face.*\b429\b|\b429\b.*hugg?ing_?face)",
    ),
    _sign(
        "hub-auth",
        r"GatedRepoError",
        r"(?i:(?:401|403) client error.*hugg?ing ?face)",
        r"(?i:cannot access gated repo|access to model .* is restricted)",
        r"(?i:invalid user token|token is required)",
    ),
    _sign(
        "hub-unreachable",
        r"(?i:(?:connection|max retries|couldn't reach|couldn't connect).*huggingface)",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        r"(?i:we couldn't connect to)",
    ),
    _sign(
        "object-store",
        r"botocore\.exceptions\.|NoCredentialsError|An error occurred \(\w+\) when calling the",
        r"S3\w*(?:Error|Exception)",
    ),
    _sign("image-architecture", r"(?i:exec format error)"),
    _sign(
        "port-taken",
        r"(?i:address already in use|EADDRINUSE)",
    ),
    _sign(
        "rendezvous-dns",
        r"(?i:name or service not known|temporary failure in name resolution|gaierror)",
        r"(?i:no address associated with hostname|nodename nor servname|could not resolve host)",
    ),
    _sign(
        "device",
        r"(?i:uncorrectable ecc|Xid)",
        r"(?i:cuda error: (?!out of memory))",
        r"(?i:no cuda gpus are available)",
        r"(?i:no cuda-capable device)",
        r"(?i:nvml.*(?:unknown error|driver/library))",
        r"(?i:nrt_(?:init|load|execute)\w* (?:failed|error)|NRT_(?:FAILURE|EXEC_\w*ERR\w*|UNINITIALIZED))",
        r"(?i:unspecified launch failure|device-side assert|illegal memory access)",
        r"(?i:GPU is lost|fallen off the bus)",
    ),
    _sign(
        "collective-timeout",
        r"(?i:watchdog caught collective operation timeout)",
        r"(?i:timed out waiting \d+ms)",
        r"(?i:monitoredbarrier)",
        victim=True,
    ),
    _sign(
        "lost-peer",
        r"(?i:connection closed by peer|connection reset by peer|broken pipe|remote process exited)",
        r"(?i:ncclRemoteError|NCCL communicator was aborted|socket.*(?:has been closed|hang ?up))",
        victim=True,
    ),
    _sign(
        "rendezvous",
        r"Rendezvous(?:Timeout|Connection|Closed|State)\w*Error",
        r"(?i:client socket has timed out)",
        r"(?i:connection refused)",
        r"(?i:failed to (?:connect|recv)|the connection to the c10d store has failed)",
        r"DistStoreError|DistNetworkError",
        victim=True,
    ),
    _sign(
        "communication",
        r"(?i:\bncclSystemError|ncclInternalError|ncclUnhandled\w+|ncclInvalid\w+|NCCL error)",
        r"DistBackendError",
        r"(?i:gloo)",
        victim=True,
    ),
    _sign("drained", r"SIGTERM|Signal 15|Drained|exit ?code:? 143", victim=True),
    _sign(
        "data",
        r"DataError|DatasetNotFoundError|DatasetGenerationError|DataFilesNotFoundError|ArrowInvalid",
        r"FileNotFoundError.*(?i:data|shard|token|parquet|jsonl|csv|\.bin\b|\.npy\b|\.txt\b|\.hdf5\b|corpus)",
        r"(?i:dataset.*(?:not found|is empty|does not exist|corrupt))",
    ),
    _sign(
        "code",
        r"ModuleNotFoundError|ImportError|No module named|SyntaxError|IndentationError",
        r"can't open file .*No such file|symbol lookup error|undefined symbol",
        r"executable file not found",
    ),
    _sign(
        "config",
        r"^(?:\[\w+\]:)?\s*[\w./-]+: error: (?:argument|unrecognized|the following|invalid|ambiguous)",
        r"ConfigError|ValidationError|OmegaConf\w*|unrecognized arguments",
        r"the following arguments are required",
        r"(?i:invalid choice|unknown (?:config )?key|missing (?:config|argument)|argparse)",
        r"(?i:no such option)",
        r"FileNotFoundError.*(?i:config|\.ya?ml\b|\.json\b)",
    ),
    _sign("memory-fault", r"(?i:segmentation fault|bus error|double free|core dumped|illegal instruction)"),
)

# The trainer's classes under the names that `why` uses.
OWN = {
    "out of memory": "oom-device",
    "lost peer": "lost-peer",
    "error": "crash",
}
VICTIMS = frozenset(sign.kind for sign in SIGNS if sign.victim)


@dataclass(frozen=True)
class Found:
    """A class of failure, the line that shows it, and the rank and host of it where the line says so.

    `concluded` is what a pod's first process says at the end, with the records of all ranks before it.
    """

    kind: str
    line: Line
    rank: int | None = None
    host: str | None = None
    concluded: bool = False

    @property
    def victim(self) -> bool:
        """Say whether this is what happens to a rank when another one fails."""
        return self.kind in VICTIMS


def first_cause(lines: Iterable[Line]) -> Found | None:
    """Return what a log concludes, else its first failure that is no consequence of another, else the first.

    An exception that no class knows is the class `crash`, and counts when nothing else is found: it may have
    been caught. None where no line reports an error.
    """
    found = [one for one in map(classify, lines) if one is not None]
    known = [one for one in found if one.kind != "crash"]
    concluded = [one for one in known if one.concluded and not one.victim]
    own = concluded[::-1] or [one for one in known if not one.victim]
    crashes = [one for one in found if one.kind == "crash"]
    # Of unknown exceptions the last: what ended the process stands behind what it has caught.
    return next(iter(own), None) or next(iter(crashes[::-1]), None) or next(iter(known), None)


def classify(line: Line) -> Found | None:
    """Return what one line says of a failure, None for a line that reports no error."""
    text = line.text
    if end := _END.match(text):
        rank = int(end[2]) if end[2] else None
        return Found(refine(end[1], end[4]), line, rank, end[3], concluded=True)
    if own := _OWN.search(text):
        kind = refine(own[2], own[3])
        return Found(kind, line, int(own[1]))
    if _AGENT.search(text):
        return None
    exception = _EXCEPTION.match(text)
    reported = exception or _RUNTIME.search(text) or (_LEVEL.search(text) and not _MILD.search(text))
    if not reported:
        return None
    for sign in SIGNS:
        if sign.pattern.search(text):
            return Found(sign.kind, line, line.rank)
    return Found("crash", line, line.rank) if exception else None


def refine(own: str, message: str) -> str:
    """Return the class for one of the trainer's own, with the message where the trainer's is wide."""
    kind = OWN.get(own, own)
    if kind in ("communication", "lost-peer", "storage", "oom-device", "crash"):
        narrow = next((sign.kind for sign in SIGNS if sign.pattern.search(message)), kind)
        allowed = {
            "communication": (
                "duplicate-device",
                "network-interface",
                "rendezvous-dns",
                "efa",
                "collective-timeout",
                "lost-peer",
                "rendezvous",
                "port-taken",
            ),
            "lost-peer": (),
            "storage": ("storage-full", "checkpoint", "permission"),
            "oom-device": ("oom-host", "shared-memory"),
            "crash": (
                "device",
                "efa",
                "duplicate-device",
                "hub-auth",
                "hub-rate-limit",
                "hub-unreachable",
                "image-accelerator",
                "object-store",
                "permission",
                "code",
                "checkpoint",
                "storage-full",
                "oom-device",
            ),
        }[kind]
        return narrow if narrow in allowed else kind
    return kind
