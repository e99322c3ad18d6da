"""The ten judges. Each one is a pure function from what the starts recorded to findings."""

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tools.core import State, Verdict, output, tables, worst
from tools.prove import by_hand
from tools.prove.observed import TABLE, Proof, Run

NAMES: list[str] = list(TABLE["claims"])
NEEDED = ("trains", "world", "data", "resume")  # exit code 3 where one of these is unknown
BY_STEP = ("world", "resume", "torn", "rescale")  # compare what ranks have after the same step
EVIDENCE_LINES = 12


@dataclass
class Finding:
    """One finding of a judge. `name` is empty for PASS and CANNOT TELL, which have no remedy."""

    state: State
    summary: str
    evidence: list[str] = field(default_factory=list)
    name: str = ""


def passed(summary: str, *evidence: str) -> Finding:
    return Finding(State.PASS, summary, list(evidence))


def failed(name: str, summary: str, *evidence: str) -> Finding:
    return Finding(State.FAIL, summary, list(evidence), name)


def warned(name: str, summary: str, *evidence: str) -> Finding:
    return Finding(State.WARN, summary, list(evidence), name)


def unknown(reason: str, *evidence: str) -> Finding:
    return Finding(State.CANNOT_TELL, reason, list(evidence))


Judge = Callable[[Proof], list[Finding]]


def judge_all(names: Iterable[str], proof: Proof) -> list[Verdict]:
    """Return the verdicts on several claims. Where no step was taken, only the first one quotes the log."""
    first, *others = [judge(name, proof) for name in names]
    if not_trained(proof.run("whole")):
        others = [replace(one, evidence=[t for t in one.evidence if t not in first.evidence]) for one in others]
    return [first, *others]


def judge(name: str, proof: Proof) -> Verdict:
    """Return the verdict on one claim."""
    module = importlib.import_module(f"tools.prove.claims.{name}")
    whole = proof.run("whole")
    reason = not_trained(whole) if name != "trains" else ""
    said = [f"the log says: {whole.complaint()}"] if reason and whole.complaint() else []
    reason = reason or (whole.uncovered("steps") if name in BY_STEP else "")
    reason = reason or (by_hand.reason(whole) if name in by_hand.CLAIMS else "")
    findings = [unknown(reason, *said)] if reason else module.judge(proof)
    return verdict(name, findings, whole)


def verdict(name: str, findings: list[Finding], whole: Run) -> Verdict:
    """Join the findings of a claim: the worst one decides, and those that are not PASS make the summary."""
    state = worst(finding.state for finding in findings)
    told = [one for one in findings if one.state is not State.PASS] or findings
    told.sort(key=lambda one: [State.FAIL, State.CANNOT_TELL, State.WARN, State.PASS].index(one.state))
    summary = "; ".join(dict.fromkeys(one.summary for one in told))
    evidence = [line for one in told for line in one.evidence]
    more = [f"and {len(evidence) - EVIDENCE_LINES} more"] if len(evidence) > EVIDENCE_LINES else []
    fixes = filter(None, (remedy(name, one.name, whole) for one in told if one.name))
    details = {
        "claim": name,
        "number": NAMES.index(name) + 1,
        "findings": list(dict.fromkeys(one.name for one in told if one.name)),
        "stand_in": whole.stand_in,
    }
    return Verdict(
        state,
        masked(f"{summary} (on CPU)" if whole.stand_in else summary),
        [masked(line) for line in [*evidence[:EVIDENCE_LINES], *more]],
        "\n".join(dict.fromkeys(fixes)) or None,
        details,
    )


def masked(text: str) -> str:
    """Return a text of the script as one line without secrets and terminal bytes."""
    return output.visible(output.short(text, 600))


def not_trained(whole: Run) -> str:
    """Return why nothing but the first claim can be judged, or an empty text."""
    return whole.missing() or ("" if whole.trained else "the script took no optimizer step")


def framework(whole: Run) -> str:
    """Return the framework that a remedy is written for."""
    used = next((end.framework for end in whole.ends() if end.framework), "")
    if used:
        return used
    if whole.sharded:
        return "fsdp2"
    return "ddp" if len(whole.ranks) > 1 else "torch"


def remedy(claim: str, finding: str, whole: Run) -> str | None:
    """Return the lines that fix a finding, in the framework of the script."""
    row: Any = tables.load("prove/remedies.yaml").get(f"{claim}/{finding}")
    if isinstance(row, dict):
        row = row.get(framework(whole)) or row.get("any")
    return str(row).rstrip() if row else None


def exit_code(verdicts: Iterable[Verdict], strict: bool) -> int:
    """Return 1 with a FAIL (with `strict` also a WARN), 3 where a claim that must be known is not, else 0."""
    rows = list(verdicts)
    bad = {State.FAIL, State.WARN} if strict else {State.FAIL}
    if any(row.state in bad for row in rows):
        return State.FAIL.exit_code
    unclear = [row for row in rows if row.state is State.CANNOT_TELL and row.details.get("claim") in NEEDED]
    return State.CANNOT_TELL.exit_code if unclear else 0


def harmless(path: str) -> bool:
    """Return whether a file of this path may be lost: caches and temporary files."""
    return bool(re.search(TABLE["harmless"], path))
