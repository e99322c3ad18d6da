"""Proofs that are kept: what they are of, what a job is told of them, and what preflight says."""

from __future__ import annotations

import dataclasses
import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tools.cli import invoke
from tools.core import tables
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.kube.manifests import Manifests, parse
from tools.prove import proofs, report
from tools.prove.claims import NAMES
from tools.prove.proofs import Program, Saved

COMMAND = ["torchrun", "--nproc-per-node", "2", "train.py", "--model", "small"]
DIGEST = "@sha256:" + "1" * 64
HOSTILE = "<script>alert(1)</script>\u202e hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def of(here: Path, *command: str, **files: str) -> Program:
    return proofs.program(command or COMMAND, here, files)


def proof(what: Program, states: dict[str, State] | None = None, days: float = 0, image: str = "") -> Saved:
    """A proof in which every claim is a PASS but those of `states`."""
    verdicts = [
        Verdict(
            (states or {}).get(name, State.PASS),
            f"about {name}",
            ["rank 0"],
            "do it\nx = 1",
            {"claim": name, "number": at},
        )
        for at, name in enumerate(NAMES, start=1)
    ]
    made = proofs.saved(what, verdicts, {"torch": "2.15.0"}, {"step_seconds": 0.1}, ["NCCL"], image)
    date = datetime.now(UTC) - timedelta(days=days, minutes=1)
    return dataclasses.replace(made, date=date.isoformat(timespec="seconds"))


def job(*command: str, image: str = "example.com/a:1") -> Manifests:
    pod = {"containers": [{"name": "pytorch", "image": image, "command": list(command or COMMAND)}]}
    item: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "mine"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": pod}}}},
    }
    return parse(json.dumps(item), "job.yaml")


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node=4 --nnodes 2 train.py --model small",
        "python -u train.py --model small",
        "accelerate launch --cpu --num_processes 2 train.py --model small",
        "bash -c 'exec torchrun train.py --model small'",
        "env A=1 torchrun ./train.py --model small",
    ],
)
def test_a_launcher_and_its_options_are_no_part_of_the_digest(here: Path, command: str) -> None:
    assert of(here, *shlex.split(command)) == of(here)


def test_the_path_is_no_part_of_the_digest(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "train.py").rename(here / "sub/other.py")
    moved = of(here, "torchrun", "sub/other.py", "--model", "small")
    (here / "train.py").write_text("print(1)\n")
    assert moved.digest == of(here).digest
    assert moved.name == "other.py"


def test_content_arguments_configuration_and_files_change_the_digest(here: Path) -> None:
    (here / "a.yaml").write_text("x: 1")
    configured = ("python", "train.py", "--config=a.yaml")
    seen = [of(here), of(here, *COMMAND, "--epochs", "2"), of(here, **{"/etc/x.yaml": "a"}), of(here, *configured)]
    (here / "a.yaml").write_text("x: 2")
    seen.append(of(here, *configured))
    (here / "train.py").write_text("print(2)\n")
    seen.append(of(here))
    (here / "train.py").unlink()
    seen.append(of(here))
    assert len({one.digest for one in seen}) == 7
    assert seen[-1].content is None


def test_a_module_is_found_in_the_directory(here: Path) -> None:
    (here / "pkg").mkdir()
    (here / "pkg/__main__.py").write_text("print(1)\n")
    found = of(here, "torchrun", "-m", "pkg", "--x")
    assert (found.name, found.arguments, found.content) == ("-m pkg", ["--x"], of(here).content)
    assert of(here, "python", "-m", "elsewhere").content is None


@pytest.mark.parametrize("command", [["torchrun"], ["python"], ["./x\0y"], ["bash", "run.sh"], ["python", "-m", "."]])
def test_any_command_has_a_digest(here: Path, command: list[str]) -> None:
    assert len(of(here, *command).digest) == 32


def test_a_proof_is_read_as_it_was_written_and_has_no_secret(here: Path) -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"
    made = proof(of(here, *COMMAND, "--token", token))
    path = proofs.write(made, here / "proofs")
    assert path.name == f"{made.digest}.json"
    assert proofs.read(path) == made
    assert token not in path.read_text()
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"claims": [{"claim": "trains", "verdict": "GOOD"}]},
        {"claims": [{"claim": "unknown", "verdict": "PASS", "number": 1, "summary": "", "evidence": [], "remedy": ""}]},
        {"claims": 3},
        {"arguments": [1]},
        {"date": "2026-01-01"},
        {"date": "yesterday"},
        {"more": 1},
    ],
)
def test_a_file_of_another_form_is_no_proof(here: Path, change: dict[str, Any]) -> None:
    path = proofs.write(proof(of(here)), here)
    assert proofs.every(here) != []
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert proofs.every(here) == []
    for text in ("", "[" * 9000, "null", "\xff"):
        path.write_text(text, encoding="latin-1")
        assert proofs.every(here) == []


def kept(here: Path, *made: Saved) -> Path:
    for one in made:
        proofs.write(one, here / "proofs")
    return here / "proofs"


def line(here: Path, *made: Saved, manifests: Manifests | None = None) -> str:
    return proofs.line(manifests or job(), kept(here, *made), here)


def test_what_a_job_is_told(here: Path) -> None:
    inexact = {"resume": State.FAIL}
    tiny = proof(of(here, *COMMAND[:-1], "tiny"))
    assert line(here, tiny) == "proven with other arguments: --model tiny"
    assert line(here, tiny, proof(of(here), inexact, days=2)) == "proven 2 days ago, 9 of 10, resume not exact"
    assert line(here, proof(of(here), days=0.1)) == "proven 2 hours ago, 10 of 10"
    assert line(here, manifests=job("torchrun", "other.py")) == "not proven"
    (here / "train.py").write_text("print(2)\n")
    assert line(here) == "proven with another version of train.py"


def test_claims_that_were_not_tried_or_are_unknown_are_named(here: Path) -> None:
    made = proof(of(here), {"sigterm": State.CANNOT_TELL})
    made = dataclasses.replace(made, claims=made.claims[:-1])
    assert line(here, made) == "proven 1 minute ago, 8 of 10, saves on sigterm: unknown, files: not tried"


def test_a_script_that_is_only_in_the_image_is_known_by_the_digest_of_the_image(here: Path) -> None:
    pinned = job(image="example.com/a" + DIGEST)
    made = proof(of(here), image="example.com/a" + DIGEST)
    away = here / "away"
    away.mkdir()
    directory = kept(here, made)
    assert proofs.line(pinned, directory, away).startswith("proven 1 minute ago")
    unsure = "proven with a script of this name; the job's own is not on this machine"
    assert proofs.line(job(), directory, away) == unsure
    (verdict,) = proofs.check(directory, job(), here=away)
    assert verdict.state is State.CANNOT_TELL


def test_without_proofs_nothing_of_the_job_is_read(here: Path) -> None:
    class Unread(Manifests):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    assert proofs.line(object.__new__(Unread), here / "none", here) == "not proven"
    with pytest.raises(AssertionError):  # the control
        line(here, proof(of(here)), manifests=object.__new__(Unread))


@pytest.mark.parametrize(
    ("states", "state", "summary"),
    [
        ({}, State.PASS, "train.py: 10 of 10"),
        ({"data": State.WARN}, State.PASS, "9 of 10, ranks share data"),
        ({"torn": State.FAIL}, State.FAIL, "9 of 10, a torn save ends it"),
        ({"resume": State.CANNOT_TELL}, State.CANNOT_TELL, "comes back after sigkill: unknown"),
        ({"rescale": State.CANNOT_TELL}, State.PASS, "another world: unknown"),
        (None, State.FAIL, "train.py has no proof"),
    ],
)
def test_what_preflight_says_of_a_proof(
    here: Path, states: dict[str, State] | None, state: State, summary: str
) -> None:
    directory = kept(here) if states is None else kept(here, proof(of(here), states))
    directory.mkdir(exist_ok=True)
    (verdict,) = proofs.check(directory, job(), here=here)
    assert verdict.state is state
    assert summary in verdict.summary
    assert verdict.evidence[0] == "PyTorchJob/mine: train.py --model small"


def test_other_arguments_and_lost_claims_fail(here: Path) -> None:
    part = dataclasses.replace(proof(of(here)), claims=proof(of(here)).claims[:3])
    directory = kept(here, proof(of(here, *COMMAND[:-1], "tiny")))
    assert [one.state for one in proofs.check(directory, job(), here=here)] == [State.FAIL]
    assert [one.state for one in proofs.check(kept(here, part), job(), here=here)] == [State.FAIL]
    with pytest.raises(UserError, match="no such directory"):
        proofs.check(here / "none", job(), here=here)


def test_preflight_reads_proofs_only_with_the_option(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    (here / "job.yaml").write_text(json.dumps(job().objects[0]))
    kept(here, proof(of(here), {"torn": State.FAIL}))
    plain = invoke(["preflight", "-f", "job.yaml"])
    assert "proof" not in capsys.readouterr().out
    assert invoke(["preflight", "-f", "job.yaml", "--proof", "proofs"]) == 1
    said = capsys.readouterr().out
    assert "FAIL proof: train.py: 9 of 10, a torn save ends it" in said
    assert "FAIL 6 torn: about torn" in said
    assert f"why: {proofs.REASON}" in said
    kept(here, proof(of(here)))
    assert invoke(["preflight", "-f", "job.yaml", "--proof", "proofs"]) == plain
    assert invoke(["preflight", "-f", "job.yaml", "--proof", "none"]) == 2


def test_every_claim_has_a_short_text() -> None:
    rows = tables.load("prove/claims.yaml")["claims"].values()
    assert len({row["otherwise"] for row in rows}) == len(NAMES)


def test_the_report_is_one_page_without_scripts_that_escapes_the_script(here: Path) -> None:
    made = proof(of(here, *COMMAND, HOSTILE), {"torn": State.FAIL})
    claims = [{**one, "summary": HOSTILE, "evidence": [HOSTILE], "remedy": HOSTILE} for one in made.claims]
    hostile = {HOSTILE: HOSTILE}
    made = dataclasses.replace(
        made, name=HOSTILE, claims=claims, figures=hostile, versions=hostile, not_proven=[HOSTILE], image=HOSTILE
    )
    path = here / "out/report.html"
    report.write(path, made)
    text = path.read_text()
    assert "<script" not in text
    assert "\u202e" not in text
    assert "AbCdEfGhIjKl" not in text
    assert "src=" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("&lt;script&gt;") > 30


def test_the_report_has_the_claims_figures_and_what_was_not_proven(here: Path) -> None:
    text = report.shown(proof(of(here), {"torn": State.FAIL}))
    for row in tables.load("prove/claims.yaml")["claims"].values():
        assert f"{row['title']}</h3>" in text
    assert '<b class="FAIL">FAIL</b>6. Survives a torn save' in text
    assert "<pre>do it\nx = 1</pre>" in text
    assert "<th>step_seconds</th><td>0.1</td>" in text
    assert "<li><code>NCCL</code></li>" in text
    assert "torch</th><td>2.15.0" in text
