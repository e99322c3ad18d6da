"""What the log of a container that has failed says about why: one line, and the class that it stands for.

Only what reports a failure is looked at: the trainer's own record, and what `log_failures` finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tools.job.diagnosis import log_failures
from tools.job.diagnosis.log_failures import Report, Weight
from tools.job.snapshot.log_lines import Line
from training.run.failure import CODES

# The trainer's own line: `rank 3: out of memory: ...`, its classes those of training/run/failure.py.
_OWN = re.compile(rf"^(?:\S+ )*?(?:ERROR )?rank (\d+): ({'|'.join(CODES)}): (.*)")
# How a pod's first process concludes (training/entrypoint.py): the first failing rank of the whole job.
_END = re.compile(
    rf"^entrypoint: ({'|'.join(CODES)}): (?:rank (\d+) on (\S+?)(?: at step \d+)?: )?(.*) \(exit code \d+\)$"
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
        r"ibv_reg_mr\S* failed",  # locked memory is limited
    ),
    _sign(
        "image-accelerator",
        r"(?i:no kernel image is available|driver on your system is too old)",
        r"(?i:cuda driver version is insufficient|forward compatibility was attempted)",
        r"(?i:compiled with an unsupported toolchain)",
        r"Torch not compiled with CUDA|unsupported display driver",
    ),
    _sign(
        "shared-memory",
        r"(?i:insufficient shared memory|bus error.*shm|out of shared memory)",
        r"unable to (?:open|allocate|mmap) shared memory",
        r"No space left on device.*/dev/shm",
        r"DataLoader worker .* Bus error",
        r"<?/torch_\d+_\S+ No space left on device",
        r"(?i:/dev/shm.*no space left|failed to extend /dev/shm|shared memory segment /dev/shm)",
    ),
    _sign(
        "oom-device",
        r"(?i:cuda out of memory|cudaErrorMemoryAllocation)",
        r"(?i:cuda (?:runtime )?error(?: \(\d+\))? ?: out of memory)",
        r"torch\.(?:cuda\.)?OutOfMemoryError",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        r"(?i:(?:nrt|neuron).*(?:out of memory|failed to allocate|NRT_RESOURCE))",
        r"HIP out of memory",
        r"RESOURCE_EXHAUSTED|Failed to alloc DEVICE memory",
        r"Cuda failure (?:\d+ )?'out of memory'",
    ),
    _sign(
        "oom-host",
        r"(?i:cannot allocate memory)",
        r"DefaultCPUAllocator: (?:can't allocate|not enough memory)",
        r"\b_?(?:Array)?MemoryError\b",
        r"DataLoader worker .* killed by signal: Killed",
        r"std::bad_alloc",
        r"for memory: the container was at its limit",
        r"(?i:\boom[-_]kill|\boom killed\b|out-of-memory handler)|: task \d+: Out Of Memory",
        r"^ray\.exceptions\.OutOfMemoryError|due to the node running low on memory",
        r"Memory cgroup out of memory|<jemalloc>: .*out of memory|^memory allocation of \d+ bytes failed",
    ),
    _sign(
        "storage-full",
        r"(?i:no space left on device|not enough (?:free |disk )+space|disk quota exceeded)|StorageFull",
        r"\[Errno (?:28|122)\]",
    ),
    _sign(
        "permission",
        r"^PermissionError: \[Errno|^PermissionError at|PermissionDenied|\[Errno 13\]|: Permission denied$",
        # Where no volume is mounted it is the container's own root, and no disk has failed.
        r"Read-only file system: '/(?!shared|fsx|data|mnt|checkpoints)",
        r"'/(?!shared|fsx|data|mnt|checkpoints)[^']*': Read-only file system$",
    ),
    _sign(
        "storage",
        r"(?i:read-only file system)",
        r"(?i:input/output error|stale file handle)",
        r"\[Errno (?:5|30|37|107|108|112|116|121)\]",
        r"PytorchStreamWriter failed|unexpected pos \d+ vs",
        r"(?i:transport endpoint is not connected)",
    ),
    _sign(
        "checkpoint",
        r"Checkpoint(?:Error|Exception|ing[A-Z]\w*)",
        r"(?i:checkpoint.*(?:corrupt|not whole|does not verify|no such|missing|mismatch|failed to load))",
        r"Error\(s\) in loading state_dict",
        r"(?:Missing|Unexpected) key\(s\) in state_dict",
        r"PytorchStreamReader failed|Safetensor\w*Error|UnpicklingError",
        r"loaded state dict contains a parameter group",
        r"FileNotFoundError.*(?i:checkpoint|ckpt|\.safetensors|\.distcp|\.pth?\b|state_dict)",
        r"no file named (?:pytorch_model|model\.safetensors)|Can't find 'adapter_config\.json'",
        r"does not appear to have a file named",
        r"state_dict is (?:required to save or load|empty)",
        r"(?i:valid checkpoint (?:at|found)|checkpoint being loaded used)",
        r"in checkpoint state_dict|(?i:size mismatch between saved)",
        r"from checkpoint .*is not equal to|find a checkpoint index|^EOFError: Ran out of input",
        r"Trying to set a tensor of shape .*which has shape|size mismatch for [\w.]+: copying a param",
    ),
    _sign(
        "nan",
        r"NanError",
        r"(?i:\b(?:loss|grad(?:ient)?(?:[ _]norm)?)\b.{0,40}\b(?:nan|inf|not finite)\b)",
        r"(?i:floating ?point ?error.*(?:nan|loss|overflow))",
        r"(?i:found (?:nan|inf)\b|nan/inf|returned nan values|is non-?finite|non-?finite (?:loss|grad))",
        r"(?i:loss scale already at minimum|minimum loss scale reached)",
    ),
    _sign(
        "hub-rate-limit",
        r"(?i:(?:hugg?ing_?face|hf\.co).*\b429\b|\b429\b.*(?:hugg?ing_?face|hf\.co))",
    ),
    _sign(
        "hub-auth",
        r"GatedRepoError|HFValidationError",
        r"(?i:(?:401|403|404) client error.*(?:hugg?ing ?face|hf\.co))",
        r"(?i:cannot access gated repo|access to model .* is restricted)",
        r"(?i:invalid user token|token is required|access a gated repo)",
        r"RepositoryNotFoundError|is not a valid model identifier|is a gated dataset",
        r"Can't load (?:tokenizer|the configuration|the model) .*huggingface",
    ),
    _sign(
        "hub-unreachable",
        r"(?i:(?:connection|max retries|couldn't reach|couldn't connect).*(?:huggingface|\bhf\.co))",
        r"(?i:(?:huggingface|\bhf)\.co\b.*(?:timed out|timeout|refused|reset|resolve|certificate|proxy))",
        r"CAS service error",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        r"(?i:\b5\d\d (?:server error|client error)?.*(?:hugg?ing_?face|hf\.co))",
        r"(?i:we couldn't connect to)",
        r"Consistency check failed: file should be of size",
    ),
    _sign(
        "object-store",
        r"^botocore\.|NoCredentialsError|An error occurred \(\w+\) when calling the|AWS Error \w+ during",
        r"Unable to locate credentials|^PermissionError: (?:Access Denied|Forbidden)",
        r"(?i:reduce your request rate|\bslow ?down\b)|S3\w*(?:Error|Exception)|FSTimeoutError",
        r"^google\.(?:api_core|cloud|auth)\.|^azure\.|Failed to download (?:s3|gs|gcs|azure|oci)://",
        r"\b(?:aws s3|gsutil|s3cmd|azcopy|gcloud storage)\b.*\bexit \d",
    ),
    _sign("image-architecture", r"(?i:exec format error)"),
    _sign(
        "command",
        r"^exec /\S+: |command not found$|^\S*sh: (?:line )?\d+: \S+: not found$|^(?:/usr/bin/)?env: ",
    ),
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
        r"(?i:uncorrectable (?:ecc|memory))|\bXid\b",
        # An index that is out of range, or a card's number: the program's own.
        r"(?i:cuda (?:runtime )?error(?: \(\d+\))? ?: "
        r"(?!out of memory|device-side assert|invalid (?!access of peer)))",
        r"(?i:no cuda gpus are available)",
        r"(?i:no cuda-capable device)",
        r"(?i:nvml.*(?:unknown error|driver/library))",
        r"(?i:nrt_(?:init|load|execute)\w* (?:failed|error)|NRT_(?:FAILURE|EXEC_\w*ERR\w*|UNINITIALIZED))",
        r"(?i:unspecified launch failure|illegal memory access|system not yet initialized)",
        r"(?:CUDNN|CUBLAS)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|NOT_INITIALIZED)",
        r"(?i:nrt::?\w+ (?:failed|status=)|nrt_\w+:? status=\d|\bNERR_\w+)",
        r"(?:NRT|TDRV|NMGR|KMGR|NRTD):(?!nrt_infodump|nrt_close)\w+\s.*(?i:fail|unable|could not|not found)",
        r"NVMLError|TDRV:\S+\s.*Could not open|NeuronCore\(s\) not available|NRT:nrt_init\s.*Failed",
        r"(?i:neuron runtime (?:could not|cannot) be initialized|no neuron device)",
        r"(?i:GPU is lost|fallen off the bus|determine the device handle)|^No devices were found",
    ),
    _sign(
        "collective-timeout",
        r"(?i:watchdog caught collective operation timeout|watchdog got stuck|watchdog hang)",
        r"(?i:heartbeat monitor timed out)",
        r"(?i:timed out waiting \d+ms|execution timeout \(\d+ ms\))",
        r"(?i:monitoredbarrier)",
        victim=True,
    ),
    _sign(
        "lost-peer",
        r"(?i:connection (?:closed by (?:remote )?|reset by )peer|broken pipe|remote process exited)",
        r"(?i:ncclRemoteError|NCCL communicator was aborted|socket.*(?:has been closed|hang ?up))",
        victim=True,
    ),
    _sign(
        "rendezvous",
        r"Rendezvous(?:Timeout|Connection|Closed|State|GracefulExit)\w*Error",
        r"(?i:client socket has timed out)",
        r"(?i:connection refused)",
        r"(?i:failed to (?:connect|recv)|the connection to the c10d store has failed)",
        r"DistStoreError|DistNetworkError|No route to host|^etcd\.Etcd",
        r"retrieving ncclUniqueId from|(?i:store based barrier|store->get\()",
        victim=True,
    ),
    _sign(
        "communication",
        r"(?i:\bncclSystemError|ncclInternalError|ncclUnhandled\w+|ncclInvalid\w+|NCCL error)",
        r"DistBackendError",
        r"(?i:\bgloo\b)",
        victim=True,
    ),
    _sign(
        "drained",
        r"SIGTERM|Signal 15|killed by signal: Terminated",
        r"got signal: (?:1|2|15)\b|Received (?:1|2|15) death signal|Drained|exit ?code:? 143",
        r"\bCANCELLED AT \S+ DUE TO ",
        victim=True,
    ),
    _sign(
        "data",
        r"DataError|DatasetNotFoundError|DatasetGenerationError|DataFilesNotFoundError|ArrowInvalid",
        r"(?:FileNotFoundError|\[Errno 2\]).*(?i:data|shard|token|parquet|jsonl|csv|corpus)",
        r"(?:FileNotFoundError|\[Errno 2\]).*\.(?:bin|npy|txt|hdf5)\b",
        r"(?i:(?:dataset|shard)\b.*(?:not found|is empty|does not exist|corrupt))",
        r"UnicodeDecodeError|zlib\.error|BadGzipFile|EOFError: Compressed file|UnidentifiedImageError",
        r"tarfile\.ReadError|CastError|mmap length is greater|\.idx and \.bin files cannot be found",
        r"num_samples=0|Caught (?:FileNotFoundError|OSError) in DataLoader worker",
        r"Arrow(?:Type|Invalid|Key|IO)Error|^json\.(?:decoder\.)?JSONDecodeError",
        r"corresponds to no data|^ValueError: Unknown split|Couldn't find any data file",
        r"Couldn't deserialize thrift|(?i:\bparquet (?:file|magic))",
        r"read records in the JSON file|last epoch number of samples exceeded",
    ),
    _sign(
        "code",
        r"ModuleNotFoundError|ImportError|No module named|SyntaxError|IndentationError",
        r"can't open file .*No such file|symbol lookup error|undefined symbol",
        r"executable file not found|cannot open shared object file|version `GLIBC",
        r"operator \w+::\w+ does not exist|Failed to import|binary incompatibility|version incompatibility",
        r"mismatches the version that was used to compile",
        r"(?i:cuda setup failed)|module compiled against A[BP]I version",
        r"Failed to find C compiler|CUDA_HOME (?:does not exist|environment variable is not set)",
        r"Command '\[?'?(?:\S*/)?(?:gcc|g\+\+|cc|c\+\+|clang|nvcc|ninja|cmake)\b|^(?:nvcc|ptxas) fatal",
        # What the image lacks or has of the wrong age.
        r"(?i:(?:pip3?|conda|apt(?:-get)?) install|please (?:install|upgrade)\b|is required to load)",
        r"(?i:requires? the [\w.-]+ (?:library|package)|cannot find a working \w+ installation)",
        r"Error building extension|'ninja', '-v'",
        r"does not exist or is not currently imported|untagged enum|does not recognize this architecture",
    ),
    _sign(
        "config",
        r"^(?:\[\w+\]:)?\s*[\w./-]+: error: (?:argument|unrecognized|the following|invalid|ambiguous)",
        r"^(?:\[\w+\]:)?\s*[\w./-]+\.py: error: ",
        r"ConfigError|ValidationError|(?i:omegaconf|unrecognized arguments)",
        r"^(?:hydra|yaml)\.|(?i:TOMLDecodeError)",
        r"^error: (?:Parser key|Unrecognized|Key |Validation failed|Configuration check|Option )",
        r"ArgumentParser - ERROR|(?i:\bnon-existent (?:config|key|option))",
        r"^Could not override '|used by the HfArgumentParser|MisconfigurationException",
        r"raised while composing config|^Cannot find primary config|^Error (?:merging|parsing) override",
        r"^Missing mandatory value|^You must specify '|^Key '.*' is not in struct|\bUsageError: ",
        r"(?i:invalid device (?:ordinal|id\b))",
        r"(?i:(?:does not|doesn't) support (?:bf16|bfloat16))|only supports Ampere|requires? (?:an? )?Ampere",
        r"^Error: (?:Invalid value|Missing (?:option|argument)|Got unexpected)",
        r"^[│╭].*(?:Unrecognized|Required) ",
        r"train_batch_size is not equal to|environment variable \w+ expected, but not set",
        r"the following arguments are required",
        r"(?i:invalid choice|unknown (?:config )?key|missing (?:config|argument)|argparse\.\w*error)",
        r"(?i:no such option)",
        r"FileNotFoundError.*(?i:config|\.ya?ml\b|\.json\b)",
        r"^(?:ValueError|AssertionError|TypeError): (?i:please (?:specify|provide|set|pass)\b"
        r"|.*\b(?:must|should|has to) be (?:one of|divisible|specified|set|provided)\b"
        r"|.*\bnot divisible by\b|.*mixed precision requires\b|--\w[\w-]* )",
        # Sizes and degrees that do not go together.
        r"^(?:Value|Assertion)Error: (?i:.*\b(?:world[ _]size|parallel(?:ism)?[ _](?:size|degree|dim))\w*)",
        r"Assertion failed: \w+ == |\w(?:Arguments|Config)\.__init__\(\) got an unexpected keyword",
    ),
    _sign(
        "killed",
        r"terminated with signal SIGKILL|<Signals\.SIGKILL|^\S+: line \d+: +\d+ Killed\b",
        r"A worker died or was killed while|^ray\.exceptions\.(?:ActorDied|RayActor|WorkerCrashed)Error",
    ),
    _sign("memory-fault", r"killed by signal: (?:Aborted|Segmentation|Illegal|Floating)"),
    _sign("memory-fault", r"(?:terminated with signal |<Signals\.)SIG(?:SEGV|BUS|ILL|ABRT|FPE)"),
    _sign("memory-fault", r"(?i:segmentation fault|bus error|double free|core dumped|illegal instruction)"),
    _sign("memory-fault", r"Fatal Python error"),
)

# What an exception is about that none of the signs knows, by its words: something by name that is not there,
# or a library that speaks to its user of what he has set.
_ABSENT = r"(?:not found|not exists?\b|doesn't exist|(?:is|are) (?:missing|empty)|not defined|undefined)"
_NONE = (
    r"(?:(?:can(?:no|')t|could(?: not|n't)|unable to|failed to) (?:find|load|read|open|parse)|undefined|no)"
)
_DATA = (
    r"(?:data ?sets?|data ?files?|samples?|shards?|corpus|examples?|records?|splits?"
    r"|\S+\.(?:jsonl?|csv|parquet|txt|bin|idx|npy|tar|arrow|tsv))"
)
_SETTING = r"(?:template|optimizer|scheduler|strategy|option|setting|argument|model type|precision|config\w*)"
_YOU = (
    r"You (?:passed|set|specified|provided|selected|chose|requested|enabled"
    r"|can(?:no|')t (?:set|use|combine|specify)"
    r"|(?:must|need to|have to|should) (?:have|set|provide|pass|choose|select|enable|disable))\b"
)
_UNKNOWN = (
    r"(?:Unknown|Unsupported|Invalid|Unrecognized) (?:\w+ ){0,3}(?:name|type|option|argument|setting"
    r"|strategy|optimizer|scheduler|precision|dtype|backend|mode|template|choice)\b"
)
WORDS = tuple(
    (kind, re.compile("|".join(patterns)))
    for kind, *patterns in (
        (
            "checkpoint",
            rf"(?i:\b(?:checkpoint|ckpt|state_dict|weights?)\b.*{_ABSENT})",
            rf"(?i:\b{_NONE} (?:\w+ ){{0,3}}(?:checkpoint|ckpt)\b)",
        ),
        (
            "data",
            rf"(?i:\b{_DATA}\b.*{_ABSENT})",
            rf"(?i:\b{_NONE} (?:\w+ ){{0,3}}{_DATA}(?:\b|$))",
        ),
        (
            "config",
            r"^(?:Value|Assertion|NotImplemented|Runtime)Error: "
            rf"(?:{_YOU}|Your\b|Please\b|`?--?\w|{_UNKNOWN})",
            rf"^ValueError: (?i:.*\b{_SETTING}\b.*(?:{_ABSENT}|not (?:supported|valid|allowed)))",
            r"^(?:Value|Key|Assertion|Attribute)Error: .*\bnot (?:exist|found|defined) in (?:the )?config",
        ),
    )
)
# ... or by the library that has raised it.
PLACES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "checkpoint",
            r"torch/distributed/(?:_shard/)?checkpoint/|torch/serialization\.py|/safetensors/|/dist_checkpointing/"
            r"|-packages/sentencepiece/|/checkpoint_engine/|megatron/training/checkpointing\.py|/tensorstore/|/zarr/",
        ),
        (
            "data",
            r"-packages/datasets/|/pyarrow/|megatron/core/datasets/|/indexed_dataset\.py|/webdataset/"
            r"|/PIL/|-packages/(?:streaming|litdata|lmdb|zstd|lz4|wids)/|/h5py/|/zstandard/",
        ),
        ("hub-unreachable", r"/huggingface_hub/"),
        (
            "object-store",
            r"/(?:botocore|boto3|s3transfer|s3fs|s3torchconnector\w*|gcsfs|adlfs|google/cloud/storage)/",
        ),
        (
            "config",
            r"/(?:hydra|omegaconf|tyro|jsonargparse|pydantic\w*|yacs|dacite|simple_parsing)/|-packages/yaml/"
            r"|/(?:hf_argparser|argparse|(?:[a-z]+_)?(?:config|configs|arguments|args|options|hparams))\.py:"
            r"|transformers/training_args\.py|megatron/training/(?:arguments|yaml_arguments)\.py",
        ),
        ("code", r"-packages/.*, in <module>(?: \||$)"),
        ("checkpoint", r", in \w*load_(?:state_dict|checkpoint)\b|\| .*\b(?:load_state_dict|torch\.load)\("),
        ("rendezvous", r"torch/distributed/elastic/rendezvous/|-packages/etcd/"),
    )
)

# The trainer's classes under the names that `why` uses.
OWN = {
    "out of memory": "oom-device",
    "lost peer": "lost-peer",
    "error": "crash",
}
# What torchrun's children are ended by. A rank aborts itself when a collective of its failed.
ABORTED = 6
CHILDREN = {
    4: "memory-fault",
    6: "memory-fault",
    7: "memory-fault",
    8: "memory-fault",
    9: "killed",
    11: "memory-fault",
}
# What clients of services raise is never about the other ranks.
_CLIENT = re.compile(r"^(?:requests|urllib3?|httpx|httpcore|aiohttp|http\.client|wandb|mlflow)\.")
BETWEEN_RANKS = (
    "rendezvous-dns",
    "rendezvous",
    "lost-peer",
    "collective-timeout",
    "communication",
    "port-taken",
)
# The program's own fault, said by the card: every later call of CUDA fails too.
_ASSERTED = re.compile(r"\.cu:\d+: .*Assertion .* failed|device-side assert triggered")
_MODULE = re.compile(r"((?:\w+\.)+)\w+(?:: |:?$)")
_VAGUE = re.compile(r"^(?:RuntimeError|Exception|SystemExit|subprocess\.CalledProcessError)\b")
VICTIMS = frozenset(sign.kind for sign in SIGNS if sign.victim)


@dataclass(frozen=True)
class Found:
    """A class of failure, the line that shows it, and the rank and host of it where the line says so.

    `concluded` is what a pod's first process says at the end, with the records of all ranks before it.
    A `vague` exception says no more than that something before it failed; `signal` ended torchrun's child.
    """

    kind: str
    line: Line
    rank: int | None = None
    host: str | None = None
    concluded: bool = False
    weight: Weight = Weight.UNCAUGHT
    vague: bool = False
    signal: int = 0

    @property
    def victim(self) -> bool:
        """Say whether this is what happens to a rank when another one fails."""
        return self.kind in VICTIMS


def first_cause(lines: Iterable[Line]) -> Found | None:
    """Return what a log concludes, else the failure that ended its processes, a consequence only at last.

    What a rank could not catch outranks what may have been caught, and that what was only logged. An
    exception that no class knows is the class `crash`. None where no line reports an error.
    """
    every = list(lines)
    own = [one for one in map(_own, every) if one is not None]
    told = [one for one in map(_found, log_failures.of(every)) if one is not None]
    if any(_ASSERTED.search(line.text) for line in every):
        told = [replace(one, kind="crash") if one.kind == "device" else one for one in told]
    concluded = [one for one in own if one.concluded and not one.victim and one.kind != "crash"]
    first = [one for one in own if not one.victim and one.kind != "crash"]
    chosen = concluded[::-1] or first or _chosen(told) or [one for one in own if one.kind != "crash"]
    return next(iter(chosen or own[::-1] or told), None)


def _chosen(found: list[Found]) -> list[Found]:
    """Return the failures of the strongest kind of report, those first that are no consequence."""
    known = [one for one in found if one.kind != "crash" and not one.victim]
    known.sort(key=lambda one: one.kind in ("killed", "memory-fault"))  # what another one may explain
    of = {weight: [one for one in known if one.weight is weight] for weight in Weight}
    crashes = [one for one in found if one.kind == "crash"]
    # Of unknown exceptions the last: what ended the process stands behind what it has caught.
    uncaught = [one for one in crashes if one.weight is Weight.UNCAUGHT and not one.vague][::-1]
    plain = [one for one in crashes if not one.vague][::-1]
    killed = [one for one in of[Weight.CHILD] if one.kind != "memory-fault" or one.signal != ABORTED]
    return (
        of[Weight.UNCAUGHT]
        or uncaught
        or of[Weight.RAISED]
        or plain
        or of[Weight.LOGGED]
        or ([] if crashes else of[Weight.HINT])
        or killed
        or crashes[::-1]
        or [one for one in found if one.victim]
        or of[Weight.CHILD]
    )


def classify(line: Line) -> Found | None:
    """Return what one line alone says of a failure, None for a line that reports no error."""
    report = log_failures.single(line)
    return _own(line) or (_found(report) if report else None)


def _own(line: Line) -> Found | None:
    """Return what the trainer itself, or the first process of its pod, says in a line."""
    if end := _END.match(line.text):
        rank = int(end[2]) if end[2] else None
        return Found(refine(end[1], end[4]), line, rank, end[3], concluded=True)
    if own := _OWN.search(line.text):
        return Found(refine(own[2], own[3]), line, int(own[1]))
    return None


def _found(report: Report) -> Found | None:
    """Return the class of a report; None for one of no class that is not an exception either."""
    line, rank = report.line, report.line.rank
    if report.weight is Weight.CHILD:
        kind = CHILDREN.get(report.signal)
        return Found(kind, line, rank, weight=report.weight, signal=report.signal) if kind else None
    client = _CLIENT.match(report.text)
    for sign in SIGNS:
        if sign.pattern.search(report.text) and not (client and sign.kind in BETWEEN_RANKS):
            return Found(sign.kind, line, rank, weight=report.weight)
    vague = _VAGUE.match(report.text) is not None
    kind = _by_words(report)
    if report.exception and kind:
        return Found(kind, line, rank, weight=report.weight)
    return Found("crash", line, rank, weight=report.weight, vague=vague) if report.exception else None


def _by_words(report: Report) -> str | None:
    """Return the class of an exception that no sign knows: by its words, else by the library it is from."""
    module = _MODULE.match(report.text)
    library = f"/site-packages/{module[1].replace('.', '/')}:" if module else ""
    for table, texts in ((WORDS, (report.text,)), (PLACES, (report.place, library))):
        for kind, pattern in table:
            if any(pattern.search(text) for text in texts):
                return kind
    return None


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
