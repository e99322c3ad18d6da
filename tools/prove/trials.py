"""What `yard prove` starts: a user's command, or that of a manifest, as the plan that the runner carries out."""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.cells.knobs import Knobs
from tools.core import UserError, repo, secret_patterns
from tools.kube import Manifests
from tools.local import job as local_job
from tools.local import run as local_run
from tools.prove.claims import NAMES
from tools.prove.observed import TABLE
from tools.simulator import launchers
from tools.simulator.torchrun import BadOptions, UnknownOptions
from training.prove.plan import Fault, Plan, Start

# Of the caller's environment the command gets these only.
ALLOWED = re.compile(
    r"PATH|PYTHONPATH|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|OMP_NUM_THREADS"
    r"|CUDA_VISIBLE_DEVICES|CUDA_HOME|XDG_CACHE_HOME|HF_HOME|HF_HUB_CACHE|HF_DATASETS_CACHE|HF_HUB_OFFLINE|TORCH_HOME"
)
NPROC = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)")
EXAMPLE = "for example: torchrun --nproc-per-node 2 …"
CONFIG = re.compile(r"--config[-_]file")
NODES = re.compile("--nnodes")
RESTARTS = re.compile(r"--max[-_]restarts")
ONE_NODE = re.compile(
    r"--(?:standalone|nnodes|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_](?:endpoint|backend|id))"
)
OPERATOR = re.compile(r"PET_\w+|(?:MASTER|NODE|GROUP|LOCAL)_\w+|RANK|WORLD_SIZE|NNODES")
EPHEMERAL = re.compile(r"emptyDir|ConfigMap|Secret|projected|downwardAPI")
FAULTS = {"killed": "kill", "torn-first": "torn-save", "torn-later": "torn-save", "term": "terminate",
          "exception": "exception", "hang": "hang"}  # fmt: skip
SOURCES = {"resumed": "killed", "world": "killed", "torn-first-again": "torn-first", "torn-later-again": "torn-later"}


@dataclass(frozen=True)
class Subject:
    """The command that is proven, and where it runs. `keep` is what survives a restart."""

    command: list[str]
    workdir: Path
    variables: dict[str, str]
    keep: list[Path]
    nodes: int = 1
    grace: float = 30.0
    image: str = ""
    name: str = ""
    nproc: int | None = None  # the ranks of a node, where a variable of the operator says so


@dataclass(frozen=True)
class Options:
    """The user's wishes for a proof."""

    steps: int = 30
    kill_at: int | None = None
    resume: str | None = None
    keep: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: float = 300.0
    only: tuple[str, ...] = ()
    network: bool = False
    claims: list[str] = field(default_factory=list)


def wanted(only: Sequence[str]) -> list[str]:
    """Return the claims of `--only`, by name or number; all without one."""
    names = []
    for text in only:
        name = NAMES[int(text) - 1] if text.isdigit() and 0 < int(text) <= len(NAMES) else text
        if name not in NAMES:
            known = ", ".join(f"{number} {one}" for number, one in enumerate(NAMES, 1))
            raise UserError(f"--only {text}: no claim has this name", repo.did_you_mean(text, NAMES) or known)
        names.append(name)
    return [name for name in NAMES if name in names] or list(NAMES)


def of_command(words: Sequence[str], workdir: Path, knobs: Knobs, options: Options) -> Subject:
    """Return a command of the command line as a subject. Raises UserError where it cannot start."""
    if knobs != Knobs(nodes=knobs.nodes, nproc=knobs.nproc):
        raise UserError("a COMMAND takes --nodes and --nproc; the other options change a cell")
    if not workdir.is_dir():
        raise UserError(f"--workdir {workdir}: no such directory")
    command = _with_nodes(_with_nproc(list(words), knobs.nproc), knobs.nodes)
    variables = {name: value for name, value in os.environ.items() if ALLOWED.fullmatch(name)}
    if variables.get("PYTHONPATH"):  # relative to here, whatever the directory of the command is
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, variables["PYTHONPATH"].split(os.pathsep)))
    variables.update(given(options.env))
    _check(command, workdir, variables)
    _check(again_of(command, options), workdir, variables)
    keep = [(workdir / text).resolve() for text in options.keep] or [workdir]  # a view does not follow links
    for text in options.keep:
        if (workdir / text).is_file():
            raise UserError(f"--keep {text}: is a file", f"name its directory: --keep {Path(text).parent}")
    return Subject(command, workdir, variables, keep, knobs.nodes or 1)


def of_manifests(manifests: Manifests, target: Sequence[str], knobs: Knobs, options: Options) -> Subject:
    """Return the one job of some manifests as a subject: its command, variables, volumes and grace period.

    The job gets a name of its own, and with it its own run directory. Raises UserError.
    """
    job = local_job.ready(manifests, target, knobs)
    local_run.materialise(job)
    pod, container = job.local[0], job.pods[0].container
    variables = {name: value for name, value in pod.environment.items() if not OPERATOR.fullmatch(name)}
    variables.update(given(options.env))
    mounts = [mount.local for mount in pod.mounts if not EPHEMERAL.match(mount.kind)]
    keep = [*mounts, *((pod.cwd / text).resolve() for text in options.keep)]
    image = str(container.get("image") or "")
    return Subject(pod.argv, pod.cwd, variables, keep, len(job.local), float(pod.grace), image, job.name)


def plan(subject: Subject, options: Options) -> tuple[Plan, dict[str, str]]:
    """Return the plan for the claims of `options`, and why starts that they need are not in it."""
    needed = {name for claim in options.claims for name in TABLE["claims"][claim]["starts"]}
    again = once(again_of(subject.command, options))
    other, number = other_world(again), {}
    if other is None and subject.nproc:
        other, number = again, {"PET_NPROC_PER_NODE": str(_another(subject.nproc))}
    notes = {} if other else {"world": "the command does not say how many ranks a launcher starts"}
    starts = []
    for name in TABLE["starts"]:
        if name not in needed or name in notes:
            continue
        command = other if name == "world" and other else again if name in SOURCES else once(subject.command)
        fault = Fault(FAULTS[name], step=options.kill_at if name == "killed" else None) if name in FAULTS else None
        claims = [number for number, claim in enumerate(NAMES, 1) if name in TABLE["claims"][claim]["starts"]]
        more = number if name == "world" else {}
        starts.append(Start(name, claims, command, SOURCES.get(name), fault, variables=more))
    made = Plan(
        starts=starts,
        workdir=str(subject.workdir),
        variables=subject.variables,
        steps=options.steps,
        nodes=subject.nodes,
        keep=list(dict.fromkeys(map(str, subject.keep))),
        link=[os.path.normpath(subject.workdir / text) for text in options.link],
        network=options.network,
        timeout=options.timeout,
        grace=subject.grace,
        secrets={shape.kind: shape.pattern.pattern for shape in secret_patterns.SHAPES},
    )
    return made, notes


def first(made: Plan) -> Plan:
    """Return the plan of the uninterrupted run only."""
    return replace(made, starts=[one for one in made.starts if one.name == "whole"])


def other_world(command: Sequence[str]) -> list[str] | None:
    """Return the command with another number of ranks on each node: half of them, or two instead of one."""
    at, value = _option(command, NPROC)
    if at is None or not value.isdigit() or int(value) < 1:
        return None
    return _replaced(list(command), at, _another(int(value)))


def once(command: list[str]) -> list[str]:
    """Return the command without restarts by its launcher: they would meet the same fault again."""
    at, _ = _option(command, RESTARTS)
    return command if at is None else _replaced(command, at, 0)


def asked(made: Plan) -> int:
    """Return how many ranks the command of a plan starts on each node: 0 without a launcher, 2 for one on each GPU."""
    command = made.starts[0].command
    launcher, _ = launchers.kind(command)
    _, value = _option(command, NPROC)
    if launcher == "accelerate":
        value = value or _configured(command, Path(made.workdir)) or "gpu"
    default = 1 if launcher and launcher != "python" else 0
    return int(value) if value.isdigit() else 2 if value else default


def _configured(command: Sequence[str], workdir: Path) -> str:
    """Return the number of ranks that a configuration file of accelerate gives, or an empty text."""
    _, named = _option(command, CONFIG)
    cache = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    path = workdir / (named or f"{cache}/accelerate/default_config.yaml")
    with contextlib.suppress(OSError, ValueError):
        return "".join(re.findall(r"(?m)^num_processes: *(\d+)", path.read_text(encoding="utf-8"))[:1])
    return ""


def _another(number: int) -> int:
    return number // 2 if number > 1 else 2


def _option(command: Sequence[str], names: re.Pattern[str]) -> tuple[int | None, str]:
    """Return where a launcher's option of these names stands, and its value. The program has options of its own."""
    launcher, rest = launchers.kind(command)
    if not launcher or launcher == "python":
        return None, ""
    started = _started(command)
    for at in range(len(command) - len(rest), len(command) - (0 if started == list(command) else len(started))):
        name, separator, value = command[at].partition("=")
        if names.fullmatch(name):
            return at, value if separator else (command[at + 1] if at + 1 < len(command) else "")
    return None, ""


def _started(command: Sequence[str]) -> list[str]:
    """Return what a launcher starts, nothing where that is unknown."""
    with contextlib.suppress(BadOptions, UnknownOptions):
        return launchers.program(command)
    return []


def _replaced(command: list[str], at: int, number: int) -> list[str]:
    name, separator, _ = command[at].partition("=")
    new = [f"{name}={number}"] if separator else [name, str(number)]
    return [*command[:at], *new, *command[at + (1 if separator else 2) :]]


def _with_nproc(command: list[str], number: int | None) -> list[str]:
    if number is None:
        return command
    at, _ = _option(command, NPROC)
    if at is not None:
        return _replaced(command, at, number)
    launcher, rest = launchers.kind(command)
    here = len(command) - len(rest)
    if launcher and launcher != "python":
        option = "--num_processes" if launcher == "accelerate" else "--nproc-per-node"
        return [*command[:here], option, str(number), *rest]
    started = _started(command)
    flags = command[: len(command) - len(started)]
    if launcher == "python" and [*flags, *started] == command and "".join(started[:1]).endswith((".py", "-m")):
        return [*flags, "-m", "torch.distributed.run", "--nproc-per-node", str(number), *started]
    raise UserError(f"--nproc {number}: {command[0]} is not a launcher", EXAMPLE)


def _with_nodes(command: list[str], number: int | None) -> list[str]:
    """Leave the nodes' meeting place to the runner, which gives it by variables. Raises UserError for other nodes."""
    _, named = _option(command, NODES)
    if number is None and named.isdigit() and int(named) > 1:
        raise UserError(
            f"--nnodes {named}: one node is started, which waits for the others", f"yard prove --nodes {named}"
        )
    if number is None or number == 1:
        return command
    launcher, rest = launchers.kind(command)
    if launcher in ("", "python"):
        raise UserError(f"--nodes {number}: {command[0]} is not a launcher", EXAMPLE)
    kept, words = command[: len(command) - len(rest)], list(rest)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, separator, _ = word.partition("=")
        flag = name in ("--standalone", "-m", "--module", "--no-python", "--no_python")
        values = [] if separator or flag else words[:1]
        del words[: len(values)]
        if not ONE_NODE.fullmatch(name):
            kept += [word, *values]
        if name in ("-m", "--module"):
            break
    return [*kept, *words]


def given(rows: Sequence[str]) -> dict[str, str]:
    """Return the variables of `--env`. Raises UserError."""
    found = {}
    for row in rows:
        name, separator, value = row.partition("=")
        if not separator or not name:
            raise UserError(f"--env {row}: write it as NAME=VALUE")
        found[name] = value
    return found


def again_of(command: list[str], options: Options) -> list[str]:
    """Return the command of a restart. Raises UserError."""
    try:
        return shlex.split(options.resume) if options.resume else command
    except ValueError as problem:
        raise UserError(f"--resume {options.resume!r}: {problem}") from None


def _check(command: Sequence[str], workdir: Path, variables: Mapping[str, str]) -> None:
    """Raise UserError for a program or script that is not there."""
    program = command[0]
    if re.fullmatch(r"[A-Za-z_]\w*=.*", program, re.DOTALL):
        raise UserError(f"{program}: is a variable, not a program", f"yard prove --env {program} -- COMMAND")
    is_file = (workdir / program).is_file()
    on_path = shutil.which(program, path=variables.get("PATH")) is not None
    if is_file and not on_path and "/" not in program:
        raise UserError(f"{program}: is a script, not a program", f"yard prove -- python {program}")
    if not is_file and not on_path:
        near = repo.did_you_mean(program, [path.name for path in workdir.glob("*.py") if program.endswith(".py")])
        raise UserError(f"{program}: no such program", near or "the command is what you would type: torchrun train.py")
    if "/" in program and not os.access(workdir / program, os.X_OK):
        raise UserError(f"{program}: cannot be executed", f"python {program}" if program.endswith(".py") else None)
    script = next(iter(_started(command)), "")
    if script.endswith(".py") and not (workdir / script).is_file():
        there = sorted(path.name for path in workdir.glob("*.py"))
        raise UserError(f"{script}: no such file in {repo.shown(workdir)}", repo.did_you_mean(script, there))
