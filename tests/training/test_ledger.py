"""Each moment of a rank is in one category: run directories that are written by hand, each with a known answer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.training.accounts import accounted
from training.run import failure, ledger
from training.run.directory import RunDir, write_json
from training.run.failure import Failure
from training.run.heartbeat import Beat, Heartbeat, changes_of, path_of
from training.run.ledger import CATEGORIES, Ledger, ettr

T0 = 1_750_000_000.0
Line = tuple[float, str, int | None]
# A life that starts, compiles, trains 10 steps of 10 s with a save after step 5, and is silent after 140 s.
LIFE: list[Line] = [
    (0, "joining", None), (10, "joining", None), (12, "preparing data", None), (15, "loading", None),
    (20, "compiling", 0), (40, "training", 1), (80, "saving", 5), (82, "training", 5), (132, "evaluating", 10),
    (140, "training", 10),
]  # fmt: skip
SHARES = {"start and import": 17, "data preparation": 3, "compile": 20, "training": 90, "checkpoint stall": 2,
          "evaluation": 8}  # fmt: skip


def write(
    tmp_path: Path,
    lives: Sequence[tuple[str, Sequence[Line]]],
    ends: Mapping[str, tuple[float, str]] | None = None,
    ranks: int = 2,
    failures: Sequence[tuple[float, str]] = (),
) -> RunDir:
    """Write the lives of ranks by attempt, the ends of the attempts, and failures; times are seconds after T0."""
    run = RunDir(tmp_path / "run")
    run.heartbeat.mkdir(parents=True)
    lines = [(attempt, *line) for attempt, life in lives for line in life]
    for rank in range(ranks):
        rows = ({"time": T0 + at, "phase": what, "step": step, "attempt": name} for name, at, what, step in lines)
        changes_of(run.heartbeat, rank).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        name, at, what, step = lines[-1]
        beat = Beat(rank, what, step, T0 + at, "host", 4242, name, 5, 1.0, 9)  # type: ignore[arg-type]
        write_json(path_of(run.heartbeat, rank), asdict(beat))
    rows = ({"pod": "p", "id": name, "ended": T0 + at, "class": kind} for name, (at, kind) in (ends or {}).items())
    (run.path / "attempts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"pod": "p", "en')
    for at, kind in failures:
        failure.write(Failure(kind, 1, "host", 4242, None, "", "", T0 + at), run)
    return run


def book(run: RunDir, kept: int = 0) -> Ledger:
    return ledger.of(ledger.read(run, kept, now=T0 + 100_000))


def seconds(found: Ledger) -> dict[str, float]:
    """Seconds of each rank, which are the same for all."""
    ranks = {rank: replace(found, ranks={rank: spans}).totals for rank, spans in found.ranks.items()}
    assert all(one == ranks[0] for one in ranks.values())
    return {name: ms / 1000 for name, ms in ranks[0].items() if ms}


def test_a_run_without_failures(tmp_path: Path) -> None:
    run = write(tmp_path, [("a", [*LIFE, (150, "sampling", 10), (153, "done", 10)])], {"a": (155, "done")})
    found = book(run)
    parts = SHARES | {"training": 100.0, "evaluation": 11, "idle after the end": 2}
    assert seconds(found) == parts
    assert accounted(found) == 2 * 155_000
    assert (found.goodput, found.ettr, found.restarts, found.running) == (100 / 155, 100 / 155, 0, False)


def test_what_is_done_again_after_a_kill_is_lost(tmp_path: Path) -> None:
    """The rank dies 5 s after its last sign; the pod starts again after 20 s and continues from step 5."""
    again: list[Line] = [(165, "joining", None), (175, "joining", None), (180, "loading", None),
                         (185, "training", 5), (240, "done", 10)]  # fmt: skip
    run = write(tmp_path, [("a", LIFE), ("b", again)], {"a": (150, "killed"), "b": (241, "done")}, 2, [(145, "killed")])
    assert seconds(book(run)) == SHARES | {
        "training": 40 + 55.0, "lost to redo": 50 + 5.0, "restart and rendezvous": 40, "idle after the end": 1,
    }  # fmt: skip
    assert accounted(book(run)) == 2 * 241_000


def test_the_step_that_a_later_start_continues_from_is_found_between_phases(tmp_path: Path) -> None:
    """The second start continues from step 7, which no phase names: 82 s to 132 s are the steps 6 to 10."""
    again: list[Line] = [(145, "joining", None), (150, "training", 7), (200, "done", 10)]
    run = write(tmp_path, [("a", LIFE), ("a", again)], {"a": (200, "done")})
    assert seconds(book(run))["lost to redo"] == 30
    run.metrics.write_text(json.dumps({"step": 7, "time": T0 + 99, "step_s": 1.0}) + "\n")
    assert seconds(book(run))["lost to redo"] == 33, "the log of the steps is more exact than a proportion"


@pytest.mark.parametrize(
    ("kind", "at", "step_s", "hung"),
    [("hang", 145, 1.0, 5), ("killed", 150, 1.0, 0), ("communication", 240, 1.0, 100), ("communication", 240, 20.0, 0)],
)
def test_silence_before_a_failure_is_a_hang(tmp_path: Path, kind: str, at: float, step_s: float, hung: float) -> None:
    run = write(tmp_path, [("a", LIFE)], {"a": (260, kind)}, failures=[(at, kind)])
    run.metrics.write_text(json.dumps({"step": 1, "time": T0 + 41, "step_s": step_s}) + "\n")
    found = seconds(book(run, kept=5))
    assert found.get("hung", 0) == hung
    assert found["idle after the end"] == 260 - at
    assert found["training"] == 40, "an end without a restart loses what no checkpoint has"
    assert accounted(book(run, kept=5)) == 2 * 260_000


@pytest.mark.parametrize(("kind", "gap", "category"), [
    ("killed", 300, "restart and rendezvous"), ("killed", 700, "queued"),
    ("drained", 300, "queued"), ("config", 30, "queued"),
])  # fmt: skip
def test_between_two_pods_a_restart_is_paid_and_a_queue_is_not(
    tmp_path: Path, kind: str, gap: float, category: str
) -> None:
    begin = 150 + gap
    again: list[Line] = [(begin, "joining", None), (begin + 5, "training", 10), (begin + 9, "done", 11)]
    run = write(tmp_path, [("a", LIFE), ("b", again)], {"a": (150, kind), "b": (begin + 9, "done")})
    found = book(run)
    assert seconds(found)[category] == gap + (15 if category.startswith("restart") else 0)
    assert found.paid == found.wall - (2000 * gap if category == "queued" else 0)


def test_a_run_without_a_recorded_end_is_counted_to_its_last_heartbeat(tmp_path: Path) -> None:
    found = book(write(tmp_path, [("a", LIFE)]))
    assert seconds(found) == SHARES
    assert found.running
    assert any("no end is recorded" in note for note in found.notes)


def test_a_clock_that_goes_back_and_impossible_times_count_nothing_twice(tmp_path: Path) -> None:
    jumped = [*LIFE, (100.0, "saving", 10), (146.0, "training", 10)]
    run = write(tmp_path, [("a", jumped)], {"a": (150, "done")})
    with changes_of(run.heartbeat, 1).open("a") as file:
        file.write('{"time": 5.0, "phase": "saving", "step": 11, "attempt": "a"}\n')
        file.write('{"time": 9e18, "phase": "saving", "step": 11, "attempt": "a"}\n{"time": 17500')
    found = book(run)
    assert accounted(found) == 2 * 150_000
    assert sum("the clock went back by 40 s" in one for one in found.unsure) == 2
    assert sum("2 lines have an impossible time" in one for one in found.unsure) == 1


@pytest.mark.parametrize("by", [3600.0, -3600.0, 90.0])
@pytest.mark.parametrize("at", [11.0, 50.0, 141.0])
def test_a_clock_that_is_set_changes_no_category(tmp_path: Path, by: float, at: float) -> None:
    """It is set while the rank joins, trains, or between its last sign and the failure that follows."""
    calm = write(tmp_path / "calm", [("a", LIFE)], {"a": (260, "hang")}, failures=[(145, "hang")])
    run = write(tmp_path, [("a", LIFE)], {"a": (260, "hang")}, failures=[(145, "hang")])
    paths = [run.path / "attempts.jsonl", *run.failures.iterdir(), *run.heartbeat.iterdir()]
    for path in paths:
        rows = [json.loads(line) for line in path.read_text().replace("\n  ", " ").replace("\n}", "}").splitlines()
                if line.endswith("}")]  # fmt: skip
        for row in rows:
            key = "ended" if "ended" in row else "time"
            off = by if row[key] > T0 + at else 0.0
            row.update({key: row[key] + off, "clock": f"boot/{T0 - 5000 + off}"})
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = book(run)
    assert seconds(found) == seconds(book(calm))
    assert found.notes == [f"a machine's clock was set by {abs(by):,.0f} s: times before that follow its uptime"]
    assert not found.unsure


def test_what_a_rank_writes_tells_that_its_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, real = RunDir(tmp_path), time.time
    own = Heartbeat(run.heartbeat)
    own.enter("joining")
    own.enter("training", 1)
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    own.enter("done", 2)
    found = ledger.of(ledger.read(run, 0))
    assert 0 <= found.wall < 600_000
    assert any("clock was set by 7,200 s" in note for note in found.notes)
    assert not found.unsure


def test_what_the_cluster_knows_divides_the_wait(tmp_path: Path) -> None:
    run = write(tmp_path, [("a", LIFE)], {"a": (150, "done")}, ranks=1)
    marks = [(T0 - 60, "queued"), (T0 - 50, "node provisioning"), (T0 - 20, "image pull"), (T0 - 5, "start and import")]
    evidence = ledger.read(run, 0, now=T0 + 1000)
    found = ledger.of(replace(evidence, submitted=T0 - 100, marks={"host": marks}))
    assert {key: seconds(found)[key] for key in ("queued", "node provisioning", "image pull")} == {
        "queued": 50, "node provisioning": 30, "image pull": 15,
    }  # fmt: skip
    assert seconds(found)["start and import"] == SHARES["start and import"] + 5
    assert accounted(found) == 250_000
    assert found.paid == 200_000
    later = found.since(T0 + 100)
    assert accounted(later) == 50_000
    assert not found.since(T0 + 150).ranks


def test_ranks_that_come_and_go(tmp_path: Path) -> None:
    """Rank 1 exists in the first start only; rank 2 comes with the second one and was queued until then."""
    run = write(tmp_path, [("a", LIFE)], {"a": (150, "killed"), "b": (190, "done")}, ranks=2)
    for rank in (0, 2):
        with changes_of(run.heartbeat, rank).open("a") as file:
            for at, phase in ((160, "joining"), (170, "training"), (190, "done")):
                row = {"time": T0 + at, "phase": phase, "step": 10, "attempt": "b"}
                file.write(json.dumps(row) + "\n")
        path_of(run.heartbeat, rank).unlink(missing_ok=True)
    found = book(run)
    assert [spans[-1].end - spans[0].start for _, spans in sorted(found.ranks.items())] == [190_000, 150_000, 190_000]
    assert sum(span.end - span.start for span in found.ranks[2] if span.category == "queued") == 160_000


def test_a_pod_whose_rank_has_another_number_after_a_shrink_counts_once(tmp_path: Path) -> None:
    """Of three pods the second is lost: the third continues as rank 1, and its old rank 2 ends with the old world."""
    run = write(tmp_path, [], ranks=0)
    old, new = LIFE[:6], ((150, "joining"), (160, "training"), (200, "done"))
    lost = [(at, phase, step, name) for at, phase, step in old for name in ("a", "b", "c")]
    starts = {0: ("a", None), 1: ("c", (0.5, "joining", None, "c"))}
    for rank, name in enumerate(("a", "b", "c")):
        lines = [line for line in lost if line[3] == name]
        if rank in starts:
            own, begun = starts[rank]
            lines += [begun] if begun else []
            lines += [(at, phase, 2, own) for at, phase in new]
        rows = ({"time": T0 + at, "phase": what, "step": step, "attempt": own} for at, what, step, own in lines)
        changes_of(run.heartbeat, rank).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        beat = Beat(rank, "training", 3, T0 + lines[-1][0], "ACC"[rank], 42, lines[-1][3], 5, 1.0, 9)
        write_json(path_of(run.heartbeat, rank), asdict(replace(beat, phase="done" if rank < 2 else "training")))
    rows = ({"id": name, "ended": T0 + 201, "class": "done"} for name in ("a", "c"))
    (run.path / "attempts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = book(run)
    assert [spans[-1].end - spans[0].start for _, spans in sorted(found.ranks.items())] == [201_000, 201_000, 40_000]
    assert (found.moved, found.missing, found.unsure, found.running) == ([2], [], [], False)


def test_nothing_to_account_for(tmp_path: Path) -> None:
    found = ledger.of(ledger.read(RunDir(tmp_path), 0))
    assert (found.ranks, found.wall, found.goodput, found.ettr) == ({}, 0, None, None)
    assert ettr(1.0, 0.0) is None
    assert set(found.totals) == set(CATEGORIES)
