"""The files of a start: what was written is read, and what is not a record ends the reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.prove import made
from tests.prove.made import changed, every, without
from tools.core import State
from tools.prove import observed
from tools.prove.claims import judge
from training.prove import records


def test_each_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-1.jsonl"
    written = [*made.rank(0).events, records.Peers("tensor", [0, 1]), records.Uncovered("batches", "no")]
    writer = records.Writer(path)
    for event in written:
        writer.write(event)
    assert list(records.events(path)) == written


@pytest.mark.parametrize(
    "line",
    [
        {"event": "peers", "how": "tensor", "ranks": 7}, {"event": "peers", "how": "tensor", "ranks": ["0"]},
        {"event": "peers", "how": None, "ranks": [0]}, {"event": "loss", "step": "1", "value": 1.0, "finite": True},
        {"event": "end", "step": 1, "reason": "steps", "versions": {"torch": 2}}, {"event": "other"}, {}, [], 7,
    ],
)  # fmt: skip
def test_what_is_not_a_record_ends_the_reading(line: Any, tmp_path: Path) -> None:
    path = tmp_path / "rank-0-1.jsonl"
    good = json.dumps({"event": "uncovered", "what": "batches", "reason": "no"})
    path.write_text(f"{good}\n{json.dumps(line)}\n{good}\n", encoding="utf-8")
    assert list(records.events(path)) == [records.Uncovered("batches", "no")]


@pytest.mark.parametrize(
    "change", [{"exit_code": "0"}, {"files": [7]}, {"files": [{"path": 1, "bytes": 1, "kept": True}]}, {"seconds": []}]
)
def test_a_damaged_outcome_leaves_the_start_without_one(change: dict[str, Any], tmp_path: Path) -> None:
    records.write_outcome(tmp_path, records.Outcome("whole", "itself", files=[records.FoundFile("/a", 1, True)]))
    assert observed.read("whole", tmp_path).outcome is not None
    data = json.loads((tmp_path / "outcome.json").read_text(encoding="utf-8"))
    (tmp_path / "outcome.json").write_text(json.dumps({**data, **change}), encoding="utf-8")
    assert observed.read("whole", tmp_path).outcome is None


@pytest.mark.parametrize(
    ("name", "size", "step", "is_one"),
    [
        ("model.pt", 10, 1, True), ("weights", 1 << 20, 1, True), ("weights", 1 << 20, 0, False),
        ("last.ckpt.gz", 10, 0, True), ("samples.wav", 1 << 20, 1, False), ("predictions.parquet", 1 << 20, 1, False),
        ("attention.SVG", 1 << 20, 1, False), ("rank0.pt.trace.json.gz", 1 << 20, 1, False),
    ],
)  # fmt: skip
def test_what_a_run_writes_beside_checkpoints_is_none(name: str, size: int, step: int, is_one: bool) -> None:
    """Sounds, pictures, tables and traces are large and written at some steps."""
    assert records.is_checkpoint(f"/out/{name}", size, step) is is_one


def _process(directory: Path, pid: int, steps: int, *, shared: bool, changed_at: int = 0) -> None:
    """Write a process without a launcher, that takes steps. Another one changes the parameters before one step."""
    writer = records.Writer(directory / f"rank-0-{pid}.jsonl")
    for event in made.rank(0, last=steps, world=1).events:
        if isinstance(event, records.Step):
            event.shared = shared
            event.parameters_before += "!" * (event.step == changed_at)
        if not isinstance(event, records.World):
            writer.write(event)


@pytest.mark.parametrize(
    ("steps", "shared", "changed_at", "ranks", "said"),
    [
        ((12, 11), True, 5, 2, "PASS 2 processes train one model in shared memory"),
        ((12, 11), True, 0, 2,
         "CANNOT TELL 2 processes train in shared memory; no step shows that they train one model"),
        ((12, 11), False, 5, 1, "CANNOT TELL 2 processes train, and torch.distributed was never initialised"),
        ((12, 2), False, 0, 1, "PASS one process was started, and it trains alone"),
        ((12,), True, 0, 1, "PASS one process was started, and it trains alone"),
    ],
)  # fmt: skip
def test_processes_that_train_without_ranks(
    steps: tuple[int, ...], shared: bool, changed_at: int, ranks: int, said: str, tmp_path: Path
) -> None:
    for pid, count in enumerate(steps, 100):
        _process(tmp_path, pid, count, shared=shared, changed_at=changed_at)
    records.write_outcome(tmp_path, records.Outcome("whole", "itself", exit_code=0))
    run = observed.read("whole", tmp_path)
    assert len(run.ranks) == ranks
    verdict = judge("world", observed.Proof({"whole": run}, steps=12))
    assert f"{verdict.state.value} {verdict.summary}" == said


def test_processes_in_shared_memory_may_each_read_all_samples() -> None:
    def own_orders(runs: dict[str, observed.Run]) -> None:
        for rank in runs["whole"].ranks:
            for batch in rank.batches:
                batch.indices = [str((int(at) * (5 + 2 * rank.rank)) % 24) for at in batch.indices]
                batch.rows, batch.digest = batch.indices, "/".join(batch.indices)

    def shared(runs: dict[str, observed.Run]) -> None:
        own_orders(runs)
        without(runs["whole"], records.World)
        every(runs["whole"], records.Begin, world=1)
        every(runs["whole"], records.Step, shared=True)

    assert judge("data", changed(own_orders)).details["findings"] == ["shared-samples"]
    assert judge("data", changed(shared)).state is State.PASS
