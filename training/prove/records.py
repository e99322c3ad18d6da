"""What a proof records: the one contract between the ranks, the runner and the judges.

A start of the command has a directory `<out>/<start>/`. In it every process with a probe writes
`rank-<rank>-<pid>.jsonl` (a loader's worker: `worker-<rank>-<pid>.jsonl`), one event a line, and the runner writes
`outcome.json` and `log`. Steps count optimizer steps of one process from 1; an event that happens after step n and
before step n + 1 has the step n. Digests are short hexadecimal texts; equal digests mean equal bits.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LINE_BYTES = 4 << 20
FILE_BYTES = 512 << 20
LARGE_BYTES = 64 << 10  # of a file that a step may save
_CHECKPOINT = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|pkl|pickle|npz|npy|distcp|tar|model|state|msgpack)$", re.I)
_NAMED = re.compile(r"checkpoint|ckpt|snapshot", re.I)
OTHER = re.compile(  # files of a run that are not checkpoints
    r"\.(json|jsonl|txt|log|csv|tsv|ya?ml|md|py[co]?|html|lock|toml|cfg|so|o|cpp|h|out|err|parquet|arrow|feather|db|sqlite"
    r"|png|jpe?g|gif|webp|bmp|svg|pdf|wav|mp3|flac|ogg|mp4|webm|avi)(\.gz)?$|tfevents",
    re.I,
)
UNSEEN = "no rank saves after a step, but files like checkpoints are written"
SIGNALLED = "signalled"  # the runner makes this file when it has sent SIGTERM


@dataclass
class Begin:
    """The probe was loaded into this process."""

    rank: int
    local_rank: int
    world: int  # WORLD_SIZE of the environment; 1 without a launcher
    node: int
    pid: int
    argv: list[str]
    python: str
    stand_in: bool = False
    tensors: bool = True  # False: a later line of `Uncovered` says why nothing is observed


@dataclass
class World:
    """torch.distributed as this rank sees it, each time that it changes."""

    step: int
    size: int
    rank: int
    backend: str
    timeout: float  # seconds, of the default group
    groups: int
    shortened: bool = False  # the probe shortened the time-out, so that a hang ends in time


@dataclass
class Peers:
    """Ranks that hold parts of one model, this one among them: they read one batch."""

    how: str  # "tensor" or "pipeline"
    ranks: list[int]


@dataclass
class Batch:
    """One forward call of the outermost module in training mode, with its first tensor."""

    step: int
    number: int  # from 0 in this process
    module: str
    shape: list[int]
    digest: str
    rows: list[str]  # one digest for each sample (the first dimension), at most 4,096
    passes: int | None = None  # the pass of the DataLoader from 0; None: a stream, or no DataLoader was seen
    order: str | None = None  # digest of the order of the samples of this pass, once known
    indices: list[str] = field(default_factory=list)  # of the samples in the data set, where the sampler told them
    dataset: str = ""  # digest of what the data set holds: equal on ranks that read one data set
    whole: bool = False  # the sampler of this pass draws each sample of the data set once
    iteration: int | None = None  # over a stream of a DataLoader, from 0: `passes` is None
    beside: str = ""  # digest of the other tensors of the call


@dataclass
class Worker:
    """A source of random numbers in one worker of a DataLoader, when its first sample is read."""

    loader: int
    passes: int
    worker: int
    source: str  # "python", "numpy", "torch", or the path of a generator that the dataset keeps
    state: str
    used: bool  # the state changed while samples were read


@dataclass
class Fetched:
    """A batch that one worker of a DataLoader reads of a stream in a pass, with a digest of each sample."""

    rank: int
    loader: int
    passes: int
    worker: int
    rows: list[str]
    ended: bool = False  # the stream ended with it


@dataclass
class Ended:
    """An iteration over a stream of a DataLoader came to its end."""

    iteration: int


@dataclass
class Dropout:
    """The random state before the first dropout of a step."""

    step: int
    state: str


@dataclass
class Loss:
    """The scalar on which backward was called."""

    step: int
    value: float
    finite: bool


@dataclass
class Step:
    """One call of an optimizer's step. Digests named `*_before` are those before the call."""

    step: int
    optimizer: int  # index of the optimizer in the order of first use
    optimizer_class: str
    parameters_before: str
    parameters_after: str
    gradients: str
    state_before: str
    random: dict[str, str]  # before the step: "python", "numpy", "torch", "cuda"
    rates: list[float]  # learning rate of each parameter group, as used by this step
    collectives: int | None  # collectives since the step before; None: no process group, or not countable
    seconds: float  # since the end of the step before
    zero_gradients: bool = False  # every gradient is zero or missing, and not because all parameters are frozen
    no_gradients: bool = False  # every gradient is missing
    finite_gradients: bool = True
    accumulated: bool = False  # gradients were not cleared after the step before
    forwards: int = 1  # forward calls since the step before
    missing: list[str] = field(default_factory=list)  # have a gradient, are in no optimizer
    foreign: list[str] = field(default_factory=list)  # in the optimizer, not in the modules that ran
    sharded: bool = False  # some parameters are shards: equality over ranks says nothing
    shared: bool = False  # the parameters lie in memory that processes share
    tensors: dict[str, str] = field(default_factory=dict)  # parameters before the step by name, at most 4,096
    model_before: str = ""  # the parameters of the modules, where the optimizer holds none of them
    probe_seconds: float = 0.0


@dataclass
class Save:
    """A file of a checkpoint was written to its end."""

    step: int
    number: int  # from 1 in this process
    path: str
    bytes: int
    kind: str  # "torch.save", "safetensors", "dcp", "file"
    overwritten: bool  # the path held an earlier save of this run or of the source
    seconds: float


@dataclass
class Uncovered:
    """Something that this probe cannot observe here. Claims that need it are CANNOT TELL with this reason."""

    what: str  # "optimizer", "batches", "random", "collectives", "saves", "gradients", "steps", "replicas"
    reason: str


@dataclass
class Injected:
    """A fault happened here: the proof that it did."""

    kind: str
    rank: int
    step: int
    path: str = ""
    bytes: int = 0  # what was left of the file
    whole: int = 0  # what the file had
    note: str = ""


@dataclass
class End:
    """The end of this process, where it could be written: not after SIGKILL."""

    step: int
    reason: str  # "steps": ended by the probe after the wished steps; "finished", "exception", "exit"
    error: str = ""
    parameters: str = ""
    backward_calls: int = 0  # with those of torch.autograd.grad
    optimizer_steps: int = 0
    forward_calls: int = 0
    seeded: bool = False  # the probe seeded this process, because the script set no seed
    versions: dict[str, str] = field(default_factory=dict)
    framework: str = ""  # "lightning", "transformers" (its Trainer) or "accelerate" where one of them trained
    peak_memory: int = 0  # bytes
    first_step_seconds: float = 0.0  # from the start of the process to the end of its first step


_KINDS = (
    Begin, World, Peers, Batch, Worker, Fetched, Ended, Dropout, Loss, Step, Save, Uncovered, Injected, End,
)  # fmt: skip
EVENTS = {kind.__name__.lower(): kind for kind in _KINDS}


def is_checkpoint(path: str, size: int, step: int) -> bool:
    """Return whether a file looks like a part of a checkpoint. Before the first step large files are data."""
    if OTHER.search(path):
        return False
    if _NAMED.search(os.path.basename(path)):
        return True
    return step > 0 and bool(size >= LARGE_BYTES or _CHECKPOINT.search(path) or _NAMED.search(path))


@dataclass
class FoundFile:
    """A file that a start created or changed, as its view shows afterwards."""

    path: str
    bytes: int
    kept: bool  # lies in what survives a restart
    secret: str = ""  # the name of the pattern that its content matches


@dataclass
class Outcome:
    """What the runner saw of one start."""

    name: str
    ended_by: str  # "itself", "fault", "timeout", "disk", "skipped", "outside": it wanted to write outside of a copy
    reason: str = ""  # why it was skipped or ended
    exit_code: int | None = None  # of process 1; negative: the signal
    exit_codes: list[int] = field(default_factory=list)  # one for each node
    seconds: float = 0.0
    fault_seconds: float | None = None  # from the fault to the end of process 1
    left_over: list[str] = field(default_factory=list)  # processes that the runner had to end
    files: list[FoundFile] = field(default_factory=list)
    view: str = "overlay"  # or "copy"
    network: bool = False
    fault_step: int | None = None  # the step or save that the runner chose
    fault_save: int | None = None


def unseen_saves(outcome: Outcome, saves: Iterable[Save]) -> list[str]:
    """Return the files like checkpoints that survive and that no rank saved: a process that a rank starts may do so."""
    saved = {save.path for save in saves}
    kept = (one for one in outcome.files if one.kept and one.path not in saved)
    return sorted(one.path for one in kept if is_checkpoint(one.path, one.bytes, step=1))


class Writer:
    """Appends events to one file; each event is one write, so that a killed process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: Any) -> None:
        """Append one event. Tensors and torch are not known here: the values are plain."""
        line = json.dumps({"event": type(event).__name__.lower(), **vars(event)}) + "\n"
        os.write(self._descriptor, line.encode())


_PLAIN: dict[str, type | tuple[type, ...]] = {"int": int, "str": str, "bool": bool, "float": (int, float)}


def _fits(annotation: str, value: Any) -> bool:
    """Return whether a value is of the type that the annotation of a field names. A file may hold anything."""
    if annotation.endswith(" | None"):
        return value is None or _fits(annotation[: -len(" | None")], value)
    inner = annotation[annotation.find("[") + 1 : -1]
    if annotation.startswith("list["):
        return isinstance(value, list) and all(_fits(inner, one) for one in value)
    if annotation.startswith("dict[str, "):
        return isinstance(value, dict) and all(_fits(inner[len("str, ") :], one) for one in value.values())
    return isinstance(value, _PLAIN[annotation])


def _made(kind: type[Any], data: dict[str, Any]) -> Any:
    """Make a record from plain values. Fields that this version does not know are left out. Raises TypeError."""
    kinds = {one.name: str(one.type) for one in fields(kind)}
    given = {name: value for name, value in data.items() if name in kinds}
    for name, value in given.items():
        if not _fits(kinds[name], value):
            raise TypeError(f"{name} of {kind.__name__} is not {kinds[name]}")
    return kind(**given)


def _event(line: bytes) -> Any:
    data = json.loads(line)
    return _made(EVENTS[data.pop("event")], data)


def events(path: Path) -> Iterator[Any]:
    """Yield the events of one file. A line that is not an event ends the reading: the process died in it.

    Reads at most `FILE_BYTES`.
    """
    left = FILE_BYTES
    with path.open("rb") as file:
        while left > 0:
            line = file.readline(LINE_BYTES)
            left -= len(line)
            if not line.endswith(b"\n"):
                return
            try:
                yield _event(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                return


def ranks(start: Path) -> dict[tuple[int, int], list[Any]]:
    """Return the events of a start by (rank, pid), in the order of ranks, then of the process."""
    found = {}
    for path in sorted(start.glob("rank-*-*.jsonl")):
        rank, pid = path.stem.split("-")[1:]
        if rank.isdigit() and pid.isdigit():
            found[int(rank), int(pid)] = list(events(path))
    return dict(sorted(found.items()))


def workers(start: Path, kind: type[T]) -> list[T]:
    """Return the events of this kind, `Worker` or `Fetched`, that the loaders' workers of a start recorded."""
    paths = sorted(start.glob("worker-*-*.jsonl"))
    return [event for path in paths for event in events(path) if isinstance(event, kind)]


def write_outcome(start: Path, outcome: Outcome) -> None:
    """Write `outcome.json` whole or not at all."""
    temporary = start / "outcome.json.tmp"
    temporary.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")
    temporary.replace(start / "outcome.json")


def read_outcome(start: Path) -> Outcome:
    """Read `outcome.json`. Raises FileNotFoundError where the start did not happen, ValueError for a broken file."""
    with (start / "outcome.json").open("rb") as file:
        data = json.loads(file.read(FILE_BYTES))
    files = [_made(FoundFile, one) for one in data.pop("files", [])]
    found: Outcome = _made(Outcome, data)
    found.files = files
    return found
