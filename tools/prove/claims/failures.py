"""Claim 8: a rank that fails or hangs ends the whole job, with an exit code that says so."""

from tools.prove.claims import Finding, failed, passed, unknown, warned
from tools.prove.observed import Proof


def judge(proof: Proof) -> list[Finding]:
    """Judge an exception in one rank, and a rank that hangs."""
    found = [*_exception(proof), *_hang(proof)]
    told = [one for one in found if one.state is not passed("").state]
    good = [one.summary for one in found if one not in told]
    return told or [passed("; ".join(good), *(line for one in found for line in one.evidence))]


def _exception(proof: Proof) -> list[Finding]:
    run = proof.run("exception")
    reason = proof.why_not("exception") or run.not_injected("exception")
    if reason:
        return [unknown(reason)]
    outcome, event = run.result, run.injected("exception")[0]
    where = f"exception in rank {event.rank} after step {event.step}"
    if outcome.ended_by == "timeout":
        text = f"{where}: the other ranks still ran {outcome.fault_seconds or 0:.0f} s later"
        return [failed("not-ended", "a failed rank does not end the job", text)]
    if outcome.exit_code == 0:
        return [failed("hidden", "a failed rank ends the job with exit code 0", where)]
    text = f"{where}: exit code {outcome.exit_code} after {outcome.fault_seconds or 0:.1f} s"
    return [passed("an exception in one rank ends the job", text)]


def _hang(proof: Proof) -> list[Finding]:
    run = proof.run("hang")
    if len(proof.run("whole").ranks) == 1:
        return [passed("one rank has no other that waits for it")]
    reason = proof.why_not("hang") or run.not_injected("hang")
    if reason:
        return [unknown(reason)]
    outcome, event = run.result, run.injected("hang")[0]
    worlds = run.worlds()
    limit = f"{max(world.timeout for world in worlds):,.0f} s" if worlds else ""
    shortened = any(world.shortened for world in worlds)
    where = f"rank {event.rank} blocked after step {event.step}"
    if outcome.ended_by == "timeout":
        said = f"; the group's time-out is {limit}" if limit else ""
        waited = f"{outcome.fault_seconds or 0:.0f} s"
        text = f"{where}: not ended within {waited}{said}"
        return [warned("hang-not-ended", f"a hung rank does not end the job within {waited}", text)]
    by = f" by the group's time-out of {limit}, shortened for this trial," if shortened else ""
    text = f"{where}: exit code {outcome.exit_code} after {outcome.fault_seconds or 0:.1f} s"
    if outcome.exit_code == 0:
        return [failed("hidden", "a hung rank ends the job with exit code 0", text)]
    return [passed(f"a hung rank ends the job{by}".rstrip(","), text)]
