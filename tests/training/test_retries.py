"""The key `retry` of a cell: which failures process 1 lets the ranks try again, and how often."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.inprocess import Texts
from training.config import ConfigError, apply_override, load_texts
from training.pod.retries import Retries
from training.run.directory import RunDir
from training.run.failure import CODES, Failure, write


def configured(texts: Texts, directory: Path, *overrides: str) -> list[str]:
    """Write a configuration, and return a command that names it."""
    directory.mkdir()
    for override in overrides:
        texts = apply_override(texts, override)
    for layer, (_, text) in texts.items():
        (directory / f"{layer}.yaml").write_text(text)
    return ["torchrun", "-m", "training.pretrain", "--config", str(directory)]


class Pod:
    """A pod's decisions after failures that its run directory shows."""

    def __init__(self, words: list[str], run: RunDir) -> None:
        self.run, self.retries = run, Retries(run, words)

    def fail(self, step: int | None, kind: str = "killed") -> str | None:
        """Let rank 1 fail, and rank 0 lose its peer; return the refusal, None without a decision."""
        now = time.time()
        for rank, what in ((0, "lost peer"), (1, kind)):
            write(Failure(what, rank, "host", 7, step, f"the end of rank {rank}", "", now + rank / 1000), self.run)
        records = [one for one in map(_read, sorted(self.run.failures.glob("*.json"))) if one is not None]
        decision = self.retries.decide(records, ended=True)
        return None if decision is None else decision.refusal


def _read(path: Path) -> Failure | None:
    from training.run.failure import _read as read

    return read(path)


def test_failures_are_bounded_by_class_number_and_progress(
    texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run = RunDir(tmp_path / "run")
    two = configured(texts, tmp_path / "two", "retry={classes: [killed, hang], most: 2}")
    pod = Pod(two, run)
    assert pod.fail(5) == ""
    assert "no new step since the failure before: step 5 now, step 5 then" in (pod.fail(5) or "")
    counted = Pod(two, RunDir(tmp_path / "counted"))
    assert [counted.fail(step) for step in (None, 5, 6)][:2] == ["", ""]
    assert counted.fail(9) == "they were started again 3 times, and retry.most is 2"
    assert Pod(two, run).fail(7, "communication") == "retry.classes does not have communication"
    assert Pod(two, run).fail(7, "config") is None, "the ranks are ended for another reason"
    assert Pod(configured(texts, tmp_path / "none"), run).fail(7) is None, "the key is not set"
    kept = [json.loads(path.read_text()) for path in sorted((run.path / "retries").glob("*.json"))]
    assert [(one["class"], one["rank"], one["count"], bool(one["refusal"])) for one in kept] == [
        ("killed", 1, 1, False), ("killed", 1, 2, True), ("communication", 1, 1, True),
    ]  # fmt: skip


def test_ranks_that_lost_their_peer_wait_for_the_cause(
    texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun reports a killed rank when the others have ended, which can take half a minute."""
    words = configured(texts, tmp_path / "two", "retry={classes: [killed], most: 2}")
    begun = time.time() + 1
    lost = Failure("lost peer", 0, "host", 7, 5, "closed by peer", "", begun)
    killed = Failure("killed", 1, "host", 8, 5, "killed by SIGKILL", "", begun + 20)

    def refusal(records: list[Failure], seconds: float) -> str | None:
        retries = Retries(RunDir(tmp_path / "run"), words)
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: begun + seconds)
            decision = retries.decide(records, ended=False)
        return None if decision is None else decision.refusal

    assert refusal([lost], 20) is None
    assert refusal([lost, killed], 20.5) is None
    assert refusal([lost, killed], 21.5) == ""
    assert refusal([lost], 36) == "retry.classes does not have lost peer"


def test_the_configuration_is_found_in_one_word_too(texts: Texts, tmp_path: Path) -> None:
    words, run = configured(texts, tmp_path / "one", "retry={most: 1}"), RunDir(tmp_path / "run")
    assert Pod([*words[:-2], f"--config={words[-1]}"], run).fail(5) == ""
    assert Pod(words[:-2], run).fail(7) is None, "without the option the key is unknown"


def test_a_restarted_container_counts_on(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("POD_UID", "1234")
    words, run = configured(texts, tmp_path / "one", "retry={most: 1}"), RunDir(tmp_path / "run")
    assert Pod(words, run).fail(5) == ""
    assert "started again 1 time" in (Pod(words, run).fail(9) or "")
    monkeypatch.setenv("POD_UID", "5678")
    assert Pod(words, run).fail(12) == "", "a new pod"


@pytest.mark.parametrize(("value", "said"), [
    ("{classes: [config]}", "'config' fails in the same way again; nearest value: "),
    ("{classes: [hangs]}", "'hangs' is not a class that can be retried; nearest value: hang"),
    ("{classes: transientt}", "'transientt' is not a class that can be retried; nearest value: transient"),
    ("{classes: []}", "is neither transient nor a list of classes"),
    ("{classes: [[killed, hang]]}", "is not a class that can be retried; nearest value: "),
    ("{most: -1}", "retry.most"),
    ("{clases: transient}", "did you mean retry.classes?"),
])  # fmt: skip
def test_a_wrong_key_is_one_error(value: str, said: str, texts: Texts) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        load_texts(apply_override(texts, f"retry={value}"))


@pytest.mark.parametrize("value", ["transient", "[transient]", "[hang, transient]"])
def test_transient_covers_the_other_classes(value: str, texts: Texts) -> None:
    retry = load_texts(apply_override(texts, f"retry={{classes: {value}}}")).retry
    assert retry is not None
    assert retry.classes == "transient"


DIES = """
import os, signal
from training import pretrain
from training.trainer import loop
from training.trainer.main import main
advance = loop._advance
begun = []

def dying(run, now, *rest):
    begun.append(now.step)
    if run.ranks.rank == 1 and now.step == begun[0] + int(os.environ["STEPS"]):
        os.kill(os.getpid(), signal.SIGKILL)
    advance(run, now, *rest)

loop._advance = dying
main(pretrain.TASK, None)
"""


@pytest.mark.long
@pytest.mark.parametrize(("steps", "most", "failures", "said"), [
    (7, 1, 2, "they were started again 1 time, and retry.most is 1"),
    (3, 5, 2, "there was no new step since the failure before: step 3 now, step 3 then"),
])  # fmt: skip
def test_process_1_carries_the_key_out(
    steps: int, most: int, failures: int, said: str, start: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are written every five steps: with 7 steps a life there is progress, with 3 there is none."""
    (tmp_path / "dies.py").write_text(DIES)
    own = {"STEPS": str(steps), "POD_UID": "9", "TMPDIR": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{os.getcwd()}",
           "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # fmt: skip
    shared = {"nproc": 2, "restarts": 9, "entrypoint": True, "module": "dies"}
    key = (f"retry={{most: {most}}}", "train.steps=100", "train.eval_every=100")
    job = start("run", **shared, overrides=key, **own)
    assert job.wait() == CODES["killed"], job.text()
    assert f"no other start follows: {said}" in job.text()
    assert len(list((job.run / "retries").glob("*.json"))) == failures
    again = start("run", **shared, overrides=key, **own)
    assert again.wait() == CODES["killed"]
    assert "this pod's last attempt ended the run" in again.text()
