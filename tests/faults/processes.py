"""Faults of processes: killed, stopped, asked to stop, without memory, spinning, out of step with each other."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.bed import (
    INTERVAL,
    ROOT,
    STEPS,
    Bed,
    NoFaultError,
    NotTriedError,
    Outcome,
    alive,
    continued,
    course,
    ended,
    kill,
    last_step,
    resumed_from,
    wait_for,
)
from tests.parts import venv
from tests.training.jobs import Job
from training.run.failure import CODES

LOCK = ROOT / "tests/faults/requirements.lock"
HANG_SECONDS = 5
GLOO_SECONDS = 10
FEW = 40  # steps of a run whose every save is slow
LONG = 100_000  # steps of a run that is not to end by itself


def rank_killed(bed: Bed) -> Outcome:
    """SIGKILL of rank 1 at a drawn step; the group continues in place."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    job = bed.start()
    job.until(lambda: last_step(job) >= at)
    before = job.workers()
    struck = kill(before[1:2])
    reached = last_step(job)
    seconds = continued(job, before, struck)
    code = job.wait()
    return judged(bed, job, calm, code, reached, seconds, f"process {before[1]} of rank 1 ended at step {reached}")


def judged(
    bed: Bed, job: Job, calm: object, code: int, reached: int, seconds: float | None, proof: str, most: int = INTERVAL
) -> Outcome:
    """Compare a run that has ended well with the one without a fault."""
    if code != 0:
        return Outcome(False, proof, f"the job ended with code {code}", seconds=seconds)
    start, same = resumed_from(job), course(job) == calm
    lost = max(0, reached - start)
    seen = f"continued from step {start}, losses and weights {'are bitwise equal' if same else 'differ'}"
    return Outcome(same and lost <= most and seconds is not None, proof, seen, lost, seconds)


def restarts_off(bed: Bed) -> Outcome:
    """The same without a restart: how soon the job ends, and what its code says."""
    job = bed.start(restarts=0, steps=LONG)
    job.until(lambda: last_step(job) >= 8)
    victim = job.workers()[1]
    struck = kill([victim])
    code = job.wait()
    seconds = time.time() - struck
    named = code == CODES["killed"]
    return Outcome(named, f"process {victim} of rank 1 ended", f"code {code}{_why(job)}", seconds=seconds)


def _why(job: Job) -> str:
    """What end.json says, where there is one."""
    if not (job.run / "end.json").exists():
        return ", which every failure has"
    end = job.end()
    return f": {end['class']}, rank {end['rank']}"


def config_error(bed: Bed) -> Outcome:
    """A batch that cannot be divided among the ranks, with two restarts allowed."""
    began = time.time()
    job = bed.start(restarts=2, keys=("parallel.micro_batch_size=3",), words=("--batch=7",))
    code = job.wait()
    text = job.output.read_text(errors="replace")
    starts = text.count("starting\n") if bed.plain else len({one["pid"] for one in job.failures() if one["rank"] == 0})
    if not starts:
        raise NoFaultError("the configuration was accepted")
    seen = f"code {code}, {starts} start{'s' if starts > 1 else ''}{_why(job)}"
    return Outcome(code == CODES["config"] and starts == 1, "the ranks refused it", seen, seconds=time.time() - began)


@contextlib.contextmanager
def memory_group(bed: Bed, limit: int) -> Iterator[list[str]]:
    """Yield the words that put a command into a cgroup with this much memory."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    home = Path("/sys/fs/cgroup") if unified else Path("/sys/fs/cgroup/memory")
    group = home / f"trainyard-fault-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError as why:
        raise NotTriedError(f"no cgroup can be made here ({why.strerror}): run as root") from None
    try:
        yield ["sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "in-group"]
    finally:
        bed.close()
        wait_for(lambda: not (group / "cgroup.procs").read_text().split(), 10)
        group.rmdir()


def out_of_memory(bed: Bed) -> Outcome:
    """Rank 1 takes memory at a drawn step, in a cgroup with a limit; the kernel kills it."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    with memory_group(bed, 3 << 30) as prefix:
        job = bed.start(fault={"what": "eat", "rank": 1, "step": at}, prefix=prefix)
        job.until(lambda: bed.proof_file().exists())
        before = job.workers()
        if not wait_for(lambda: not alive(bed.proof()["pid"]), 60):
            raise NoFaultError("the kernel did not kill the rank")
        struck = time.time()
        seconds = continued(job, before, struck)
        code = job.wait()
        kinds = {one["class"] for one in job.failures()}
        found = judged(bed, job, calm, code, at - 1, seconds, f"{bed.proof()['what']}: killed by the kernel")
    found.held = found.held and "out of memory" in kinds
    found.seen += f"; the cause is {'named' if 'out of memory' in kinds else 'not named'}"
    return found


def asked_in_a_step(bed: Bed) -> Outcome:
    """SIGTERM to process 1 at a drawn step."""
    return _asked(bed, [signal.SIGTERM])


def asked_again(bed: Bed) -> Outcome:
    """SIGTERM, and while the job drains SIGTERM and SIGINT again."""
    return _asked(bed, [signal.SIGTERM, signal.SIGTERM, signal.SIGINT])


def asked_with_workers(bed: Bed) -> Outcome:
    """SIGTERM to every process of the job at once, the helpers of the data included, as `kill -TERM -PGID` does."""
    return _asked(bed, [signal.SIGTERM], everywhere=True)


def _asked(bed: Bed, signals: Sequence[signal.Signals], *, everywhere: bool = False) -> Outcome:
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    job = bed.start()
    job.until(lambda: last_step(job) >= at)
    begun = time.time()
    for number in signals:
        targets = all_below(job.process.pid) if everywhere else [job.process.pid]
        kill(targets, number)
        time.sleep(0.1)
    return _drained(bed, job, calm, begun, f"{len(signals)} signals at step {at}", expected=0)


def _drained(bed: Bed, job: Job, calm: object, begun: float, proof: str, expected: int) -> Outcome:
    """Wait for a job that was asked to stop, continue it, and judge what was lost."""
    code = job.wait()
    stopped, reached = time.time() - begun, last_step(job)
    if code == 0:
        raise NoFaultError("the job was done before it was asked to stop")
    again = bed.start()
    found = judged(bed, again, calm, again.wait(), reached, stopped, proof, most=expected)
    right = bed.plain or code == CODES["drained"] or expected > 0
    found.held = found.held and right
    found.seen = f"ended with code {code} after {stopped:.1f} s, {found.seen}"
    return found


def asked_in_a_save(bed: Bed) -> Outcome:
    """SIGTERM while a save is being written, which is slow; for odd seeds beside training."""
    calm = bed.calm()
    job = bed.start(fault={"fsync_seconds": 0.4}, keys=_beside(bed))
    job.until(lambda: last_step(job) >= INTERVAL and _saving(job))
    begun, there = kill([job.process.pid], signal.SIGTERM), _saving(job)
    return _drained(bed, job, calm, begun, f"{there} was being written", expected=0)


def _beside(bed: Bed) -> tuple[str]:
    """The key with which saves of odd seeds are written beside training."""
    return (f"checkpoint.asynchronous={str(bed.seed % 2 == 1).lower()}",)


def _saving(job: Job) -> str:
    """The directory of a save that is not committed, or nothing."""
    steps = job.run / "checkpoints"
    for path in sorted(steps.glob("step-*.tmp")) + sorted(steps.glob("step-????????")):
        whole = (path / ".metadata").exists() or (path / "MANIFEST.json").exists()
        if path.suffix == ".tmp" or not whole:
            return path.name
    return ""


def grace_too_short(bed: Bed) -> Outcome:
    """SIGTERM, then SIGKILL for all processes before the save can be written."""
    calm = bed.calm()
    job = bed.start(fault={"fsync_seconds": 3})
    job.until(lambda: last_step(job) >= INTERVAL)
    job.until(lambda: bed.proof_file().exists())
    begun = kill([job.process.pid], signal.SIGTERM)
    time.sleep(1)
    there = _saving(job)
    kill(all_below(job.process.pid))
    job.process.wait(30)
    if not there:
        raise NoFaultError("no save was being written")
    reached = last_step(job)
    again = bed.start()
    found = judged(bed, again, calm, again.wait(), reached, 0.0, f"{there} was cut off {time.time() - begun:.0f} s")
    found.proof, found.seconds = f"{there} was being written when everything was killed", None
    return found


def all_below(pid: int) -> list[int]:
    """A process and all its descendants, the youngest last."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(word) for word in children.read_text().split()] if children.exists() else []
    return [pid, *(each for child in below for each in all_below(child))]


def agent_killed(bed: Bed) -> Outcome:
    """SIGKILL of torchrun: what is left of its ranks, and what is lost."""
    return _owner_killed(bed, lambda job: job.agents()[0])


def process_1_killed(bed: Bed) -> Outcome:
    """SIGKILL of the first process of the pod."""
    return _owner_killed(bed, lambda job: job.process.pid)


def _owner_killed(bed: Bed, owner: Callable[[Job], int]) -> Outcome:
    """Kill the process that owns the ranks; the control trains on, so that it does not end by itself."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    job = bed.start(steps=LONG if bed.plain else STEPS)
    job.until(lambda: last_step(job) >= at)
    ranks, victim = job.workers(), owner(job)
    struck = kill([victim])
    left = ended(ranks)
    gone, reached = time.time() - struck, last_step(job)
    if left:
        kill(left)
        return Outcome(False, f"process {victim} ended", f"{len(left)} ranks still ran after {gone:.0f} s")
    job.process.wait(60)
    again = bed.start()
    found = judged(bed, again, calm, again.wait(), reached, 0.0, f"process {victim} ended at step {reached}")
    found.seen, found.seconds = f"no rank was left after {gone:.1f} s; {found.seen}", None
    return found


def rank_stopped(bed: Bed) -> Outcome:
    """SIGSTOP of rank 1, which stands for a hung device."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    job = _guarded(bed)
    job.until(lambda: last_step(job) >= at)
    before = job.workers()
    struck = kill(before[1:2], signal.SIGSTOP)
    return _hung(bed, job, calm, before, struck, f"process {before[1]} was stopped at step {last_step(job)}")


def rank_spins(bed: Bed) -> Outcome:
    """Rank 1 computes for ever before a collective."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    job = _guarded(bed, {"what": "spin", "rank": 1, "step": at})
    job.until(lambda: bed.proof_file().exists())
    return _hung(bed, job, calm, job.workers(), bed.proof()["time"], bed.proof()["what"] + ": it spins")


def collectives_differ(bed: Bed) -> Outcome:
    """Rank 1 takes part in a collective that the other rank does not call."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    job = _guarded(bed, {"what": "mismatch", "rank": 1, "step": at})
    job.until(lambda: bed.proof_file().exists())
    before = job.workers()
    return _hung(bed, job, calm, before, bed.proof()["time"], bed.proof()["what"] + ": another collective", True)


def _guarded(bed: Bed, fault: dict[str, object] | None = None) -> Job:
    """A job with a short limit for hangs; the control gets a short time-out of its collectives."""
    limits: dict[str, Any] = {"TRAINYARD_HANG_SECONDS": str(HANG_SECONDS)}
    return bed.start(fault=fault, words=(f"--timeout={GLOO_SECONDS}",), **limits)


def _hung(
    bed: Bed, job: Job, calm: object, before: list[int], struck: float, proof: str, any_kind: bool = False
) -> Outcome:
    """Wait until the rank is named, and the group continues."""
    reached = last_step(job)
    seconds = continued(job, before, struck)
    if seconds is None:
        return Outcome(False, proof, f"no further step in 150 s; code {job.process.poll()}")
    code = job.wait()
    found = judged(bed, job, calm, code, reached, seconds, proof)
    records = sorted((one for one in job.failures() if one["time"] >= struck - 1), key=lambda one: one["time"])
    named = [one for one in records if one["rank"] == 1 and (any_kind or one["class"] == "hang")]
    if named:
        after = named[0]["time"] - struck
        found.seen = f"rank 1 named as {named[0]['class']} after {after:.1f} s; {found.seen}"
    else:
        found.seen = f"no rank named; {found.seen}"
    found.held = found.held and bool(named)
    return found


def two_on_one_directory(bed: Bed) -> Outcome:
    """Two jobs train in one run directory at the same time."""
    calm = bed.calm()
    first, second = bed.start(), bed.start()
    codes = [first.wait(), second.wait()]
    again = bed.start(steps=STEPS)
    code, same = again.wait(), course(again).weights == getattr(calm, "weights", None)
    seen = f"codes {codes[0]} and {codes[1]}, then {code}; the weights {'are bitwise equal' if same else 'differ'}"
    return Outcome(code == 0 and same, f"processes {first.process.pid} and {second.process.pid}", seen)


def clock_jumps(bed: Bed) -> Outcome:
    """The clock of all ranks jumps by an hour during a run, forwards or, for odd seeds, backwards."""
    library = _faketime()
    calm, clock = bed.calm(), bed.place / "clock"
    clock.write_text("+0")
    hours = -1 if bed.seed % 2 else 1
    variables: dict[str, Any] = {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "TRAINYARD_HANG_SECONDS": "60",
    }  # fmt: skip
    job = bed.start(**variables)
    job.until(lambda: last_step(job) >= 12)
    reached, before = last_step(job), job.workers()
    clock.write_text(f"{hours * 3600:+d}")
    code = job.wait()
    times = [record["time"] for record in job.records()]
    jumped = max(abs(b - a) for a, b in itertools.pairwise(times))
    if jumped < 3000:
        raise NoFaultError(f"the clock of the ranks did not jump: {jumped:.0f} s")
    same = course(job) == calm
    seen = f"{'no' if resumed_from(job) == 0 else 'a'} restart, losses and weights {'are equal' if same else 'differ'}"
    found = Outcome(code == 0 and same, f"two steps are {jumped:.0f} s apart, ranks {before}", seen, 0)
    found.held = found.held and reached >= 12
    return found


def _faketime() -> Path:
    """The library of the package libfaketime; Debian's (0.9.10) breaks Python's time.sleep."""
    python = venv.python(LOCK)
    if python is None:
        raise NotTriedError("libfaketime is not installed: python -m tests.parts.venv tests/faults/requirements.lock")
    return next(python.parents[1].glob("lib/*/site-packages/libfaketime/vendor/libfaketime/src/libfaketime.so.1"))


def not_finite(bed: Bed) -> Outcome:
    """The gradients of rank 1 become NaN at step 13."""
    job = bed.start(fault={"what": "nan", "rank": 1, "step": 13}, keys=("train.on_nan=rollback:1",))
    code = job.wait()
    proof = bed.proof()["what"]
    losses = [record["loss"] for record in job.records()]
    finite = all(abs(loss) < 1e9 for loss in losses[-5:])
    skipped = job.run / "skipped.jsonl"
    told = "rolled back once" if skipped.exists() else "nothing noticed it"
    seen = f"code {code}, {told}, the last losses are {'finite' if finite else 'NaN'}"
    return Outcome(code == 0 and finite and skipped.exists(), proof, seen)


def slow_storage(bed: Bed) -> Outcome:
    """Each fsync takes 1.5 s, which makes a save longer than the interval."""
    calm = bed.calm(FEW)
    job = bed.start(steps=FEW, fault={"fsync_seconds": 1.5}, keys=("checkpoint.asynchronous=true",))
    most = 0
    while job.process.poll() is None:
        most = max(most, len(list((job.run / "checkpoints").glob("step-*.tmp"))))
        time.sleep(0.05)
    proof = bed.proof()["what"]
    same, times = course(job) == calm, [record["time"] for record in job.records()]
    pause = max(later - earlier for earlier, later in itertools.pairwise(times))
    told = f"at most {most} save in flight, " if not bed.plain else ""
    seen = f"{told}at most {pause:.2f} s between two steps, the course is {'bitwise the same' if same else 'another'}"
    return Outcome(job.process.returncode == 0 and same and (bed.plain or most == 1), proof, seen, 0)


def broken_storage(bed: Bed) -> Outcome:
    """An fsync of rank 1 fails with EIO in the first save, which for odd seeds is written beside training."""
    calm = bed.calm()
    job = bed.start(fault={"fsync_errors": 1, "rank": 1}, restarts=0, keys=_beside(bed))
    code = job.wait()
    proof = bed.proof()["what"]
    if code != 0:
        return Outcome(False, proof, f"code {code} at step {last_step(job)}")
    same = course(job) == calm
    text = (job.run / "logs" / "rank-00000.log").read_text() if not bed.plain else ""
    warned = "was not saved, training continues" in text
    seen = f"{'a warning, ' if warned else ''}training continued, losses and weights {'equal' if same else 'differ'}"
    return Outcome(same and warned, proof, seen, 0)


def killed_before_a_commit(bed: Bed) -> Outcome:
    """SIGKILL of rank 1 while an asynchronous save of a later step is being written."""
    calm = bed.calm(FEW)
    job = bed.start(steps=FEW, fault={"fsync_seconds": 0.5}, keys=("checkpoint.asynchronous=true",))
    job.until(lambda: last_step(job) > 2 * INTERVAL and _saving(job))
    before, there = job.workers(), _saving(job)
    struck = kill(before[1:2])
    reached = last_step(job)
    seconds = continued(job, before, struck)
    code = job.wait()
    return judged(bed, job, calm, code, reached, seconds, f"{there} was being written", most=2 * INTERVAL)
