"""`yard job goodput` on run directories that are written by hand: sums, prices, tables, and bad input."""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import shutil
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard
from tests.training.test_ledger import LIFE, write
from tools.cli import invoke
from tools.core import repo
from tools.facts.instances import instance
from tools.job import goodput
from tools.job.goodput import TO_DO, apportioned
from training.run.directory import RunDir, read_json, write_json
from training.run.heartbeat import changes_of
from training.run.ledger import CATEGORIES


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two ranks on one host for 155 s, of which 100 s train."""
    found = write(tmp_path, [("a", [*LIFE, (150, "sampling", 10), (153, "done", 10)])], {"a": (155, "done")})
    write_json(found.run, {"commit": "abc\x1b[31m", "config_digest": "f00"})
    return found


def test_every_second_and_every_cent_is_in_one_category(run: RunDir, yard: Yard) -> None:
    (found,) = yard.json("goodput", str(run.path), "--instance", "p5.48xlarge")["runs"]
    price = Decimal(str(instance("p5.48xlarge").price_usd_per_hour))
    assert Decimal(found["usd"]) == round(price * 155 / 3600, 2)
    assert sum(map(Decimal, found["usd_by_category"].values())) == Decimal(found["usd"])
    assert sum(found["seconds"].values()) == found["rank_seconds"] == 2 * 155
    assert (found["ranks"], found["restarts"], found["running"]) == (2, 0, False)
    assert found["seconds"]["training"] == 200
    assert found["goodput"] == found["ettr"] == pytest.approx(100 / 155)
    assert [one["category"] for one in found["losses"]] == ["compile", "start and import", "evaluation"]
    assert (found["config"], found["image"]) == ("f00", None)
    assert {rank: sum(one.values()) for rank, one in found["by_rank"].items()} == {"0": 155, "1": 155}


def test_people_see_sums_losses_and_what_to_do(run: RunDir, yard: Yard) -> None:
    shown = yard.out("goodput", str(run.path))
    assert "run: 2 ranks, 2 min each, 0 restarts" in shown
    assert re.search(r"^  sum +310 s$", shown, re.MULTILINE)
    assert f"compile, 40 s: {TO_DO['compile']}" in shown
    assert "\x1b" not in shown
    assert "$" not in shown, "the price of this machine is unknown"


def test_several_runs_are_a_table_and_csv(run: RunDir, yard: Yard, tmp_path: Path) -> None:
    write(tmp_path / "other", [("a", LIFE)], {"a": (150, "killed")}).path.rename(tmp_path / "=cmd|calc")
    (tmp_path / "empty").mkdir()
    with changes_of(run.heartbeat, 1).open("a") as file:
        file.write('{"time": 5.0, "phase": "saving", "step": 11, "attempt": "a"}\n')
    shutil.copy(changes_of(run.heartbeat, 1), changes_of(run.heartbeat, 10**20))  # a rank that no world has
    rows = list(csv.DictReader(io.StringIO(yard("goodput", str(tmp_path), "--csv", code=3).out)))
    assert [row["run"] for row in rows] == ["'=cmd|calc", "run"], "a spreadsheet would compute a formula"
    assert [sum(int(row[name]) for name in CATEGORIES) for row in rows] == [300, 310]
    shown, said = yard("goodput", str(tmp_path), code=3)
    assert "CANNOT TELL: run: rank 1: 1 lines have an impossible time and are left out" in said
    assert "2 runs, 0.17 rank-hours, cost unknown\n" in shown, "an unknown price is not zero"
    priced = yard("goodput", str(tmp_path), "--instance", "p5.48xlarge", code=3).out
    assert re.search(r"2 runs, 0\.17 rank-hours, \d+\.\d\d USD\n", priced)
    assert f"  compile, 80 s: {TO_DO['compile']}" in shown.splitlines(), "the losses of both together"
    assert yard.out("goodput", str(tmp_path), "--since", "1d") == "no run since 1d\n"
    (later,) = yard.json("goodput", str(run.path), "--since", "2025-06-15T15:08:20", code=3)["runs"]
    assert later["rank_seconds"] == 2 * 55, "T0 is 15:06:40"


def test_each_loss_has_something_to_do() -> None:
    assert set(TO_DO) == set(CATEGORIES) - {"training"}


def test_rounded_parts_have_the_rounded_sum() -> None:
    assert apportioned({"a": Fraction(1, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}) == {"a": 1, "b": 0, "c": 0}
    assert apportioned({"a": Fraction(5, 2), "b": Fraction(5, 2)}) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((".",), 3, "no run in ."),
        ((".", "--csv", "--json"), 2, "--csv and --json: the answer has one form"),
        (("./none",), 2, "./none: no such directory"),
        (("half",), 3, "CANNOT TELL: half has no phases of any rank"),
        (("half", "--since", "yesterday"), 2, "--since yesterday: not a time"),
        (("half", "--since", "9999-99-99"), 2, "--since 9999-99-99: not a time"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...], code: int, message: str, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "half" in words:
        (tmp_path / "half" / "heartbeat").mkdir(parents=True)
        (tmp_path / "half" / "heartbeat" / "rank-00000.phases.jsonl").write_text('{"time": 17\n{"tim')
    assert message in yard.err("goodput", *words, code=code)


def test_a_rank_whose_phases_cannot_be_read_is_named(run: RunDir, yard: Yard, tmp_path: Path) -> None:
    """Half of the ranks would be half of the bill."""
    changes_of(run.heartbeat, 0).write_bytes(b"\xff\x1b[31m\n" * 3)
    part = yard.json("goodput", str(run.path), code=3)
    assert part["not_seen"] == [
        "CANNOT TELL: run: rank 0 is not counted: no phases of it can be read",
        "CANNOT TELL: run: rank 0: 3 lines are damaged and are left out",
    ]
    assert (part["runs"][0]["ranks"], part["runs"][0]["rank_seconds"]) == (1, 155)
    assert invoke(["report", str(run.path), "--to", str(tmp_path / "page.html")]) == 0
    assert part["not_seen"][0] in (tmp_path / "page.html").read_text(encoding="utf-8")
    changes_of(run.heartbeat, 0).unlink()
    run.run.write_text("")
    assert "run.json cannot be read: the number of ranks is unknown" in yard("goodput", str(run.path), code=3).err
    write_json(run.run, {"world_size": 3})
    assert "rank 0,2 is not counted" in yard("goodput", str(run.path), code=3).err


def test_a_run_that_may_not_be_read_hides_no_other(
    run: RunDir, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = RunDir(tmp_path / "theirs")
    shutil.copytree(run.path, theirs.path)
    real = os.listdir

    def refused(path: Path) -> list[str]:
        if Path(path) == theirs.heartbeat:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", refused)  # a right does not keep root out
    part = yard.json("goodput", str(tmp_path), code=3)
    assert [one["run"] for one in part["runs"]] == ["run"]
    assert part["not_seen"] == [f"CANNOT TELL: {theirs.heartbeat}: Permission denied"]
    assert "Permission denied" in yard.err("goodput", str(theirs.path), code=3)


@pytest.mark.parametrize("part", ["heartbeat", "failures"])
def test_a_part_of_another_run_is_refused(run: RunDir, yard: Yard, part: str) -> None:
    theirs = run.path.with_name("theirs")
    (run.path / part).rename(theirs) if part == "heartbeat" else theirs.mkdir()
    (run.path / part).symlink_to(theirs)
    assert "is a link, and may lead to another run" in yard.err("goodput", str(run.path), code=3)


def test_an_unknown_instance_type_names_the_nearest(run: RunDir, yard: Yard) -> None:
    assert "did you mean p5.48xlarge?" in yard.err("goodput", str(run.path), "--instance", "p5.48xlage", code=2)


def test_a_job_is_read_through_its_pod_with_its_waits_and_prices(
    world: NewWorld, cluster: Cluster, run: RunDir, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world("p5/llama-3-1-8b")
    pods = [pod["metadata"]["name"] for pod in made.snapshot().of("Pod")][:2]
    home = cluster(made)
    for rank, pod in enumerate(pods):
        path = run.heartbeat / f"rank-{rank:05d}.json"
        write_json(path, {**read_json(path), "host": pod, "rank": rank})
    shutil.copytree(run.path, home / "volume", dirs_exist_ok=True)
    (found,) = yard.json("goodput", "p5-llama-3-1-8b-train")["runs"]
    assert found["run"] == "p5-llama-3-1-8b-train"
    runs = home / "local/runs"
    shutil.copytree(run.path, runs / "p5-llama-3-1-8b-train")
    monkeypatch.setattr(repo, "local", lambda: runs.parent)
    (here,) = yard.json("goodput", "p5-llama-3-1-8b-train")["runs"]
    assert here["by_rank"]["0"].get("queued") is None, "a run of this checkout comes first"
    (job,) = yard.json("goodput", "p5-llama-3-1-8b-train", "-n", "team-a")["runs"]
    assert job["seconds"] == found["seconds"], "but not where a namespace is given"
    (of_the_team,) = yard.json("goodput", "-n", "team-a")["runs"]
    assert (of_the_team["run"], of_the_team["seconds"]["training"]) == (found["run"], 200)
    (home / "forbidden").write_text("trainjobs.trainer.kubeflow.org")
    part = yard.json("goodput", "-n", "team-a", code=3)
    assert len(part["runs"]) == 1
    assert any(one.startswith("not seen: TrainJob") for one in part["not_seen"]), "jobs may be missing in the sum"
    assert "not seen: TrainJob" in yard("goodput", "-n", "team-a", code=3).err
    kind = made.nodes[0]["metadata"]["labels"]["node.kubernetes.io/instance-type"]
    price = Decimal(str(instance(kind).price_usd_per_hour))
    paid = found["rank_seconds"] - found["seconds"]["queued"]
    assert Decimal(found["usd"]) == round(price * paid / 3600, 2), "each rank has a node of its own"
    assert found["seconds"]["training"] == 200
    assert found["commit"] == "abc\x1b[31m"


def test_the_api_server_tells_what_a_pod_waited_for(world: NewWorld) -> None:
    job = world("p5/llama-3-1-8b")
    name = job.name(0)
    for reason, seconds in (("TriggeredScaleUp", 880), ("Pulling", 850), ("Pulled", 820), ("Created", 801)):
        job.event("Pod", name, reason, "it happened", warning=False, seconds=seconds)
    seen = job.snapshot()
    pod = next(pod for pod in seen.pods if pod.name == name)
    marks = goodput.marks_of(seen, pod)
    begin = min(moment for moment, _ in marks)
    # In the order of what happens: the API server's times are whole seconds, and of one second the last counts.
    assert [(round(moment - begin), category) for moment, category in marks] == [
        (0, "queued"), (15, "node provisioning"), (0, "image pull"), (45, "image pull"), (75, "start and import"),
        (95, "start and import"),
    ]  # fmt: skip
