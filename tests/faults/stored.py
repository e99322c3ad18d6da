"""Faults of storage: saves that are killed, damaged files, full and read-only disks, files that are seen late."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as library

from tests.faults import dcp
from tests.faults.bed import Bed, NoFaultError, NotTriedError, Outcome
from tests.faults.processes import broken_storage
from tests.training.checkpoint import beside
from tests.training.checkpoint.serving import Ranks, rank_server, results
from tests.training.checkpoint.sweep import Swept, sweep, sweep_in_flight
from tests.training.checkpoint.values import assert_holds, snapshot, whole
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import BAD
from training.checkpoint.store import Store

NEW, OLD = "step-00000002", "step-00000001"
FLIPS = 60  # bits for each seed
THIRD = 3  # seeds of the sweeps in flight: each tries its share of the points


def _put(store: Store, step: int, rows: int = 0) -> None:
    """Save the test values of a step, with `rows` KiB more in a tensor of its own."""
    tensors = whole(step) | ({"more": torch.zeros(rows, 256)} if rows else {})
    store.save(snapshot(step, tensors))


def _two_steps(bed: Bed, call: Ranks) -> Path:
    """Steps 1 and 2 of two ranks."""
    directory = bed.place / "two-steps"
    results(call("save", 2, directory=directory, steps=[1, 2]))
    return directory


def _copier(source: Path, target: Path, change: Callable[[Path], None] = lambda path: None) -> Callable[[], Path]:
    def copy() -> Path:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        change(target)
        return target

    return copy


def killed_everywhere(bed: Bed) -> Outcome:
    """SIGKILL of each rank at each call of a save that changes the file system; what was not synced is lost.

    Training waits for the save, or does later steps meanwhile. In flight a seed tries a third of the points, and a
    ninth where the save goes to the nodes as well.
    """
    with rank_server() as call:
        copy = _copier(_two_steps(bed, call), bed.place / "run")
        waiting = [sweep(call, copy, world, 3) for world in (1, 2, 3)]
        in_flight = [
            sweep_in_flight(call, _below(bed, str(world)), world, every=THIRD, first=bed.seed) for world in (1, 2, 3)
        ]
        every = THIRD * THIRD
        in_flight.append(sweep_in_flight(call, _below(bed, "nodes"), 2, nodes=True, every=every, first=bed.seed))
    return _swept(waiting, {2, 3}, in_flight)


def killed_while_saving_again(bed: Bed) -> Outcome:
    """The same while a step whose files are damaged is saved again."""

    def damage(directory: Path) -> None:
        (directory / NEW / "rank-00000.json").unlink()

    with rank_server() as call:
        copy = _copier(_two_steps(bed, call), bed.place / "run", damage)
        waiting = [sweep(call, copy, world, 2, damaged=True) for world in (1, 2)]
        in_flight = [
            sweep_in_flight(call, _below(bed, str(world)), world, damaged=True, every=THIRD, first=bed.seed)
            for world in (1, 2)
        ]
    return _swept(waiting, {1, 2}, in_flight)


def _below(bed: Bed, name: str) -> Path:
    place = bed.place / "in-flight" / name
    place.mkdir(parents=True)
    return place


def _swept(waiting: list[Swept], steps: set[int], in_flight: list[Swept]) -> Outcome:
    """What the points of saves that training waits for showed, and those of saves in flight."""
    found = [set().union(*(one.found for one in many)) for many in (waiting, in_flight)]
    counts = [sum(one.points for one in many) for many in (waiting, in_flight)]
    told = [
        f"{count} points, step {' or '.join(map(str, sorted(one)))}" for count, one in zip(counts, found, strict=True)
    ]
    seen = f"training waits: {told[0]}, whole; in flight: {told[1]}, whole, then bitwise the same course"
    proof = "each victim ended by signal 9; in flight its training was at a later step"
    right = found == [steps, {beside.IN_FLIGHT - beside.EVERY, beside.IN_FLIGHT}]
    return Outcome(right, proof, seen, max(one.lost for one in in_flight), points=sum(counts))


def dcp_killed_everywhere(bed: Bed) -> Outcome:
    """torch.distributed.checkpoint into a new directory for each step."""
    return _dcp_sweep(bed, first=[1, 2], step=3, name="")


def dcp_killed_while_saving_again(bed: Bed) -> Outcome:
    """torch.distributed.checkpoint into one directory, over what is there."""
    return _dcp_sweep(bed, first=[2], step=3, name=dcp.LATEST)


def _dcp_sweep(bed: Bed, first: list[int], step: int, name: str) -> Outcome:
    module, world = "tests.faults.dcp", 2
    mixed = failed = points = 0
    with rank_server() as call:
        source = bed.place / "source"
        results(call(f"{module}:save", world, directory=source, steps=first, name=name))
        copy = _copier(source, bed.place / "run")
        how = {"step": step, "name": name}
        passed = results(call(f"{module}:save_until_killed", world, directory=copy(), victim=0, point=None, **how))
        for victim in range(world):
            for point in range(len(passed[victim])):
                directory = copy()
                killed = call(f"{module}:save_until_killed", world, directory=directory, victim=victim, point=point,
                              **how)  # fmt: skip
                if killed[victim]["status"] != -signal.SIGKILL:
                    raise NoFaultError(f"rank {victim} was not killed at {passed[victim][point]}")
                answers = [one.get("result", {}) for one in call(f"{module}:load", world, directory=directory)]
                points += 1
                failed += any("steps" not in one for one in answers)
                mixed += len({each for one in answers for each in one.get("steps", [])}) > 1
    seen = f"{mixed} of {points} loads gave values of two steps or of none, {failed} failed"
    return Outcome(mixed == failed == 0, "each victim ended by signal 9", seen, points=points)


def flipped_bits(bed: Bed) -> Outcome:
    """One flipped bit at drawn places of every file of the newest step."""
    with rank_server() as call:
        source = _two_steps(bed, call)
    accepted = []
    files = sorted(path.name for path in (source / NEW).iterdir())
    for _ in range(FLIPS):
        directory = _copier(source, bed.place / "run")()
        path = directory / NEW / bed.draw.choice(files)
        place = _flip(path, bed)
        found = Store(directory, log=lambda line: None).latest()
        if found is None or found.step != 1 or not (directory / (NEW + BAD)).is_dir():
            accepted.append(f"{path.name} at {place}")
        else:
            assert_holds(found, 1)
    seen = f"{FLIPS - len(accepted)} refused, and step 1 loaded{': not ' + ', '.join(accepted[:3]) if accepted else ''}"
    return Outcome(not accepted, f"{FLIPS} bits of {len(files)} files changed", seen, points=FLIPS)


def _flip(path: Path, bed: Bed) -> int:
    data = bytearray(path.read_bytes())
    place = bed.draw.randrange(len(data))
    data[place] ^= 1 << bed.draw.randrange(8)
    path.write_bytes(data)
    return place


def dcp_flipped_bits(bed: Bed) -> Outcome:
    """The same in the files of torch.distributed.checkpoint."""
    source = bed.place / "source"
    dcp.save(str(source), [1, 2])
    wrong = refused = 0
    for _ in range(FLIPS):
        directory = _copier(source, bed.place / "run")()
        files = sorted(path for path in (directory / "step-2").iterdir() if path.suffix == ".distcp")
        _flip(bed.draw.choice(files), bed)
        answer = _loaded_by_dcp(directory / "step-2")
        refused += "steps" not in answer
        wrong += answer.get("steps", [2]) != [2]
    seen = f"{wrong} of {FLIPS} loaded silently with a wrong value, {refused} refused, the others hit no value"
    return Outcome(wrong == 0, f"{FLIPS} bits of .distcp files changed", seen, points=FLIPS)


def _loaded_by_dcp(path: Path) -> dict[str, Any]:
    try:
        return dcp.loaded(path)
    except Exception as error:  # noqa: BLE001 - any error of another library is a refusal
        return {"error": f"{type(error).__name__}: {error}"}


def dcp_cut_files(bed: Bed) -> Outcome:
    """A data file of torch.distributed.checkpoint is cut to half; the script falls back as many do."""
    source = bed.place / "source"
    dcp.save(str(source), [1, 2])
    path = next((source / "step-2").glob("*.distcp"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        dcp.load_raw(source / "step-2")
        caught = "no error"
    except Exception as error:  # noqa: BLE001 - what a script's fallback catches
        caught = f"`except Exception` caught {type(error).__name__}"
    except BaseException as error:  # noqa: BLE001 - what it does not catch
        caught = f"{type(error).__name__} passed through `except Exception`, so no older step was tried"
    return Outcome(False, f"{path.name} has half of its bytes", caught)


class _Planted:
    """A pickle of this makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def dcp_pickle(bed: Bed) -> Outcome:
    """A `.metadata` that is a planted pickle."""
    source, mark = bed.place / "source", bed.place / "executed"
    dcp.save(str(source), [1])
    (source / "step-1/.metadata").write_bytes(pickle.dumps(_Planted(mark)))
    with contextlib.suppress(BaseException):
        dcp.loaded(source / "step-1")
    seen = "the planted code was executed" if mark.exists() else "the planted code was not executed"
    return Outcome(not mark.exists(), ".metadata holds other code", seen)


@contextlib.contextmanager
def small_disk(bed: Bed, size: str) -> Iterator[Path]:
    """Yield the mount of a file system of this size."""
    target = bed.place / "disk"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotTriedError(f"no tmpfs can be mounted here ({done.stderr.strip()}): run as root")
    try:
        yield target
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def disk_full(bed: Bed) -> Outcome:
    """A save into a file system with too little space, and one into it when there is space again."""
    with small_disk(bed, "640k") as disk:
        directory = disk / "checkpoints"
        store = Store(directory, log=lambda line: None)
        _put(store, 1)
        filler = disk / "filler"
        filler.write_bytes(b"x" * (400 << 10))
        try:
            _put(store, 2, rows=300)
            raise NoFaultError("the save fitted")
        except CheckpointError as error:
            told = str(error)
        left = sorted(path.name for path in directory.iterdir())
        found = store.latest()
        filler.unlink()
        _put(store, 2, rows=300)
        again = store.steps()
    held_up = left == ["LATEST", OLD] and found is not None and found.step == 1 and again == [1, 2]
    return Outcome(held_up, told.rpartition("checkpoints: ")[2][:60], f"left: {', '.join(left)}; then steps {again}")


def dcp_disk_full(bed: Bed) -> Outcome:
    """The same with torch.distributed.checkpoint."""
    with small_disk(bed, "640k") as disk:
        dcp.save(str(disk), [1])
        before = shutil.disk_usage(disk).free
        try:
            library.save({"x": torch.zeros(400, 1024)}, checkpoint_id=disk / "step-2", no_dist=True)  # type: ignore[attr-defined]
            raise NoFaultError("the save fitted")
        except (NoFaultError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - CheckpointException is one
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
        taken = before - shutil.disk_usage(disk).free
        older = dcp.loaded(disk / "step-1")["steps"]
        seen = f"{taken >> 10} KiB of the failed save stay on the disk; the older step loads as {older}"
    return Outcome(taken < 4096, told[:80], seen)


def read_only(bed: Bed) -> Outcome:
    """The file system becomes read-only between two saves, and writable again later."""
    with small_disk(bed, "4m") as disk:
        store = Store(disk / "checkpoints", log=lambda line: None)
        _put(store, 1)
        _put(store, 2)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        try:
            _put(store, 3)
            raise NoFaultError("the save was written")
        except CheckpointError as error:
            told = str(error)
        told_later: list[str] = []
        found = Store(disk / "checkpoints", log=told_later.append).latest()
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        _put(store, 3)
        again = store.steps()
    held_up = found is not None and found.step == 2 and again == [2, 3]
    seen = f"step {found.step if found else None} was loaded from it; step {again[-1]} was saved afterwards"
    return Outcome(held_up, told[-60:], seen)


def storage_errors(bed: Bed) -> Outcome:
    """EIO in a running job and, for the trainer, a file system that becomes read-only."""
    found = broken_storage(bed)
    if bed.plain:
        return found
    other = read_only(bed)
    proof, seen = f"{found.proof}; {other.proof}", f"{found.seen}; {other.seen}"
    return Outcome(found.held and other.held, proof, seen, found.lost, points=2)


def seen_late(bed: Bed) -> Outcome:
    """Rank 1 of two sees the newest step three seconds after rank 0, as on NFS."""
    with rank_server() as call:
        first, second = _two_views(bed, call)
        hidden = second / NEW
        aside = second.with_name("aside")
        os.rename(hidden, aside)
        timer = threading.Timer(3.0, os.rename, (aside, hidden))
        timer.start()
        began = time.time()
        answers = results(call("load_where", 2, directories=[first, second], wait_s=12))
        timer.join()
    steps = [one["step"] for one in answers]
    right = steps == [2, 2] and all(one["equal"] for one in answers) and (first / NEW).is_dir()
    return Outcome(right, "the directory was renamed away from rank 1", f"ranks loaded steps {steps}",
                   seconds=time.time() - began)  # fmt: skip


def never_seen(bed: Bed) -> Outcome:
    """Rank 1 of two does not see the newest step at all."""
    with rank_server() as call:
        first, second = _two_views(bed, call)
        shutil.rmtree(second / NEW)
        answers = results(call("load_where", 2, directories=[first, second], wait_s=1))
    steps, kept = [one["step"] for one in answers], (first / NEW).is_dir()
    seen = f"ranks loaded steps {steps}; step 2 {'stays' if kept else 'was set aside'} where it is whole"
    right = steps == [1, 1] and all(one["equal"] for one in answers) and kept
    return Outcome(right, "step 2 is not in rank 1's directory", seen)


def _two_views(bed: Bed, call: Ranks) -> tuple[Path, Path]:
    source = _two_steps(bed, call)
    return source, Path(shutil.copytree(source, bed.place / "second" / "two-steps"))


def dcp_never_seen(bed: Bed) -> Outcome:
    """The same with torch.distributed.checkpoint, where each rank looks for the newest step."""
    module = "tests.faults.dcp"
    with rank_server() as call:
        source = bed.place / "first"
        results(call(f"{module}:save", 2, directory=source, steps=[1, 2]))
        second = Path(shutil.copytree(source, bed.place / "second"))
        shutil.rmtree(second / "step-2")
        answers = [one.get("result", {}) for one in call(f"{module}:load_where", 2, directories=[source, second])]
    steps = [one.get("steps", one.get("error")) for one in answers]
    return Outcome(steps[0] == steps[1], "step 2 is not in rank 1's directory", f"ranks loaded the values of {steps}")
