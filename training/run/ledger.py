"""Where the time of a run went: each moment of each rank is in exactly one category.

It is computed from the files of the run directory. A rank's life is one process of it, from its start to the last
thing that it told. Times are whole milliseconds, so that sums are exact. They follow a machine's uptime if its clock
was set meanwhile.
"""

from __future__ import annotations

import errno
import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Dict

from training.run import failure, heartbeat, phases
from training.run.clock import SET, Steady
from training.run.directory import RunDir, last_records, objects, read_json
from training.run.failure import PERMANENT
from training.run.phases import Change, Reader

UNPAID = ("queued",)  # no machine is held for the rank
CATEGORIES = (
    "queued", "node provisioning", "image pull", "start and import", "data preparation", "compile", "training",
    "evaluation", "checkpoint stall", "lost to redo", "restart and rendezvous", "hung", "idle after the end",
)  # fmt: skip
_OF_PHASE: Mapping[str, str] = {
    "joining": "start and import", "loading": "start and import", "preparing data": "data preparation",
    "compiling": "compile", "training": "training", "evaluating": "evaluation", "saving": "checkpoint stall",
    "sampling": "evaluation", "uploading": "idle after the end", "done": "idle after the end",
}  # fmt: skip
LONGEST_RESTART = 600.0  # seconds: the kubelet waits five minutes at most before it starts a container again
SILENCE, SILENT_STEPS = 60.0, 10  # seconds, and times of a step, without a sign after which a rank hung
EARLIEST, AHEAD = 946_684_800.0, 60.0  # the year 2000, and seconds in the future: a clock that is wrong
_MOST_RANKS, _MOST_LINES = 16_384, 64 << 20  # files, and bytes of each of them

Times = Dict[str, int]  # milliseconds by category


@dataclass(frozen=True)
class Span:
    """A time of one rank in one category, in milliseconds since the epoch."""

    start: int
    end: int
    category: str


@dataclass(frozen=True)
class PodStart:
    """One start of a pod that has ended: a row of attempts.jsonl."""

    ended: float
    kind: str


@dataclass(frozen=True)
class Evidence:
    """What a run left. `marks` are moments of a host that its cluster knows: from each one on it was in a category.

    `stops` are the time and the class of each failure, `kept` the step of the newest checkpoint, `step_times` when
    each step was logged, `missing` the ranks without a phase that can be read. `unsure` is why a number may be wrong.
    """

    ranks: Mapping[int, Sequence[Change]]
    starts: Mapping[str, PodStart] = field(default_factory=dict)
    stops: Sequence[tuple[float, str]] = ()
    kept: int = 0
    step_times: Mapping[int, float] = field(default_factory=dict)
    step_s: float = 0.0
    hosts: Mapping[int, str] = field(default_factory=dict)
    submitted: float | None = None
    marks: Mapping[str, Sequence[tuple[float, str]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    missing: Sequence[int] = ()
    unsure: Sequence[str] = ()


@dataclass(frozen=True)
class Ledger:
    """The account of a run: for each rank its times one after the other, without a gap."""

    ranks: Mapping[int, Sequence[Span]]
    restarts: int  # lives of a rank after its first one, at most
    running: bool  # no end of the last life was recorded
    hosts: Mapping[int, str]
    notes: Sequence[str] = ()
    missing: Sequence[int] = ()  # ranks whose time is not in it
    unsure: Sequence[str] = ()  # why a category may have a wrong time
    moved: Sequence[int] = ()  # ranks whose process has another number since the world shrank

    @property
    def totals(self) -> Times:
        """Rank-milliseconds of each category."""
        found = dict.fromkeys(CATEGORIES, 0)
        for span in itertools.chain.from_iterable(self.ranks.values()):
            found[span.category] += span.end - span.start
        return found

    @property
    def wall(self) -> int:
        """The wall time of all ranks together, from their first to their last moment."""
        return sum(spans[-1].end - spans[0].start for spans in self.ranks.values() if spans)

    @property
    def paid(self) -> int:
        """The time in which a machine was held."""
        return self.wall - sum(self.totals[name] for name in UNPAID)

    @property
    def goodput(self) -> float | None:
        """The share of the time paid for that was training and was kept."""
        return self.totals["training"] / self.paid if self.paid else None

    @property
    def ettr(self) -> float | None:
        return ettr(self.totals["training"], self.wall)

    @property
    def start(self) -> float:
        """When the run began, in seconds since the epoch."""
        return min(spans[0].start for spans in self.ranks.values() if spans) / 1000

    def since(self, moment: float) -> Ledger:
        """Return the account of what happened from `moment` on; it may have no rank."""
        cut = round(moment * 1000)
        ranks = {
            rank: [replace(span, start=max(cut, span.start)) for span in spans if span.end > cut]
            for rank, spans in self.ranks.items()
        }
        return replace(self, ranks={rank: spans for rank, spans in ranks.items() if spans})


def ettr(kept: float, wall: float) -> float | None:
    """The effective training time ratio: training time whose result was kept, of the wall time since submission."""
    return kept / wall if wall else None


def read(run: RunDir, kept: int, now: float | None = None) -> Evidence:
    """Return what the run directory tells. `kept` is the step of its newest checkpoint, 0 without one.

    Lines that are damaged, and times that cannot be, are left out. Raises OSError for a link, which may lead to
    another run.
    """
    for part in (run.heartbeat, run.failures):
        if part.is_symlink():
            raise OSError(errno.ELOOP, "is a link, and may lead to another run", str(part))
    ranks: dict[int, list[Change]] = {}
    hosts, unsure = {}, []
    for path in sorted(run.heartbeat.glob("rank-*.phases.jsonl"))[:_MOST_RANKS]:
        number = path.name[len("rank-") :].partition(".")[0]
        if not number.isdecimal() or int(number) >= _MOST_RANKS:
            continue
        reader = Reader(path)
        ranks[int(number)] = list(_lines(reader))
        if reader.damaged:
            unsure.append(f"rank {int(number)}: {reader.damaged} lines are damaged and are left out")
        beat = heartbeat.read(heartbeat.path_of(run.heartbeat, int(number)))
        if beat is not None and ranks[int(number)]:
            hosts[int(number)] = beat.host
            ranks[int(number)].append(Change(beat.time, beat.phase, beat.step, beat.attempt, beat.clock))
    rows, logged = (last_records(path, _MOST_LINES) for path in (run.path / "attempts.jsonl", run.metrics))
    stops = [(one.time, one.kind, one.clock) for one in failure.since(run, 0.0)]
    found = _evidence(ranks, hosts, rows, logged, stops, kept, time.time() if now is None else now)
    world = _world(run)
    if world is None:
        unsure.append("run.json cannot be read: the number of ranks is unknown")
    expected = range(min(world or 0, _MOST_RANKS)) if ranks else ()
    missing = sorted({*ranks, *expected} - set(found.ranks))
    return replace(found, unsure=[*unsure, *found.unsure], missing=missing)


def _world(run: RunDir) -> int | None:
    """The number of ranks in run.json; 0 for a script's run, which has none, None for a file that cannot be read."""
    try:
        world = read_json(run.run).get("world_size", 0)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None
    return world if type(world) is int else None


def told(answer: Mapping[str, Any]) -> Evidence:
    """Return what `training.remote.run_probe` tells about the first rank: it has no phases of others."""
    beat = (answer.get("heartbeats") or {}).get("rank-00000.json") or {}
    changes = [change for line in answer.get("phases") or () if (change := phases.change(line)) is not None]
    if changes and beat.get("phase") in heartbeat.PHASES and _number(beat.get("time")):
        texts = (str(beat.get(key) or "") for key in ("attempt", "clock"))
        changes.append(Change(beat["time"], beat["phase"], beat.get("step"), *texts))
    rows, logged = (objects(answer.get(key) or ()) for key in ("attempts", "metrics"))
    failures = (one for one in (answer.get("failures") or {}).values() if one is not None)
    stops = [(one.get("time"), str(one.get("class")), str(one.get("clock"))) for one in failures]
    saved = [one["step"] for one in answer.get("checkpoints") or () if one.get("step") is not None]
    hosts = {0: str(beat.get("host") or "")}
    now = answer.get("now") or time.time()
    return _evidence({0: changes}, hosts, rows, logged, stops, max(saved, default=0), now)


def _evidence(
    ranks: Mapping[int, Sequence[Change]], hosts: Mapping[int, str], rows: Sequence[dict[str, Any]],
    logged: Sequence[dict[str, Any]], stops: Sequence[tuple[Any, str, str]], kept: int, now: float,
) -> Evidence:  # fmt: skip
    """Return the rows of a run directory as evidence, without times that cannot be."""
    latest, notes, unsure, good = now + AHEAD, [], [], {}
    ended = [
        (row["ended"], str(row.get("clock")), str(row.get("id")), str(row.get("class")))
        for row in rows if _number(row.get("ended"))
    ]  # fmt: skip
    stops = [one for one in stops if _number(one[0])]
    changed = ((change.time, change.clock) for changes in ranks.values() for change in changes)
    steady = Steady([*changed, *((end[0], end[1]) for end in ended), *((stop[0], stop[2]) for stop in stops)])

    def possible(moment: Any) -> bool:
        return _number(moment) and EARLIEST < moment < latest

    for rank, changes in ranks.items():
        counted = [replace(change, time=steady(change.time, change.clock)) for change in changes]
        good[rank] = [change for change in counted if possible(change.time)]
        if len(good[rank]) < len(changes):
            left = len(changes) - len(good[rank])
            unsure.append(f"rank {rank}: {left} lines have an impossible time and are left out")
    ends = {name: PodStart(steady(moment, seen), kind) for moment, seen, name, kind in ended}
    moved = [(steady(moment, seen), kind) for moment, kind, seen in stops]
    if steady.set_by:
        notes.append(f"a machine's clock was set by {steady.set_by:,.0f} s: times before that follow its uptime")
    steps = [row for row in logged if possible(row.get("time"))]
    times = [row["step_s"] for row in steps if _number(row.get("step_s"))]
    return Evidence(
        ranks={rank: changes for rank, changes in good.items() if changes},
        starts={name: end for name, end in ends.items() if possible(end.ended)},
        stops=[one for one in moved if possible(one[0])],
        kept=kept,
        # The log of the steps does not tell the clock.
        step_times={} if steady.set_by else {row["step"]: row["time"] for row in steps if type(row.get("step")) is int},
        step_s=statistics.median(times) if times else 0.0,
        hosts=hosts,
        notes=notes,
        unsure=unsure,
    )


def of(evidence: Evidence) -> Ledger:
    """Return the account of a run. Without a change of any rank it has no rank."""
    lives: dict[int, list[_Life]] = {}
    notes, unsure = list(evidence.notes), list(evidence.unsure)
    for rank, changes in evidence.ranks.items():
        lives[rank], back = _lives(changes)
        if back >= SET:
            unsure.append(f"rank {rank}: the clock went back by {back:.0f} s, and no uptime tells how long that took")
    moved = _moved(lives)
    first = min((found[0].begin for found in lives.values()), default=0.0)
    start = min(first, evidence.submitted or first)
    ranks = {
        rank: list(_joined(_spans_of(evidence, rank, found, start, rank in moved))) for rank, found in lives.items()
    }
    last = [found[-1] for rank, found in lives.items() if rank not in moved]
    running = any(life.attempt not in evidence.starts and life.sign.phase != "done" for life in last)
    if running and last:
        notes.append("no end is recorded for the last start, so the account ends with the last heartbeat")
    return Ledger(
        ranks={rank: spans for rank, spans in ranks.items() if spans},
        restarts=max((len(found) - 1 for found in lives.values()), default=0),
        running=running,
        hosts=evidence.hosts,
        notes=notes,
        missing=evidence.missing,
        unsure=unsure,
        moved=moved,
    )


def _moved(lives: Mapping[int, Sequence[_Life]]) -> list[int]:
    """Return the ranks whose last pod continued as another rank: the world shrank, and ranks have new numbers."""
    begun: dict[str, float] = {}
    for life in itertools.chain.from_iterable(lives.values()):
        begun[life.attempt] = max(begun.get(life.attempt, -math.inf), life.begin)
    return [rank for rank, found in lives.items() if begun[found[-1].attempt] > found[-1].sign.time]


@dataclass(frozen=True)
class _Life:
    """One process of a rank. The last of its changes is its last sign."""

    changes: Sequence[Change]

    @property
    def begin(self) -> float:
        return self.changes[0].time

    @property
    def sign(self) -> Change:
        return self.changes[-1]

    @property
    def attempt(self) -> str:
        return self.changes[0].attempt

    @property
    def first_step(self) -> int | None:
        """The step that it continued from."""
        return next((change.step for change in self.changes if change.step is not None), None)


def _lines(reader: Reader) -> Iterator[Change]:
    try:
        for _ in range(_MOST_LINES >> 20):
            before = reader.offset
            yield from reader.new()
            if reader.offset == before:
                return
    except OSError:
        return


def _lives(changes: Sequence[Change]) -> tuple[list[_Life], float]:
    """Return the lives of a rank, with times that never go back, and the seconds by which its clock did at most."""
    found: list[list[Change]] = []
    latest, back = changes[0].time, 0.0
    for change in changes:
        last = found[-1][-1] if found else None
        if last is not None and change.time < latest and change.phase == "joining" and change.attempt != last.attempt:
            continue  # the pod of this rank now started while it was another rank's
        begins = change.phase == "joining" and last is not None and last.phase != "joining"
        back, latest = max(back, latest - change.time), max(latest, change.time)
        if last is None or begins or last.attempt != change.attempt:
            found.append([])
        found[-1].append(replace(change, time=latest))
    return [_Life(life) for life in found], back


def _spans_of(evidence: Evidence, rank: int, lives: Sequence[_Life], start: float, moved: bool) -> Iterator[Span]:
    """Yield a rank's times: the wait for its first process, then each life and what follows it."""
    marks = evidence.marks.get(evidence.hosts.get(rank, ""), ())
    yield from _marked(start, lives[0].begin, "queued", marks)
    low = _continued(evidence, lives)
    for index, life in enumerate(lives):
        later = lives[index + 1] if index + 1 < len(lives) else None
        leaves_pod = later is None or later.attempt != life.attempt
        pod = evidence.starts.get(life.attempt) if leaves_pod and not (moved and later is None) else None
        bound = later.begin if later else max(pod.ended, life.sign.time) if pod else life.sign.time
        stop, hung = _stopped(evidence, life, bound)
        yield from _lived(evidence, life, stop, low[index], again=index > 0)
        yield _span(stop, hung, "hung")
        if life.sign.phase == "done" or later is None:
            left = min(bound, max(hung, pod.ended)) if pod else bound
            yield _span(hung, left, "idle after the end")
        else:
            left = min(bound, max(hung, pod.ended)) if pod else hung
            yield _span(hung, left, "restart and rendezvous")
        if later is not None:
            yield from _marked(left, bound, _gap(left, bound, pod), marks)


def _gap(left: float, bound: float, pod: PodStart | None) -> str:
    """The category of the time between two pods: the kubelet starts a container again, or nothing is held."""
    ended = pod is not None and (pod.kind in ("done", "drained") or pod.kind in PERMANENT)
    return "queued" if ended or bound - left > LONGEST_RESTART else "restart and rendezvous"


def _stopped(evidence: Evidence, life: _Life, bound: float) -> tuple[float, float]:
    """When the rank stopped to work, and when that was noticed if it hung: else the same moment."""
    sign = life.sign
    told = [one for one in evidence.stops if life.begin <= one[0] <= bound]
    if sign.phase == "done" or not told:
        return sign.time, sign.time
    moment, kind = min(told)
    silent = sign.phase == "training" and moment - sign.time > max(SILENCE, SILENT_STEPS * evidence.step_s)
    if kind == "hang" or silent:
        return sign.time, max(sign.time, moment)
    return max(sign.time, moment), max(sign.time, moment)


def _lived(evidence: Evidence, life: _Life, stop: float, low: float, again: bool) -> Iterator[Span]:
    """Yield a life by its phases. What it trained after the step `low` was done again, or is gone."""
    cut = _reached(evidence, life, low, stop)
    ends = [*(change.time for change in life.changes[1:]), stop]
    for change, end in zip(life.changes, ends):
        category = _OF_PHASE[change.phase]
        if category == "start and import" and again:
            category = "restart and rendezvous"
        if category == "training":
            kept = min(max(cut, change.time), end)
            yield _span(change.time, kept, category)
            yield _span(kept, end, "lost to redo")
        else:
            yield _span(change.time, end, category)


def _continued(evidence: Evidence, lives: Sequence[_Life]) -> list[float]:
    """For each life the earliest step that a later one continued from: what it trained after it was lost."""
    last = lives[-1]
    pod = evidence.starts.get(last.attempt)
    low = math.inf if pod is None or pod.kind == "done" or last.sign.phase == "done" else float(evidence.kept)
    found = []
    for life in reversed(lives):
        found.append(low)
        step = life.first_step
        low = low if step is None else min(low, step)
    return found[::-1]


def _reached(evidence: Evidence, life: _Life, low: float, stop: float) -> float:
    """When a life had done the step `low`: by its phases, else by the log of the steps, else in proportion."""
    known = [(change.step, change.time) for change in life.changes if change.step is not None]
    if not known or known[-1][0] < low:
        return stop
    if known[0][0] >= low:
        return life.begin
    step, moment = next(one for one in known if one[0] >= low)
    if step == low:
        return moment
    before, since = max(one for one in known if one[0] < low)
    logged = evidence.step_times.get(int(low))
    if logged is not None and since <= logged <= moment:
        return logged
    return since + (moment - since) * (low - before) / (step - before)


def _marked(start: float, end: float, category: str, marks: Iterable[tuple[float, str]]) -> Iterator[Span]:
    """Yield a time outside of a process, divided at what the cluster tells about it; of one second the last counts."""
    for moment, following in sorted((one for one in marks if start <= one[0] <= end), key=lambda one: one[0]):
        yield _span(start, moment, category)
        start, category = moment, following
    yield _span(start, end, category)


def _span(start: float, end: float, category: str) -> Span:
    return Span(round(start * 1000), round(end * 1000), category)


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans without empty ones; those of one category that follow each other are one."""
    whole: Span | None = None
    for span in (span for span in spans if span.end > span.start):
        if whole is not None and whole.category == span.category:
            whole = replace(whole, end=span.end)
            continue
        if whole is not None:
            yield whole
        whole = span
    if whole is not None:
        yield whole


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63
