"""Claim 7: the script saves when Kubernetes sends SIGTERM to process 1, and ends in time."""

import itertools

from tools.core import output
from tools.prove.claims import Finding, passed, unknown, warned
from tools.prove.observed import Proof, Run
from training.prove.records import Injected, Save


def judge(proof: Proof) -> list[Finding]:
    """Judge what the script did between SIGTERM and its end."""
    run = proof.run("term")
    reason = proof.why_not("term") or run.not_injected("terminate")
    if reason:
        return [unknown(reason)]
    outcome = run.result
    step = max(event.step for event in run.injected("terminate"))
    saved = max((save.step for save in _after(run)), default=None)
    seconds = outcome.fault_seconds or 0.0
    when = f"SIGTERM after step {step}; ended {seconds:.1f} s later with exit code {outcome.exit_code}"
    if not run.checkpoints and proof.run("whole").no_save:
        return [unknown(proof.run("whole").no_save, when)]
    late = outcome.ended_by == "timeout"
    at_end = (
        any(end.reason == "steps" for end in run.ends()) or run.last_step >= proof.run("whole").last_step > step + 1
    )
    if at_end or (late and run.last_step > step + 1):
        text = f"SIGTERM after step {step}; it trained to step {run.last_step}"
        return [warned("ignored", "SIGTERM has no effect: the run continues to train", text)]
    if late:
        text = f"SIGTERM after step {step}; killed after the grace period of {proof.grace:.0f} s"
        return [warned("not-in-time", "the run does not end in the grace period", text)]
    if saved is None or saved < step:  # an earlier save may end after the signal, in a thread of its own
        last = max((save.step for _, save in run.saves), default=0)
        lost = f"{output.count(step - last, 'step')} lost: the last save is that of step {last}"
        return [warned("not-saved", "nothing is saved on SIGTERM", when, lost)]
    return [passed(f"saved after step {saved}, no step is lost", when)]


def _after(run: Run) -> list[Save]:
    """Return the saves that began after the signal."""
    later = (itertools.dropwhile(lambda event: not isinstance(event, Injected), rank.events) for rank in run.ranks)
    return [event for events in later for event in events if isinstance(event, Save)]
