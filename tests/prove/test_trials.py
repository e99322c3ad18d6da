"""What a proof starts: the plan that the options, a command or a manifest give."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.prove.made import changed, every, healthy
from tests.prove.test_guide import JOB
from tools import cli
from tools.cells.knobs import Knobs
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.kube import manifests
from tools.prove import run, trials
from tools.prove.claims import NAMES
from tools.prove.observed import TABLE
from tools.prove.trials import Options
from training.prove import plan as plans
from training.prove.records import Step

TORCHRUN = ["torchrun", "--nproc-per-node", "2", "train.py", "--nproc-per-node", "9"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(words: list[str], work: Path, nodes: int | None = None, nproc: int | None = None, **options: Any) -> Any:
    given = Options(**options, claims=trials.wanted(options.pop("only", ())))
    subject = trials.of_command(words, work, Knobs(nodes=nodes, nproc=nproc), given)
    return trials.plan(subject, given)[0]


def test_all_claims_need_all_starts(work: Path) -> None:
    made = planned(TORCHRUN, work)
    assert [one.name for one in made.starts] == list(TABLE["starts"])
    sources = {one.name: one.source for one in made.starts if one.source}
    assert sources == {
        "resumed": "killed", "world": "killed", "torn-first-again": "torn-first", "torn-later-again": "torn-later",
    }  # fmt: skip
    assert {one.name: one.fault.kind for one in made.starts if one.fault} == {
        "killed": "kill", "torn-first": "torn-save", "torn-later": "torn-save", "term": "terminate",
        "exception": "exception", "hang": "hang",
    }  # fmt: skip


def test_what_survives_is_named_without_links(work: Path) -> None:
    """A link to another disk is followed before the view is there, which does not show it at that place."""
    (work / "disk/run").mkdir(parents=True)
    (work / "out").symlink_to(work / "disk")
    assert planned(TORCHRUN, work, keep=("out/run",)).keep == [str(work / "disk/run")]
    with pytest.raises(UserError, match=r"--keep train\.py: is a file"):
        planned(TORCHRUN, work, keep=("train.py",))


@pytest.mark.parametrize("claim", NAMES)
def test_one_claim_needs_its_starts_only(claim: str, work: Path) -> None:
    options = Options(only=(claim,), claims=trials.wanted([claim]))
    made, _ = trials.plan(trials.of_command(TORCHRUN, work, Knobs(), options), options)
    assert {one.name for one in made.starts} == set(TABLE["claims"][claim]["starts"])


def test_a_claim_has_a_name_and_a_number() -> None:
    assert trials.wanted(["5", "data"]) == ["data", "resume"]
    assert trials.wanted([]) == NAMES
    with pytest.raises(UserError, match="--only 11: no claim has this name"):
        trials.wanted(["11"])


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (["torchrun", "--nproc-per-node", "4", "t.py"], ["torchrun", "--nproc-per-node", "2", "t.py"]),
        (["torchrun", "--nproc_per_node=1", "t.py"], ["torchrun", "--nproc_per_node=2", "t.py"]),
        (["accelerate", "launch", "--num_processes=2", "t.py"], ["accelerate", "launch", "--num_processes=1", "t.py"]),
        (
            ["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "t.py"],
            ["python", "-m", "torch.distributed.run", "--nproc-per-node=1", "t.py"],
        ),
        (["torchrun", "--nproc-per-node", "gpu", "t.py"], None),
        (["torchrun", "t.py", "--nproc-per-node", "2"], None),
        (["torchrun", "--standalone", "t.py", "--num-processes", "4"], None),
        (["torchrun", "-m", "pkg.train", "--num_gpus=2"], None),
        (["python", "t.py"], None),
    ],
)  # fmt: skip
def test_another_world(words: list[str], other: list[str] | None) -> None:
    assert trials.other_world(words) == other


@pytest.mark.parametrize("option", ["--max-restarts 3", "--max_restarts=3"])
def test_a_launcher_does_not_start_failed_ranks_again(option: str, work: Path) -> None:
    """They would fail again at the same step, until the job seems to hang or its few steps that are left succeed."""
    given = f"torchrun {option} --nproc-per-node 2 train.py --max-restarts 7"
    due = given.replace(option, option.replace("3", "0"))
    assert {" ".join(one.command).replace("node 1", "node 2") for one in planned(given.split(), work).starts} == {due}


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (["torchrun", "train.py"], ["torchrun", "--nproc-per-node", "3", "train.py"]),
        (["torchrun", "--nproc-per-node=1", "train.py"], ["torchrun", "--nproc-per-node=3", "train.py"]),
        (["accelerate", "launch", "train.py"], ["accelerate", "launch", "--num_processes", "3", "train.py"]),
        (["python", "train.py"], ["python", "-m", "torch.distributed.run", "--nproc-per-node", "3", "train.py"]),
        (
            ["python", "-u", "-m", "pkg.train", "--lr", "3"],
            ["python", "-u", "-m", "torch.distributed.run", "--nproc-per-node", "3", "-m", "pkg.train", "--lr", "3"],
        ),
    ],
)
def test_nproc_sets_the_ranks(words: list[str], started: list[str], work: Path) -> None:
    made = planned(words, work, nproc=3)
    assert (made.starts[0].command, trials.asked(made)) == (started, 3)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("python train.py", 0), ("torchrun train.py", 1), ("torchrun --nproc-per-node=gpu train.py", 2),
        ("accelerate launch train.py", 2), ("accelerate launch --config_file four.yaml train.py", 4),
        ("accelerate launch --config_file four.yaml --num_processes 1 train.py", 1),
        ("accelerate launch --config_file none.yaml train.py", 2),
    ],
)  # fmt: skip
def test_what_a_command_asks_for(command: str, ranks: int, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(work / "cache"))
    (work / "four.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n", encoding="utf-8")
    assert trials.asked(planned(command.split(), work)) == ranks


def test_processes_that_accelerate_leaves_alone_are_started_with_the_stand_in(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if they then form one world: with `--cpu` they do not."""
    alone, together = (
        changed(lambda runs: every(runs["whole"], Step, collectives=0)).run("whole"),
        healthy().run("whole"),
    )
    started: list[plans.Plan] = []

    def carry_out(made: plans.Plan, out: Path, _: int) -> None:
        (out / "whole").mkdir()
        started.append(made)

    monkeypatch.setattr(run, "_carry_out", carry_out)
    monkeypatch.setattr("shutil.which", lambda _: None)
    for number, (found, stand_in) in enumerate(((together, True), (alone, False))):
        monkeypatch.setattr("tools.prove.observed.read", lambda *_, found=found: found)
        (work / f"{number}/whole").mkdir(parents=True)
        made = plans.Plan([plans.Start("whole", [1], ["accelerate", "launch", "t.py"])], str(work), {}, 30)
        assert run._wants_cuda(alone, made)
        assert not run._wants_cuda(together, made)
        assert run._on_stand_in(made, alone, work / str(number))[0].stand_in is stand_in
    assert started[0].variables == {"LOCAL_WORLD_SIZE": "2"}


def test_nodes_meet_by_variables(work: Path) -> None:
    words = ["torchrun", "--standalone", "--nnodes", "1", "--rdzv-backend=c10d", "--nproc-per-node", "1", "train.py"]
    made = planned(words, work, nodes=2)
    assert made.nodes == 2
    assert made.starts[0].command == ["torchrun", "--nproc-per-node", "1", "train.py"]
    with pytest.raises(UserError, match="--nodes 2: python is not a launcher"):
        planned(["python", "train.py"], work, nodes=2)


@pytest.mark.parametrize(
    ("words", "options", "said", "hint"),
    [
        ("torchrun --nnodes=2 train.py", {}, "--nnodes 2: one node is started", "yard prove --nodes 2"),
        (
            "CUDA_VISIBLE_DEVICES=0 torchrun train.py",
            {},
            "is a variable, not a program",
            "--env CUDA_VISIBLE_DEVICES=0",
        ),
        ("trian.py", {}, "trian.py: no such program", "did you mean train.py?"),
        ("mpirun -n 2 python train.py", {}, "mpirun: no such program", "torchrun train.py"),
        ("python train.py", {"resume": "torchrn train.py"}, "torchrn: no such program", "torchrun train.py"),
        ("python train.py", {"resume": "python trian.py"}, "trian.py: no such file", "did you mean train.py?"),
    ],
)
def test_a_command_that_cannot_start_is_refused_at_once(
    words: str, options: dict[str, Any], said: str, hint: str, work: Path
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        planned(words.split(), work, **options)
    assert hint in str(refused.value.hint)


def test_options_of_a_plan(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("RANK", "7")
    made = planned(
        TORCHRUN, work, steps=9, kill_at=4, resume="torchrun train.py --resume latest", keep=("out", "/shared"),
        link=("data",), env=("LEVEL=3",), timeout=20, network=True,
    )  # fmt: skip
    starts = {one.name: one for one in made.starts}
    assert starts["whole"].command == TORCHRUN
    assert starts["resumed"].command == ["torchrun", "train.py", "--resume", "latest"]
    assert starts["killed"].fault.step == 4
    assert made.keep == [str(work / "out"), "/shared"]
    assert made.link == [str(work / "data")]
    assert (made.steps, made.timeout, made.network, made.variables["LEVEL"]) == (9, 20, True, "3")
    assert not made.variables.keys() & {"AWS_SECRET_ACCESS_KEY", "RANK"}
    assert planned(TORCHRUN, work).keep == [str(work)]


def test_the_modules_of_the_caller_are_found(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package below src/ that is not installed is found by PYTHONPATH."""
    monkeypatch.setenv("PYTHONPATH", "src:/opt/modules")
    (work / "there").mkdir()
    (work / "there/train.py").touch()
    assert planned(TORCHRUN, work / "there").variables["PYTHONPATH"] == f"{work}/src:/opt/modules"
    assert planned(TORCHRUN, work, env=("PYTHONPATH=lib",)).variables["PYTHONPATH"] == "lib"


def test_a_manifest_gives_variables_volumes_and_grace(work: Path) -> None:
    mounts = "env: [{name: LEVEL, value: '3'}]\n              volumeMounts: [{name: here, mountPath: /here}, "
    text = JOB.replace("OUT", "/shared/out").replace("volumeMounts: [", mounts)
    text = text.replace("volumes:", "volumes:\n            - {name: here, emptyDir: {}}")
    (work / "job.yaml").write_text(text, encoding="utf-8")
    found = manifests.read(work / "job.yaml")
    options = Options(env=("MORE=4",), claims=NAMES)
    subject = trials.of_manifests(found, ("-f", "job.yaml"), Knobs(name="proof"), options)
    assert Path(subject.command[0]).name == "torchrun"
    assert (subject.nodes, subject.grace, subject.image) == (2, 60.0, "registry.example.com/team/mine:1")
    assert (subject.variables["LEVEL"], subject.variables["MORE"]) == ("3", "4")
    assert not [name for name in subject.variables if name.startswith("PET_") or name in ("MASTER_ADDR", "RANK")]
    assert [path.name for path in subject.keep if "here" in path.name] == []
    assert len(subject.keep) == 1


# The command line


def result(*states: State) -> run.Result:
    rows = [Verdict(state, "text", ["line"], None, {"claim": name, "number": place, "findings": [], "stand_in": False})
            for place, (name, state) in enumerate(zip(NAMES, states, strict=False), 1)]  # fmt: skip
    return run.Result(rows, {"step time, s": 0.1}, ["the network"], {"torch": "2.15.0"})


@pytest.fixture
def proven(work: Path, monkeypatch: pytest.MonkeyPatch) -> list[run.Result]:
    answers = [result(*[State.PASS] * 10)]
    monkeypatch.setattr(run, "prove", lambda subject, options, records: answers[0])
    return answers


def called(*words: str) -> Any:
    return started(*words, "--", "python", "train.py")


def started(*words: str) -> Any:
    command = cli.yard.get_command(click.Context(cli.yard), "prove")
    assert command is not None
    return CliRunner().invoke(command, words, standalone_mode=False)


def test_the_result_is_printed_written_and_kept(proven: list[run.Result], work: Path) -> None:
    done = called("--only", "trains", "--out", "proof.json", "--report", "proof.html")
    assert done.return_value == 0, done.output
    assert "PASS: 1. It trains: text\n  line" in done.output
    assert "CANNOT TELL: the network" in done.output
    kept = json.loads((work / "proof.json").read_text(encoding="utf-8"))
    assert [row["claim"] for row in kept["claims"]] == NAMES
    assert (kept["name"], kept["figures"], kept["not_proven"]) == ("train.py", {"step time, s": 0.1}, ["the network"])
    assert "It trains" in (work / "proof.html").read_text(encoding="utf-8")
    assert "kept:" not in done.output
    assert json.loads(called("--only", "trains", "--json").stdout)["claims"] == kept["claims"]


@pytest.mark.parametrize(
    ("state", "code", "strict"), [(State.FAIL, 1, 1), (State.WARN, 0, 1), (State.CANNOT_TELL, 3, 3)]
)
def test_exit_codes(state: State, code: int, strict: int, proven: list[run.Result]) -> None:
    proven[0] = result(state)
    assert called("--only", "trains").return_value == code
    assert called("--only", "trains", "--strict").return_value == strict


def test_a_script_is_not_taken_for_a_cell(proven: list[run.Result], work: Path) -> None:
    (work / "there").mkdir()
    (work / "there/start").write_text("#!/bin/sh\n", encoding="utf-8")
    (work / "there/start").chmod(0o755)
    assert started("--only", "trains", "--workdir", "there", "./start").return_value == 0
    for words, said in ((("--workdir", "there", "start"), "is a script"), (("trian.py",), "no such program")):
        refused = started("--only", "trains", *words)
        assert isinstance(refused.exception, UserError)
        assert said in refused.exception.message


def test_the_command_of_a_file_needs_a_yes(proven: list[run.Result], work: Path) -> None:
    (work / "job.yaml").write_text(JOB.replace("OUT", "out"), encoding="utf-8")
    refused = started("-f", "job.yaml", "--only", "trains")
    assert isinstance(refused.exception, UserError)
    assert "would run with your rights" in str(refused.exception)
    assert started("-f", "job.yaml", "--only", "trains", "--yes").return_value == 0
