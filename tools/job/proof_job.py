"""A proof in the cluster: applies a small job, follows it, fetches its records and removes it."""

import base64
import io
import re
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cells import knobs
from tools.cluster.inventory import INSTANCE_PRICES
from tools.core import UserError, output, wait
from tools.job import stop, submit
from tools.job.pod_talk import PodTalk
from tools.job.snapshot import JobPod, LiveJob, lookup
from tools.kube import Kubectl, Manifests, name_of
from tools.prove import pods, run
from tools.prove.trials import Options
from tools.workload import kinds
from training.remote import proof_reader

COME = 1800.0  # seconds for the first pod to run
EVERY = 1.0
LARGEST, MOST_FILES = 1 << 30, 20_000  # bytes and files of the records, when unpacked
Ask = Callable[[dict[str, Any]], dict[str, Any]]  # a question to a pod, and its answer
SAID = ("start", "state", "note", "step", "of")  # of a row of the progress
NAME = re.compile(r"[\w-]{1,40}/[\w.-]{1,80}")


@dataclass(frozen=True)
class Proven:
    """What the proof in the cluster found, and the image that its pods ran, with the digest where it is known."""

    result: run.Result
    image: str


def price(manifests: Manifests, nodes: int) -> str:
    """Return what the job costs in words, as far as the machines that it asks for are known."""
    machine = knobs.machine(kinds.job_of(manifests))
    if machine is None:
        return f"{output.count(nodes, 'pod')}; the price is unknown: the job asks for no type of machine"
    hourly = machine.price_usd_per_hour
    if hourly is None:
        return f"{output.count(nodes, 'pod')} on {machine.name}; the price of this machine is unknown"
    minutes = f"{hourly * nodes / 60:,.2f} $ a minute"
    return f"{output.count(nodes, 'pod')} on {machine.name}: {minutes} ({INSTANCE_PRICES}; yours may differ)"


def prove(kubectl: Kubectl, manifests: Manifests, trial: pods.Trial, options: Options, out: Path) -> Proven:
    """Carry out the proof of a job as `trial`, and return what it found. `out` gets the records. Raises UserError.

    Whatever ends this function also deletes what it applied.
    """
    submit.check(kubectl, manifests, output.note)
    existing = lookup.existing(kubectl, kinds.job_of(trial.manifests))
    if existing is not None:
        raise UserError(f"{existing.title} exists: another proof has this name", "--name gives this one another name")
    others = list(_missing(kubectl, trial.manifests))
    wanted = Manifests(trial.manifests.source, [*others, lookup.top_of(trial.manifests)])
    for warning in submit.dry_run(kubectl, wanted, replaced=False):
        output.note(warning)
    begun = time.monotonic()
    with _applied(kubectl, wanted):
        pod = _first_pod(kubectl, trial.manifests)
        output.note(f"the proof runs in {trial.subject.name}; follow its pods with yard job logs {trial.subject.name}")
        with _talk(kubectl, pod) as ask:
            collect(ask, trial, out, lambda: _alive(kubectl, trial.manifests))
        image = _image(kubectl, trial.manifests) or trial.subject.image
    return Proven(run.judged(trial.plan, trial.notes, options, out, time.monotonic() - begun), image)


def collect(ask: Ask, trial: pods.Trial, out: Path, alive: Callable[[], None]) -> None:
    """Show the progress of a proof by the answers of a pod, write its records to `out`, and let the pods end.

    `alive` raises UserError where a pod has ended.
    """
    size = _follow(ask, trial, alive)
    _unpack(_fetched(ask, trial.directory, size), out)
    ask({"directory": trial.directory, "fetched": True})


def _missing(kubectl: Kubectl, manifests: Manifests) -> Iterator[Any]:
    """Yield the objects beside the job that the cluster does not have: an existing one is not changed."""
    top = lookup.top_of(manifests)
    for item in manifests.objects:
        if item is not top and submit.lacks(kubectl, str(item["kind"]), name_of(item)):
            yield item


@contextmanager
def _applied(kubectl: Kubectl, wanted: Manifests) -> Iterator[None]:
    """Apply objects, and delete them at the end: the job first, then what it needed."""
    others = wanted.objects[:-1]
    try:
        for one in submit.apply(kubectl, wanted)[0]:
            output.note(f"{kubectl.namespace}/{one}")
        yield
    finally:
        found = kinds.job_of(wanted)
        output.note(f"deleting {found.title} and what was applied with it")
        live = lookup.existing(kubectl, found)
        if live is not None:
            stop.delete(kubectl, LiveJob(live), output.note)
        for item in others:
            kubectl.run("delete", str(item["kind"]), "--ignore-not-found", "--wait=false", names=[name_of(item)])


def _first_pod(kubectl: Kubectl, manifests: Manifests) -> JobPod:
    """Wait for a pod that runs."""
    sometimes = wait.sparing(output.note, 10.0)
    name = kinds.job_of(manifests).name

    def running() -> JobPod | None:
        found = lookup.pods(kubectl, kinds.job_of(manifests))
        words = "; ".join(f"{pod.name} {pod.phase} {' '.join(pod.waiting)}".strip() for pod in found) or "no pod yet"
        sometimes(f"waiting: {words}")
        over = next((pod for pod in found if pod.over or pod.broken), None)
        if over is not None:
            raise _ended(kubectl, over)
        return next((pod for pod in found if pod.running), None)

    pod = wait.until(running, COME, every=EVERY)
    if pod is None:
        raise UserError(f"no pod of {name} runs after {COME:.0f} s", f"yard preflight and yard job why {name}", 1)
    return pod


def _ended(kubectl: Kubectl, pod: JobPod) -> UserError:
    """Return the error for a pod that ended, with its last words."""
    words = ("logs", "--all-containers", "--tail=5")
    said = kubectl.run(*words, names=[pod.name]).stdout.strip()
    return UserError(f"{pod.name} ended before the proof: {said or pod.phase}", code=1)


def _alive(kubectl: Kubectl, manifests: Manifests) -> None:
    """Raise UserError where a pod has ended."""
    for pod in lookup.pods(kubectl, kinds.job_of(manifests)):
        if pod.over:
            raise _ended(kubectl, pod)


@contextmanager
def _talk(kubectl: Kubectl, pod: JobPod) -> Iterator[Ask]:
    """Talk to the program in a pod. A connection that breaks is made again, three times for one question."""
    program = Path(proof_reader.__file__).read_text(encoding="utf-8")
    talks = [PodTalk(kubectl, pod, program)]

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        for _ in range(3):
            found = talks[-1].ask(question)
            if not isinstance(found, str):
                return found
            talks[-1].close()
            time.sleep(EVERY)
            talks.append(PodTalk(kubectl, pod, program))
        raise UserError(f"{pod.name}: {output.short(found)}", f"yard job why {pod.name}", 1)

    try:
        yield ask
    finally:
        talks[-1].close()


def _follow(ask: Ask, trial: pods.Trial, alive: Callable[[], None]) -> int:
    """Show the progress until the records are there, and return their size in bytes."""
    show, looked = run.progress(trial.plan), time.monotonic()
    at: Any = 0
    names = {one.name for one in trial.plan.starts}
    while True:
        found = ask({"directory": trial.directory, "from": at})
        rows, at, size = found.get("rows"), found.get("next"), found.get("size")
        if not isinstance(rows, list) or not isinstance(at, int) or not all(isinstance(row, dict) for row in rows):
            raise UserError("the answer of a pod is not that of a proof", code=1)
        for row in rows:
            start, state, note, step, of = (output.short(str(row.get(key) or "")) for key in SAID)
            if state == "failed":
                raise UserError(f"the proof failed in its pods: {note}", code=1)
            if state == "waiting":
                output.note(note)
            elif start in names:
                show({"start": start, "state": state, "note": note, "step": step, "of": of})
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        if time.monotonic() - looked > 10.0:
            looked = time.monotonic()
            alive()
        time.sleep(EVERY)


def _fetched(ask: Ask, directory: str, size: int) -> bytes:
    if size > LARGEST:
        raise UserError(f"the records of the proof have {size:,} bytes; at most {LARGEST:,} are read", code=1)
    found = bytearray()
    while len(found) < size:
        text, part = str(ask({"directory": directory, "at": len(found)}).get("part") or ""), b""
        with suppress(ValueError):
            part = base64.b64decode(text)
        if not part:
            raise UserError(f"only {len(found):,} of {size:,} bytes of the records arrived", code=1)
        found += part
    return bytes(found)


def _unpack(content: bytes, out: Path) -> None:
    """Write the records: files of a start each, nothing else and not too much. Raises UserError."""
    left = LARGEST
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for number, member in enumerate(archive):
                left -= member.size
                if not member.isreg() or not NAME.fullmatch(member.name) or left < 0 or number >= MOST_FILES:
                    raise UserError(f"the records of the proof hold another kind of file: {member.name[:80]!r}", code=1)
                file = archive.extractfile(member)
                assert file is not None
                target = out / member.name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(file.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as problem:
        raise UserError(f"the records of the proof cannot be read: {problem}", code=1) from None


def _image(kubectl: Kubectl, manifests: Manifests) -> str:
    """Return the image of the pods with its digest, empty where the kubelet tells none."""
    for pod in lookup.pods(kubectl, kinds.job_of(manifests)):
        found = str(pod.container.get("imageID") or "")
        if "@sha256:" in found:
            return found
    return ""
