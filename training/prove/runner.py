"""Carries out the starts of a plan, one after the other, and writes what it saw of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

from . import view as views
from .faults import NoFault, chosen
from .plan import Fault, Plan, Start
from .records import SIGNALLED, End, Outcome, ranks, read_outcome, write_outcome
from .view import View, guard
from .watch import Log, Watch

TICK = 0.05
LOOK_AT_DISK = 1.0
SAY = 1.0
# Each of these waits is longer on a machine that is slow, as the time to the first step of the start shows.
KILL_WAIT = 3.0  # from the first rank that the fault hit to the end of the others
DONE_WAIT = 3.0  # from the last wished step of all ranks to the end of a launcher that would start them again
ENDING = 30.0  # torchrun gives the ranks so long to end on SIGTERM
LEFT_OVER = 1.0  # processes may live so long after process 1 of their node
PROBE = Path(__file__).resolve().parent / "path"
ACCELERATORS = ("nvidia[0-9]*", "neuron[0-9]*", "kfd")  # in /dev: two starts at once would share their memory

Say = Callable[["dict[str, Any]"], None]  # Python 3.8 in an image reads this line too


@dataclass
class Setting:
    """What all starts of a plan share. `stop` ends those that run."""

    plan: Plan
    out: Path
    say: Say
    place: Any
    probe: Path
    stop: threading.Event = field(default_factory=threading.Event)


def run(plan: Plan, out: Path, say: Say, place: Any = views, probe: Path = PROBE) -> None:
    """Carry out all starts. Whatever ends this function also ends every process that it started.

    `place` begins and removes the views of the starts: on this machine the module `view`, in a cluster its pods.
    `probe` is the directory that loads the probe.
    """
    try:
        _run(Setting(plan, out, say, place, probe))
    finally:
        for start in plan.starts:
            place.remove(out / start.name)


def _run(given: Setting) -> None:
    plan, out = given.plan, given.out
    done: dict[str, Outcome] = {}

    def carried_out(start: Start) -> Outcome:
        reason = _why_not(plan, start, done)
        if not reason:
            try:
                fault = chosen(start, out / "whole", plan.steps) if start.fault else None
                return Trial(given, start, fault).run()
            except NoFault as problem:
                reason = str(problem)
        given.say({"start": start.name, "state": "skipped", "note": reason})
        return Outcome(start.name, "skipped", reason)

    def finished(start: Start) -> Outcome:
        (out / start.name).mkdir()
        outcome = carried_out(start)
        write_outcome(out / start.name, outcome)
        return outcome

    beside: list[Future[Outcome]] = []
    with ThreadPoolExecutor(1) as one_more:
        try:
            for number, start in enumerate(plan.starts):
                if (out / start.name / "outcome.json").exists():  # an earlier call of the runner carried it out
                    done[start.name] = read_outcome(out / start.name)
                elif _runs_beside(start, out, done.get("whole")):
                    beside.append(one_more.submit(finished, start))
                else:
                    done[start.name] = finished(start)
                needed = {one.source for one in plan.starts[number + 1 :]}
                for name in set(done) - needed:
                    given.place.remove(out / name)
            for future in beside:
                future.result()
        except BaseException:
            given.stop.set()
            raise


def _runs_beside(start: Start, out: Path, whole: Outcome | None) -> bool:
    """Return whether a start runs while the next ones do: a blocked rank waits, and uses nothing but memory.

    Its processes need a network of their own, memory for two starts at once, and no device that both would use.
    """
    if start.fault is None or start.fault.kind != "hang" or whole is None or whole.view != "overlay" or whole.network:
        return False
    if any(found for name in ACCELERATORS for found in Path("/dev").glob(name)):
        return False
    used = [event.peak_memory for events in ranks(out / "whole").values() for event in events if isinstance(event, End)]
    return 2 * sum(used) < _free_memory()


def _free_memory() -> int:
    """Return the bytes that new processes may use, 0 where the kernel does not tell them."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def _why_not(plan: Plan, start: Start, done: dict[str, Outcome]) -> str:
    """Return why a start is not carried out, or an empty text."""
    whole = done.get("whole")
    if start.name != "whole" and whole is not None and whole.ended_by not in ("itself",):
        return f"the uninterrupted run did not end by itself: {whole.reason or whole.ended_by}"
    if start.source is None:
        return ""
    source = done.get(start.source)
    if source is None or source.ended_by == "skipped":
        return source.reason if source else f"the start `{start.source}` did not happen"
    if source.ended_by != "fault":
        return f"the start `{start.source}` did not reach its fault"
    return ""


class Trial:
    """One start of the command on all nodes."""

    def __init__(self, given: Setting, start: Start, fault: Fault | None) -> None:
        self.plan, self.start, self.fault, self.out = given.plan, start, fault, given.out
        self._place, self._probe, self._stop, self._say = given.place, given.probe, given.stop, given.say
        self.directory = given.out / start.name
        self.watch = Watch(self.directory)
        self.outcome = Outcome(start.name, "itself", network=given.plan.network)
        if fault is not None:
            self.outcome.fault_step, self.outcome.fault_save = fault.step, fault.save
        self._hit: float | None = None  # when the fault was seen
        self._terminated: float | None = None
        self._done: float | None = None  # when the probe had ended all ranks
        self._first = 0.0  # seconds to the first step
        self._said = self._looked = 0.0

    def run(self) -> Outcome:
        """Start the command, wait for its end, and return what was seen."""
        self._report("starting")
        begin = time.monotonic()
        log = Log(self.directory / "log")
        try:
            view = self._place.begin(self.plan, self.start, self.out, self._commands(), log.descriptor)
        except OSError as problem:
            log.close()
            return self._not_started(problem)
        try:
            self.outcome.view, self.outcome.network = view.kind, view.network
            self._wait(view, begin)
            self._end(view)
        finally:
            view.kill()
            log.close()
        self.outcome.seconds = time.monotonic() - begin
        self.outcome.files = view.files()
        self._refused()
        self._report("ended")
        return self.outcome

    def _commands(self) -> list[tuple[list[str], dict[str, str]]]:
        rows = []
        for node in range(self.plan.nodes):
            instructions = self.directory / f"probe-{node}.json"
            instructions.write_text(json.dumps(self._instructions(node)), encoding="utf-8")
            rows.append((self.start.command, self._variables(node, instructions)))
        return rows

    def _instructions(self, node: int) -> dict[str, Any]:
        return {
            "name": self.start.name,
            "out": str(self.directory),
            "steps": self.plan.steps,
            "node": node,
            "fault": asdict(self.fault) if self.fault else None,
            "stand_in": self.plan.stand_in,
            "kept": self.plan.keep,
            "restart": self.start.source is not None,
        }

    def _variables(self, node: int, instructions: Path) -> dict[str, str]:
        given = {**self.plan.variables, **self.start.variables}
        if self.plan.pods:  # each pod adds its own
            return {**given, "PYTHONPATH": str(self._probe), "TRAINYARD_PROVE": str(instructions)}
        if node == 0:
            self._port = given.get("MASTER_PORT") or str(free_port())
        own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port, **given}
        if self.plan.nodes > 1:
            own.update(NNODES=str(self.plan.nodes), NODE_RANK=str(node), PET_NNODES=str(self.plan.nodes))
            own.update(PET_NODE_RANK=str(node), PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=self._port)
        path = os.pathsep.join(filter(None, [str(self._probe), given.get("PYTHONPATH", "")]))
        return {**own, "PYTHONPATH": path, "TRAINYARD_PROVE": str(instructions)}

    def _wait(self, view: View, begin: float) -> None:
        """Return when each node's process 1 has ended, or when this start has to be ended."""
        while len(view.codes()) < self.plan.nodes:
            now = time.monotonic()
            self.watch.look()
            if self.watch.step and not self._first:
                self._first = now - begin
            if self._must_end(view, now, begin):
                return
            if now - self._said >= SAY:
                self._report("running")
            time.sleep(TICK)
        self.watch.look()
        if self.watch.hit and self._hit is None:
            self._hit = time.monotonic()

    def _must_end(self, view: View, now: float, begin: float) -> bool:
        if self._stop.is_set():
            return True
        if now - begin > self.plan.timeout:
            return self._by("timeout", f"it did not end within {self.plan.timeout:.0f} s")
        if now - self._looked >= LOOK_AT_DISK:
            self._looked = now
            if view.written() + self.watch.bytes > self.plan.disk:
                return self._by("disk", f"it wrote more than {self.plan.disk / 2**30:.1f} GiB")
        if self.watch.done and self.watch.done == self.watch.ranks:
            self._done = self._done or now
            absent = len(self.watch.done) < self.watch.world  # a rank that does not wait for the others may be late
            if now - self._done > self._patience(DONE_WAIT) + (self._first if absent else 0.0):
                return True
        if not self.watch.hit or self.fault is None:
            return False
        if self._hit is None:
            self._hit = now
        if self.fault.kind == "torn-save":
            return self._by("fault", "")
        if self.fault.kind == "kill":
            done = len(self.watch.hit) == len(self.watch.ranks) or now - self._hit > self._patience(KILL_WAIT)
            return done and self._by("fault", "")
        if self.fault.kind == "terminate":
            return self._terminate(view, now)
        limit = max(self.plan.hang_timeout, ENDING + self._first)
        return now - self._hit > limit and self._by("timeout", f"it did not end within {limit:.0f} s")

    def _patience(self, seconds: float) -> float:
        return max(seconds, self._first / 2)

    def _terminate(self, view: View, now: float) -> bool:
        if self._terminated is None:
            self._terminated = self._hit = now
            view.signal(signal.SIGTERM)
            (self.directory / SIGNALLED).touch()
        late = now - self._terminated > self.plan.grace
        return late and self._by("timeout", f"it did not end within {self.plan.grace:.0f} s of SIGTERM")

    def _by(self, what: str, reason: str) -> bool:
        self.outcome.ended_by, self.outcome.reason = what, reason
        return True

    def _end(self, view: View) -> None:
        if self._hit is not None:
            self.outcome.fault_seconds = time.monotonic() - self._hit
        if self.fault is not None and self.fault.kind in ("kill", "torn-save") and self.watch.hit:
            self.outcome.ended_by = "fault"
        if self.outcome.ended_by == "itself" and self._done is None:
            deadline = time.monotonic() + LEFT_OVER
            while (left := view.left()) and time.monotonic() < deadline:
                time.sleep(TICK)
            self.outcome.left_over = sorted({_name(pid) for pid in left} - {""})
        view.kill()
        codes = view.codes()
        self.outcome.exit_codes = [codes.get(node, -signal.SIGKILL) for node in range(self.plan.nodes)]
        self.outcome.exit_code = self.outcome.exit_codes[0]

    def _refused(self) -> None:
        """Find out whether the guard of a copied view ended the start."""
        if self.outcome.view == "copy":
            text = (self.directory / "log").read_text(encoding="utf-8", errors="replace")
            at = text.find(guard.MARK)
            if at >= 0:
                place = text[at + len(guard.MARK) :].split("\n", 1)[0]
                self._by("outside", f"it wanted to write {place}, outside of the copy")

    def _not_started(self, problem: OSError) -> Outcome:
        missing = isinstance(problem, FileNotFoundError)
        self.outcome.exit_code = 127 if missing else 126
        self.outcome.reason = str(problem.strerror)
        self._report("ended")
        return self.outcome

    def _report(self, state: str) -> None:
        self._said = time.monotonic()
        row = {"start": self.start.name, "state": state, "step": self.watch.step, "of": self.plan.steps}
        if state == "ended":
            row.update(seconds=round(self.outcome.seconds, 1), note=self.outcome.reason)
        self._say(row)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()[:64]
    return ""
