"""The edit loop: changed Python files go into the running pods of a job, whose command then starts again.

It is for jobs that `yard job submit --dev` has prepared. training/remote/code_writer.py runs in their pods,
in images of the user's own: its answers are data like all that comes from a cluster.
"""

import base64
import contextlib
import hashlib
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.core import Say, UserError, output, wait
from tools.job.pod_talk import PodTalk
from tools.job.snapshot import JobPod, LiveJob, lookup
from tools.kube import Kubectl, Manifests, Object
from tools.simulator.prefixes import AGENT, ENTRYPOINTS, behind_prefixes
from tools.workload import kinds
from training.remote import code_writer

ANNOTATION = "trainyard/development"  # of a job whose code may be changed
VARIABLE, DIRECTORY, VOLUME = "TRAINYARD_CODE", "/trainyard-code", "trainyard-code"
SIZE = "256Mi"  # of the volume: the changed files, and copies of the Python files beside them
MOST_FILES, LARGEST, MOST_BYTES = 5000, 1 << 20, 16 << 20
SKIPPED = ("__pycache__", "node_modules")  # and names that begin with a dot


@dataclass(frozen=True)
class Synced:
    """What happened: the files that some pod lacked, and the pods.

    `step` is the first step of the new code, `seconds` after the last file was saved. `failed` is why the new
    code ended. `parts` are the seconds for the copies, for the ranks' end, and from there to the step.
    """

    changed: list[str]
    pods: list[str]
    step: int | None = None
    failed: str = ""
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


def prepare(manifests: Manifests) -> None:
    """Let the code of the manifest's job be changed while it runs.

    Its pods get a writable directory, and the job the annotation. Raises UserError for a job whose process 1
    could not start its command again.
    """
    job = kinds.job_of(manifests)
    job.item["metadata"].setdefault("annotations", {})[ANNOTATION] = "true"
    if not job.training_specs():
        raise UserError(f"{job.title}: its pod template is not in the file, so --dev cannot change it")
    for spec, container in zip(job.training_specs(), job.training_containers(), strict=True):
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        parents = behind_prefixes([str(word) for word in words], {})[2]
        if not any(one.name in (AGENT, *ENTRYPOINTS) for one in parents):
            message = f"{job.title}: {container['name']}: process 1 is not the agent, which --dev needs"
            raise UserError(message, "yard new script makes a cell that has it (docs/own-job.md)")
        container.setdefault("env", []).append({"name": VARIABLE, "value": DIRECTORY})
        container.setdefault("volumeMounts", []).append({"name": VOLUME, "mountPath": DIRECTORY})
        spec.setdefault("volumes", []).append({"name": VOLUME, "emptyDir": {"sizeLimit": SIZE}})


def files_of(paths: Sequence[str]) -> dict[str, bytes]:
    """Return the Python files at or below the paths, by their names below the working directory.

    Hidden directories and links to directories are left out. Raises UserError for a path outside, for a link,
    for too much, and for a file that is not valid Python.
    """
    here, found = Path.cwd(), {}
    for path in sorted(set(_python_files(here, paths))):
        name = path.relative_to(here).as_posix()
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{name}: not a regular file", "a link would be copied as what it points to")
        if path.stat().st_size > LARGEST:
            raise UserError(f"{name}: {path.stat().st_size:,} bytes; at most {LARGEST:,} are copied")
        found[name] = path.read_bytes()
        if len(found) > MOST_FILES or sum(map(len, found.values())) > MOST_BYTES:
            hint = "name the files or directories that you have changed"
            raise UserError(f"more than {MOST_FILES:,} files or {MOST_BYTES >> 20} MiB of Python here", hint)
    if not found:
        raise UserError(f"no Python file in {', '.join(map(str, paths))}")
    for name, content in found.items():
        _check_syntax(name, content)
    return found


def _python_files(here: Path, paths: Sequence[str]) -> Iterable[Path]:
    for text in paths:
        path = Path(os.path.normpath(here / text))
        if not path.is_relative_to(here):
            raise UserError(f"{text}: is outside the working directory", "run this where the image's code is")
        if not path.is_dir() or path.is_symlink():
            if path.suffix != ".py":
                raise UserError(f"{text}: not a Python file or a directory")
            yield path
            continue
        for directory, names, files in os.walk(path):
            names[:] = [one for one in names if not one.startswith(".") and one not in SKIPPED]
            if "pyvenv.cfg" in files:
                names.clear()
                continue
            yield from (Path(directory, one) for one in files if one.endswith(".py"))


def _check_syntax(name: str, content: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, name, "exec", dont_inherit=True)
    except SyntaxError as problem:
        line = f":{problem.lineno}" if problem.lineno else ""
        raise UserError(f"{name}{line}: {problem.msg}", "nothing was copied") from None
    except (ValueError, RecursionError, MemoryError) as problem:
        raise UserError(f"{name}: not valid Python: {problem}", "nothing was copied") from None


def pods_of(kubectl: Kubectl, live: LiveJob) -> list[JobPod]:
    """Return the pods of a job in development. Raises UserError if one is missing or does not run."""
    job = live.workload
    annotations = job.item["metadata"].get("annotations") or {}
    if annotations.get(ANNOTATION) != "true":
        hint = "yard job submit CELL --dev --replace"
        raise UserError(f"{job.name} was not submitted for development: its code stays as it is", hint)
    found = lookup.pods(kubectl, job)
    roles = {role.name.lower(): role.replicas for role in job.roles if role.trains}
    here = [pod for pod in found if pod.role in roles]
    pods, wanted = [pod for pod in here if not pod.deleted], sum(roles.values())
    waiting = [f"{pod.name} does not run ({pod.phase})" for pod in pods if not pod.running]
    if len(pods) < wanted:
        waiting += [f"{pod.name} is being deleted" for pod in here if pod.deleted]
        waiting = waiting or [f"{job.name} has {len(pods)} of {wanted} pods"]
    if waiting:
        raise UserError(f"not all pods run: {', '.join(waiting)}; nothing was changed", code=1)
    return pods


class Sync:
    """One synchronisation of all pods of a job."""

    def __init__(self, talks: Sequence[PodTalk], say: Say) -> None:
        self._talks, self._say = talks, say
        self._id = uuid.uuid4().hex

    def run(self, files: Mapping[str, bytes], seconds: float) -> Synced:
        """Bring the pods up to date, and wait up to `seconds` for a step.

        Raises UserError with the pods that could not be reached. Nothing is restarted before all pods have
        the files. If a pod cannot be stopped, the others start again.
        """
        names, began = [talk.pod for talk in self._talks], time.time()
        wanted = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        there = self._all("digests", lambda _: {"names": list(wanted)})
        lacking = {pod: _differing(wanted, there[pod].get("digests")) for pod in names}
        changed = sorted(set().union(*lacking.values()))
        if not changed:
            return Synced([], names)
        saved = max(Path(name).stat().st_mtime for name in changed)
        coded = {name: base64.b64encode(files[name]).decode() for name in changed}
        staged = {pod: {one: coded[one] for one in lacking[pod]} for pod in names}
        self._all("stage", lambda pod: {**self._mine(pod), "files": staged[pod]}, or_else="discard")
        self._say(f"{output.count(len(changed), 'file')} in {output.count(len(names), 'pod')}; restarting")
        self._all("place", self._mine)
        copied = time.time()
        self._all("stop", self._mine, or_else="start")
        since = {pod: _number(answer.get("time")) for pod, answer in self._all("start", self._mine).items()}
        started = time.time()
        step, failed = wait.until(lambda: self._outcome(since), seconds, every=0.1) or (None, "")
        ended = time.time()
        parts = {"copy": copied - began, "stop": started - copied, "step": ended - started}
        return Synced(changed, names, step, failed, ended - saved, parts)

    def _outcome(self, since: Mapping[str, float]) -> tuple[int | None, str] | None:
        """Return a step that is newer than its pod's start, or why the command of a pod ended."""
        for name, answer in self._all("state", lambda _: {}).items():
            state, last = (_mapping(answer.get(key)) for key in ("state", "last"))
            if state.get("state") == "failed":
                return None, f"{name}: {output.short(state.get('message') or 'the command failed')}"
            if type(last.get("step")) is int and _number(last.get("time")) > since[name]:
                return int(last["step"]), ""
        return None

    def _all(self, action: str, given: Callable[[str], Object], or_else: str = "") -> dict[str, Object]:
        """Take one action in all pods, and return the answers.

        If it fails in one of them, the action `or_else` follows in all that can be reached. Raises UserError.
        """
        answers = self._each(action, given)
        failed = [f"{pod}: {answer}" for pod, answer in answers.items() if isinstance(answer, str)]
        if not failed:
            return {pod: answer for pod, answer in answers.items() if not isinstance(answer, str)}
        if or_else:
            self._each(or_else, self._mine)
        before = action in ("digests", "stage")
        result = "nothing was changed" if before else "the pods may have different code now"
        raise UserError(f"{'; '.join(failed)}: {result}", "run it again when all pods answer", 1)

    def _each(self, action: str, given: Callable[[str], Object]) -> dict[str, Object | str]:
        with ThreadPoolExecutor(len(self._talks)) as pool:
            questions = [{"action": action, **given(talk.pod)} for talk in self._talks]
            answers = pool.map(lambda talk, question: talk.ask(question), self._talks, questions)
            return dict(zip((talk.pod for talk in self._talks), answers, strict=True))

    def _mine(self, _pod: str) -> Object:
        return {"id": self._id}


@contextlib.contextmanager
def talking(kubectl: Kubectl, pods: Sequence[JobPod]) -> Iterator[list[PodTalk]]:
    """Start the program that writes the files in all pods; yield what talks to each."""
    program = Path(code_writer.__file__).read_text(encoding="utf-8")
    with contextlib.ExitStack() as stack:
        talks = [PodTalk(kubectl, pod, program) for pod in pods]
        for talk in talks:
            stack.callback(talk.close)
        yield talks


def _differing(wanted: Mapping[str, str], there: Any) -> set[str]:
    known = _mapping(there)
    return {name for name, digest in wanted.items() if known.get(name) != digest}


def _mapping(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
