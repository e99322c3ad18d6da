"""Claim 10: what is written survives a pod, each file has one writer, and no secret is in it."""

import os
from collections import defaultdict

from tools.core import output
from tools.prove.claims import Finding, failed, harmless, passed, unknown, warned
from tools.prove.observed import Proof, Run
from training.prove.records import UNSEEN

SHOWN = 4


def judge(proof: Proof) -> list[Finding]:
    """Judge the files and saves of the uninterrupted run."""
    run = proof.run("whole")
    found = [*_secrets(run), *_places(run), *_one_path(run), *_overwritten(run)]
    if not run.checkpoints:
        found.append(_without_save(run))
    kept = sum(one.kept for one in run.result.files)
    text = f"{output.count(len(run.checkpoints), 'save')}; {output.count(kept, 'file')} in what survives"
    return found or [passed("each file has one writer and survives the pod", text)]


def _without_save(run: Run) -> Finding:
    blind = run.uncovered("saves")
    if blind:
        return unknown(blind)
    if run.unseen_saves:
        return unknown(UNSEEN, *_some(run.unseen_saves))
    said = f"{run.last_step} steps, no save"
    if any(end.reason == "steps" for end in run.ends()):
        text = f"no checkpoint is written in {run.last_step} steps: a kill in them loses everything"
        return warned("no-checkpoint", text, f"{said}; the proof ended the run there: --steps looks further")
    return warned("no-checkpoint", "no checkpoint is written: a kill loses everything", said)


def _secrets(run: Run) -> list[Finding]:
    rows = [f"{one.path}: {one.secret}" for one in run.result.files if one.secret]
    return [failed("secret", "a secret is written to a file", *_some(rows))] if rows else []


def _places(run: Run) -> list[Finding]:
    """Return what lies outside of the paths that survive: checkpoints, then other files."""
    lost = lost_checkpoints(run)
    if lost:
        return [failed("checkpoint-outside", "a checkpoint is written where it does not survive the pod", *_some(lost))]
    other = sorted(one.path for one in run.result.files if not one.kept and not harmless(one.path))
    if other:
        return [warned("files-outside", "files are written where they do not survive the pod", *_some(other))]
    return []


def lost_checkpoints(run: Run) -> list[str]:
    """Return the files of checkpoints that a restart does not find, because they lie outside of what survives."""
    outside = {one.path for one in run.outcome.files if not one.kept} if run.outcome else set()
    saved = {save.path for _, save in run.checkpoints}
    return sorted(path for path in outside if path in saved or _in_checkpoint(path, saved))


def _in_checkpoint(path: str, saved: set[str]) -> bool:
    """Whether a file is a saved one under another name: a script renames what it has written."""
    folder = os.path.dirname(path)
    return any(os.path.dirname(one) == folder and os.path.splitext(one)[0] == os.path.splitext(path)[0]
               for one in saved)  # fmt: skip


def _one_path(run: Run) -> list[Finding]:
    writers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for rank, save in run.saves:
        writers[save.path, save.step].add(rank)
    rows = [f"{path}, after step {step}: ranks {', '.join(map(str, sorted(ranks)))}"
            for (path, step), ranks in sorted(writers.items()) if len(ranks) > 1]  # fmt: skip
    return [failed("one-path", "several ranks write one file at once", *_some(rows))] if rows else []


def _overwritten(run: Run) -> list[Finding]:
    rows = list(
        dict.fromkeys(f"{save.path}, after step {save.step}" for _, save in run.checkpoints if save.overwritten)
    )
    text = "a checkpoint is overwritten in place: a kill in the middle loses the old and the new one"
    return [warned("overwritten", text, *_some(rows))] if rows else []


def _some(rows: list[str]) -> list[str]:
    return rows[:SHOWN] + ([f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])
