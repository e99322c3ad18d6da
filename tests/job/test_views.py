"""Merged and searched logs, rank 0, status, saved snapshots, and the probe of a run directory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import click
import pytest

from tests.job.conftest import NewWorld, Yard
from tests.job.corpus import STEP
from tests.job.world import AGE, NOW, World
from tools import cli
from tools.core import State, repo
from tools.facts.instances import INSTANCES
from tools.job import logs, status, stop
from tools.job.diagnosis import cause, exit_codes, log_causes, log_patterns, signs
from tools.job.diagnosis.explain import explain
from tools.job.ranks import rank_zero
from tools.job.snapshot import log_lines
from tools.job.snapshot.snapshot import load
from tools.job.status import Status
from training.pod.end_record import End
from training.remote import run_probe
from training.run.failure import CODES, Failure
from training.run.heartbeat import changes_of

CONDITIONS = ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")
EARLY, LATE = "2026-11-21T12:00:01.1Z", "2026-11-21T12:00:01.2Z"


def test_logs_are_merged_by_time_and_a_traceback_stays_together() -> None:
    first = log_lines.read(f"{EARLY} one\n{LATE} three\n", "a")
    second = log_lines.read("2026-11-21T12:00:01.15Z two\nof its own\n", "b")
    assert [line.text for line in log_lines.merged([first, second])] == ["one", "two", "of its own", "three"]


def test_the_rank_that_a_line_names() -> None:
    ranks = {
        "[rank3]: Traceback": 3, "[default12]:step 1": 12, "[0]:LOG x": 0, "rank 5: data: no": 5,
        "step 3": None, "[12:00:01]: x": None,
    }  # fmt: skip
    assert {text: log_lines.line_of(f"{EARLY} {text}").rank for text in ranks} == ranks


def test_colours_and_overwritten_bars_are_dropped() -> None:
    assert log_lines.line_of("\x1b[31mred\x1b[0m").text == "red"
    assert log_lines.line_of("10%\r20%\r30%").text == "30%"


def test_first_failure_is_the_cause_and_not_the_victims() -> None:
    victim = log_lines.read(f"{EARLY} [rank0]: RuntimeError: gloo: Connection closed by peer [10.0.0.7]:1\n", "a")
    own = log_lines.read(f"{EARLY} step 1\n{LATE} [rank9]: torch.OutOfMemoryError: CUDA out of memory\n", "b")
    found = logs.first_failure(log_lines.merged([victim, own]))
    assert found is not None
    around, sign = found
    assert (sign.kind, sign.line.pod, sign.rank) == ("oom-device", "b", 9)
    assert {line.pod for line in around} == {"b"}


def test_a_log_without_failures_has_none() -> None:
    lines = log_lines.read("INFO config file not found\nWARNING loss is nan in warm-up, skipped\nstep 1 loss 2\n")
    assert logs.first_failure(lines) is None


@pytest.mark.parametrize(("own", "message", "kind"), [
    ("storage", "No space left on device", "storage-full"),
    ("communication", "Name or service not known", "rendezvous-dns"),
    ("communication", "Watchdog caught collective operation timeout", "collective-timeout"),
    ("error", "KeyError: 'x'", "crash"),
    ("error", "CUDA error: uncorrectable ECC error", "device"),
    ("out of memory", "DefaultCPUAllocator: can't allocate memory", "oom-host"),
    ("out of memory", "CUDA out of memory", "oom-device"),
    ("config", "checkpoint.every: no such file", "config"),
])  # fmt: skip
def test_the_trainers_classes_are_refined_but_not_reversed(own: str, message: str, kind: str) -> None:
    assert log_causes.refine(own, message) == kind


def test_the_conclusion_of_a_pod_names_the_rank_and_host_of_another() -> None:
    end = "entrypoint: nan: rank 5 on x-worker-1 at step 9: the loss is not finite (exit code 70)"
    found = log_causes.first_cause(
        log_lines.read(f"RuntimeError: gloo: Connection closed by peer\n{end}\n", "x-worker-0")
    )
    assert found is not None
    assert (found.kind, found.rank, found.host) == ("nan", 5, "x-worker-1")


def test_the_entrypoints_conclusion_is_read_back() -> None:
    """The line is the one that training.pod.end_record writes."""
    record = Failure("data", 3, "host", 1, 7, "no shard", "DataError", 0.0)
    end = End("data", "pod", "start", 0.0, 1.0, "no shard", "DataError", record)
    found = log_causes.first_cause([log_lines.line_of(f"entrypoint: {end.summary()} (exit code {end.code})")])
    assert found is not None
    assert (found.kind, found.rank, found.host, found.concluded) == ("data", 3, "host", True)


def test_every_class_of_failure_has_a_remedy() -> None:
    kinds = {row.kind for row in log_patterns.classes()} | {
        log_causes.refine(kind, "") for kind in CODES if kind != "done"
    }
    kinds |= set(exit_codes.SIGNALS.values())
    kinds |= {sign.cause for table in signs.tables().values() for sign in table if sign.cause and not sign.fix}
    assert kinds <= set(cause.CAUSES)
    assert all(row["fix"] for row in cause.CAUSES.values())


def test_rank_zero_is_known_by_heartbeat_or_log_and_guessed_by_label(world: NewWorld) -> None:
    def found(made: World) -> tuple[int, bool, bool]:
        first = rank_zero(made.snapshot())
        assert first is not None
        return first.pod.index, first.certain, "number" in first.how

    made = world()
    assert found(made) == (0, False, True)
    made.training()
    assert made.run is not None
    beats = made.run["heartbeats"]
    beats["rank-00000.json"]["host"], beats["rank-00001.json"]["host"] = made.name(1), made.name(0)
    assert found(made) == (1, True, False), "the rendezvous assigned rank 0 to worker-1"
    ended = world()
    ended.ended(1, 0, *(STEP.format(n=n) for n in range(5)), reason="Completed")
    ended.ended(0, 0, "done", reason="Completed")
    assert found(ended) == (1, True, False), "by its log"
    both = world()
    for index in (0, 1):
        both.log(index, STEP.format(n=1))
    assert found(both) == (0, False, True), "two logs with lines of rank 0 decide nothing"


def test_status_says_what_is_known(world: NewWorld) -> None:
    made = world("g5/llama-2-7b")
    made.training(ranks=32)
    assert made.run is not None
    made.run["checkpoints"] = [{"step": 50, "time": 0.0, "bytes": 1}]
    made.event("Pod", made.name(2), "Pulled", "image is there", warning=False, seconds=90)
    found = Status(made.snapshot()).as_dict()
    training = found["training"]
    assert (training["step"], training["steps"], training["phase"]) == (100, 400, "training")
    assert training["seconds_left"] == [300, 300]
    assert [pod["ranks"] for pod in found["pods"]] == [list(range(8 * n, 8 * n + 8)) for n in range(4)]
    shown = "\n".join(status.lines(Status(made.snapshot())))
    for part in ("step 100/400", "tokens/s, MFU 40.0%, 5 min left", "newest of step 50", "90 s ago: Pulled"):
        assert part in shown, shown
    assert any("24-31" in row for row in status.table(found["pods"]))
    assert "8 A10G x 4 nodes (g5.48xlarge)" in shown
    price = INSTANCES["g5.48xlarge"].price_usd_per_hour
    assert price is not None
    assert found["cost"]["usd_per_hour"] == round(4 * price, 2)
    assert found["cost"]["usd_so_far"] == pytest.approx(4 * price * (AGE - 5) / 3600, abs=0.01)
    assert f"${4 * price:,.2f} an hour" in shown


def test_status_tells_the_goodput_of_the_first_rank(world: NewWorld) -> None:
    """The pods had nodes 5 s after the job was created, and the last sign is a second old."""
    made = world("g5/llama-2-7b")
    assert Status(made.snapshot()).as_dict()["goodput"] is None
    made.training(ranks=32)
    assert made.run is not None
    changes = (("joining", 600, None), ("training", 500, 0), ("saving", 100, 80), ("training", 90, 80))
    made.run["phases"] = [
        json.dumps({"time": NOW.timestamp() - ago, "phase": phase, "step": step, "attempt": "a"})
        for phase, ago, step in changes
    ]
    found = Status(made.snapshot()).as_dict()["goodput"]
    trained = (500 - 100) + (90 - 1)
    assert found["goodput"] == pytest.approx(trained / (AGE - 5 - 1))
    assert found["ettr"] == pytest.approx(trained / (AGE - 1))
    shown = "\n".join(status.lines(Status(made.snapshot())))
    assert f"{trained / (AGE - 6):.1%} of the time of rank 0 was training that was kept; most went to" in shown
    del made.run["phases"][0]
    made.run["phases_cut"] = True
    found = Status(made.snapshot()).as_dict()["goodput"]
    assert found["goodput"] == found["ettr"] == pytest.approx(trained / 499), "what came before it was not read"
    assert found["since"] == NOW.timestamp() - 500
    shown = "\n".join(status.lines(Status(made.snapshot())))
    assert f"of the time of rank 0 since {NOW - timedelta(seconds=500):%Y-%m-%d %H:%M} UTC was training" in shown


def test_steps_before_a_resume_do_not_give_the_present_speed(world: NewWorld) -> None:
    """Steps of earlier containers, of an earlier attempt, of a suspended job, of a silent one."""
    made = world()
    made.training(silent=30.0)
    assert Status(made.snapshot()).training()["seconds_left"] == [300, 300], "control"
    for index in range(len(made.pods)):
        made.running(index, seconds=20)
    training = Status(made.snapshot()).training()
    assert (training["step"], training["tokens_per_s"], training["mfu"]) == (100, None, None)
    assert training["seconds_left"] is None
    assert "time left unknown" in "\n".join(status.lines(Status(made.snapshot())))
    again = world()
    again.training(rows=[{"step": n, "tokens_per_s": 50.0} for n in (60, 61, 62)])
    assert Status(again.snapshot()).training()["tokens_per_s"] == 50.0
    silent = world()
    silent.training(silent=700.0)
    assert Status(silent.snapshot()).training()["seconds_left"] is None
    suspended = world()
    suspended.training()
    suspended.job["status"]["conditions"].append({"type": "Suspended", "status": "True"})
    assert Status(suspended.snapshot()).state == "Suspended"
    assert Status(suspended.snapshot()).training()["tokens_per_s"] is None
    ended = world()
    ended.training(steps=400)
    ended.end("Succeeded")
    assert Status(ended.snapshot()).training()["tokens_per_s"] == 1000.0, "how fast the run was"
    assert Status(ended.snapshot()).training()["seconds_left"] is None


def test_a_missing_pod_is_reported(world: NewWorld) -> None:
    made = world("g5/llama-2-7b")
    assert "exist" not in "\n".join(status.lines(Status(made.snapshot()))), "control"
    made.pods.pop()
    assert "  pods        3 of 4 exist" in status.lines(Status(made.snapshot()))
    assert Status(made.snapshot()).as_dict()["pods_wanted"] == 4


@pytest.mark.parametrize("state", ["New", *CONDITIONS])
def test_the_state_is_the_decisive_condition(state: str, world: NewWorld) -> None:
    """The operator keeps earlier conditions as False, and Created as True."""
    true = () if state == "New" else ("Created", state)
    conditions = [{"type": kind, "status": str(kind in true)} for kind in CONDITIONS]
    for given in (conditions, conditions[::-1]):
        made = world()
        made.job["status"] = {"conditions": given} if true else {}
        assert made.snapshot().state == state


def test_a_loss_that_is_not_a_number_is_a_text_in_json(world: NewWorld) -> None:
    made = world()
    made.training(rows=[{"loss": float("nan")}])
    assert Status(made.snapshot()).training()["loss"] == "nan"
    json.dumps(Status(made.snapshot()).as_dict(), allow_nan=False)
    assert "loss nan" in "\n".join(status.lines(Status(made.snapshot())))


def test_status_without_data_shows_no_progress(world: NewWorld) -> None:
    made = world()
    made.unseen["run directory"] = "forbidden"
    shown = "\n".join(status.lines(Status(made.snapshot())))
    assert "no progress was seen" in shown
    assert "not seen: run directory: forbidden" in shown
    assert "step" not in shown


def test_a_snapshot_has_the_logs_of_its_own_job_only(world: NewWorld, tmp_path: Path, yard: Yard) -> None:
    """Also in a directory that has another one."""
    first, second = world(), world()
    first.log(0, *(STEP.format(n=n) for n in range(1, 60)), seconds=61)
    first.pods[0]["metadata"]["name"] = "another-pod"
    first.snapshot().save(tmp_path)
    second.log(1, "starting", seconds=700)
    second.snapshot().save(tmp_path)
    assert [log.pod for log in load(tmp_path).logs] == [second.name(1)]
    (tmp_path / "file").touch()
    words = ("why", "--from", str(tmp_path))
    assert "file: not a directory" in yard.err(*words, "--save", str(tmp_path / "file"), code=2)
    assert "file/x: not a directory" in yard.err(*words, "--save", str(tmp_path / "file/x"), code=2)


def test_a_snapshot_is_not_taken_for_that_of_another_job(world: NewWorld, tmp_path: Path, yard: Yard) -> None:
    made = world()
    made.training()
    made.snapshot().save(tmp_path)
    name = made.job["metadata"]["name"]
    for word in (name, f"pytorchjob/{name}", "cpu/llama-tiny"):
        yard.out("why", word, "--from", str(tmp_path))
    assert f"is a snapshot of {name}, and not of other" in yard.err("why", "other", "--from", str(tmp_path), code=2)


def test_a_saved_snapshot_gives_the_same_answer(world: NewWorld, tmp_path: Path, yard: Yard) -> None:
    made = world()
    made.crash_looping(1, 137, STEP.format(n=7), reason="OOMKilled")
    token = {"name": "WANDB_API_KEY", "value": "not-for-others"}
    made.container(0)["env"].append(token)
    snapshot = made.snapshot()
    snapshot.save(tmp_path / "kept")
    assert explain(load(tmp_path / "kept")).causes == explain(snapshot).causes
    kept = "".join(path.read_text() for path in (tmp_path / "kept").iterdir())
    assert "not-for-others" not in kept
    answer = yard.json("why", "--from", str(tmp_path / "kept"), code=1)
    assert (answer["cause"], answer["uid"], answer["verdict"]) == ("oom-host", "uid-job", "FAIL")
    assert "No such file" in yard.err("why", "--from", str(tmp_path / "none"), code=2)
    for text in ("{", "{}", '{"taken": "2026-11-21T12:00:00+00:00", "what": 1}'):
        (tmp_path / "kept/snapshot.json").write_text(text)
        assert "incomplete snapshot" in yard.err("why", "--from", str(tmp_path / "kept"), code=2)


def test_the_probe_reads_a_run_directory_and_skips_incomplete_files(tmp_path: Path) -> None:
    """It runs as in a pod: a script on standard input that imports nothing of this project."""
    whole = {
        "heartbeat/rank-00000.json": '{"rank": 0, "phase": "training"}',
        "heartbeat/rank-00001.json": '{"rank": 1, "pha',
        "failures/17-rank-00001.json": '{"class": "nan"}',
        "checkpoints/step-00000050/MANIFEST.json": '{"files": {"a": {"size": 7}}}',
        "checkpoints/step-00000100.ab.tmp/MANIFEST.json": "{}",
        "run.json": '{"world_size": 2, "config": {"train": {"steps": 400}}}',
        "metrics.jsonl": '{"step": 1}\n{"step": 2}\n',
        "skipped.jsonl": '{"action": "skip"}\n',
    }
    for name, text in whole.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = Path(run_probe.__file__).read_text()
    words = [sys.executable, "-I", "-", str(tmp_path / "run")]
    done = subprocess.run(words, input=script, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert list(found["heartbeats"]) == ["rank-00000.json"]
    assert found["failures"] == {"17-rank-00001.json": {"class": "nan"}}
    assert [(one["step"], one["bytes"]) for one in found["checkpoints"]] == [(50, 7)]
    assert (found["steps"], found["world_size"], len(found["metrics"])) == (400, 2, 2)
    assert found["skipped"] == ['{"action": "skip"}']
    assert not found["phases_cut"]
    changes_of(tmp_path / "run/heartbeat", 0).write_text(f"{'x' * 99}\n" * (run_probe.TAIL // 100 + 1))
    (tmp_path / "run/heartbeat/rank-00002.json").symlink_to("rank-00000.json")
    (tmp_path / "run/failures").rename(tmp_path / "theirs")
    (tmp_path / "run/failures").symlink_to(tmp_path / "theirs")
    linked = run_probe.look(tmp_path / "run")
    assert (list(linked["heartbeats"]), linked["failures"]) == (["rank-00000.json"], {}), (
        "links may lead to another run"
    )
    assert run_probe.look(tmp_path / "run")["phases_cut"], "the first lines are not there"


def test_why_tells_what_was_skipped_and_rolled_back(world: NewWorld) -> None:
    made = world()
    for index in range(len(made.pods)):
        made.running(index)
    made.training()
    assert "rollback" not in str(explain(made.snapshot()).checked)
    line = {"kind": "spike", "action": "rollback", "step": 70, "restored": 60, "first": 480, "end": 560, "reason": "x"}
    assert made.run is not None
    made.run["skipped"] = ["{half", "[]", json.dumps({"action": "skip"}), json.dumps(line)]
    told = explain(made.snapshot())
    assert told.state is State.PASS
    wanted = "1 rollback and 1 skipped step by train.on_nan and on_spike; the last at step 70, back to step 60: x;"
    assert any(text.startswith(wanted) and "samples 480 to 560" in text for text in told.checked)


def test_every_command_that_a_remedy_names_exists() -> None:
    for text in (row["fix"] for row in cause.CAUSES.values()):
        for words in re.findall(r"yard ((?:[a-z0-9-]+ ?)+)", text):
            group: click.Command = cli.yard
            for word in words.split():
                if not isinstance(group, click.Group):
                    break
                found = group.get_command(click.Context(group), word)
                assert found is not None, f"yard {words}: {text}"
                group = found


def test_the_checkpoint_of_a_drain_is_read_from_the_logs() -> None:
    """training/trainer/loop.py and saver.py write these lines."""
    source, saver = ((repo.root() / f"training/trainer/{name}.py").read_text() for name in ("loop", "saver"))
    assert "checkpoint of step %d saved" in saver
    assert "stopped on request at step {now.step}, which is saved" in source
    saved = stop.last_checkpoint(True, ["step 39", "rank 0: drained: stopped on request at step 40, which is saved"])
    assert (saved.saved, saved.step) == (True, 40)
    assert stop.last_checkpoint(True, ["checkpoint of step 20 saved in 0.1 s"]).step == 20
    lost = stop.last_checkpoint(True, ["checkpoint of step 40 was not saved, training continues: disk is full"])
    assert (lost.saved, lost.ran) == (False, True)
    assert "CANNOT TELL" in lost.evidence
    assert not stop.last_checkpoint(False, []).ran
