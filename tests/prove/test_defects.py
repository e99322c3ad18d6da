"""The planted defects are found and healthy scripts are not blamed: a sample of what `make prove-bench` measures."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from tests.prove import bench, planted, proving, trainers
from tools.prove.observed import TABLE

SCRIPTS = planted.load()
DEFECTS = {f"{one.script}/{one.name}": one for script in SCRIPTS.values() for one in script.defects}
ALONE = {"world", "rescale"}  # claims that say little about one process


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_patch_fits_once_and_gives_a_script(name: str) -> None:
    """Except for a defect of the command alone, the script is another one."""
    healthy = SCRIPTS[name]
    for defect in healthy.defects:
        ast.parse(defect.text())
        assert defect.text() != healthy.text() or defect.command != healthy.command


def test_each_claim_has_defects_in_each_script() -> None:
    known = {f"{claim}/{name}" for claim, row in TABLE["claims"].items() for name in row["findings"]}
    assert {one.finding for one in DEFECTS.values()} <= known
    assert {name for script in SCRIPTS.values() for name in script.expected} <= known
    for script in SCRIPTS.values():
        claims = {one.claim for one in script.defects}
        missing = set(TABLE["claims"]) - claims - {name.partition("/")[0] for name in script.expected}
        assert missing <= (ALONE if script.name == "no_framework" else set()), script.name


def test_a_yard_that_gave_no_verdict_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept row without one, and a `yard` that fails, neither count nor are kept."""
    case = bench.Case("ddp/a", "1", lambda directory: ["a"], ["--no-such-option"], Path(sys.executable).parent)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "kept/bench.jsonl")
    monkeypatch.setattr(bench, "KEPT", tmp_path / "kept/results.jsonl")
    monkeypatch.setattr(bench, "cases", lambda scripts: iter([case]))
    assert bench.main([]) == 1
    assert not bench.RESULTS.exists()
    row = {"name": "ddp/a", "digest": "1", "code": 1, "states": {}, "found": {}, "seconds": 0.0}
    bench.RESULTS.parent.mkdir(exist_ok=True)
    bench.RESULTS.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert bench.results() == {}


def test_results_that_count_are_kept_for_other_clones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = bench.Case("ddp/no-sampler", "1", lambda directory: ["a"], [], Path(sys.executable).parent)
    monkeypatch.setattr(bench, "cases", lambda scripts: iter([case]))
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "bench.jsonl")
    monkeypatch.setattr(bench, "KEPT", tmp_path / "results.jsonl")
    row = {"code": 1, "states": {"data": "FAIL"}, "found": {"data/x": "FAIL"}, "seconds": 2.3, "evidence": ["long"]}
    names = {"ddp/no-sampler": "1", "ddp/world-of-one": "1"}  # the second one is not among the cases
    rows = [{"name": name, "digest": digest, **row} for name, digest in names.items()]
    bench.RESULTS.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    assert bench.main(["--keep"]) == 0
    bench.RESULTS.unlink()
    assert "no-sampler" in capsys.readouterr().out
    assert [(one.name, one.seconds, one.evidence) for one in bench.results().values()] == [("ddp/no-sampler", 2, [])]
    assert bench.main(["--keep", "ddp"]) == 2


def test_a_patch_that_does_not_fit_is_refused() -> None:
    defect = DEFECTS["ddp/no-sampler"]
    defect = planted.Defect(**{**vars(defect), "patches": [planted.Patch("no such text", "")]})
    with pytest.raises(ValueError, match="found 0 times"):
        defect.text()


# One defect of each claim, over four frameworks. `make prove-bench` proves all of them.
SAMPLE = (
    "ddp/two-optimized-copies", "hf_trainer/loader-of-its-own", "fsdp2/optimizer-not-saved", "ddp/saved-in-place",
    "no_framework/shell-as-process-1", "accelerate_script/every-rank-saves-the-model", "ddp/batch-for-each-rank",
    "hf_trainer/seed-of-the-clock", "ddp/world-of-one",
)  # fmt: skip
# Those of continuous integration.
SMOKE = ("ddp/two-optimized-copies", "fsdp2/optimizer-not-saved", "ddp/batch-for-each-rank")


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.smoke] if name in SMOKE else []) for name in SAMPLE]
)
def test_a_planted_defect_is_named(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    (tmp_path / f"{defect.script}.py").write_text(defect.text(), encoding="utf-8")
    options = ["--only", defect.claim, "--keep", "checkpoints", *defect.options]
    path = proving.programs(defect.script)
    assert path is not None
    answer = proving.prove(tmp_path, defect.command, *options, path=path)
    assert answer.found.get(defect.finding) == defect.state, f"{answer.rows}\n{answer.errors}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_our_pre_training_keeps_all_claims(tmp_path: Path) -> None:
    command = trainers.make("pretrain-ddp", tmp_path)
    answer = proving.prove(tmp_path, command, *trainers.options(tmp_path), path=Path(sys.executable).parent)
    assert answer.states() == dict.fromkeys(TABLE["claims"], "PASS"), f"{answer.rows}\n{answer.errors}"
    assert answer.code == 0
