"""HyperPod's log-monitoring rules tried on a log: which rule fires, at which line, when, and what the agent does.

It follows LogEvaluator of hyperpod-elastic-agent 1.1.3 (PyPI, November 2026; logagent/log_agent.py): a pattern must
match from the start of a line, the agent looks once a second also without a new line, and an error in one rule ends
the judgement of that line for all of them. The agent reads the file of one local rank, whose lines have no prefix.
"""

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.core import State, UserError, Verdict
from tools.core.output import count, short
from tools.job.snapshot.log_lines import Line

KEYS = {
    "name": str, "logPattern": str, "expectedStartCutOffInSeconds": int, "expectedRecurringFrequencyInSeconds": int,
    "stopPattern": str, "metricThreshold": int, "operator": str, "metricEvaluationDataPoints": int,
    "faultOnMatch": bool,
}  # fmt: skip
OPERATORS = {
    "gt": float.__gt__, "lt": float.__lt__, "eq": float.__eq__, "gteq": float.__ge__, "lteq": float.__le__,
}  # fmt: skip
REPORTED = {"HANGING": "LogHang", "SLOW": "LogSlow", "FAULTED": "LogFault"}  # the agent's reason for a faulted pod
_PREFIX = re.compile(r"\[[A-Za-z_]+(\d+)\]: ?")  # of torchrun --tee, as in the log of a pod
_LONGEST = 2000  # characters of a pattern
_ANCHORS_AT_START = {codes.AT_BEGINNING, codes.AT_BEGINNING_STRING}
_ANCHORS_AT_END = {codes.AT_END, codes.AT_END_STRING}


@dataclass(frozen=True)
class Event:
    """A change of one rule's state: the line's number, or the one before the silence, and seconds from the start."""

    state: str
    line: int
    seconds: float | None
    reason: str


@dataclass
class _Rule:
    """One rule and where it stands, as the agent's LogEvaluator."""

    given: dict[str, Any]
    pattern: re.Pattern[str]
    stop: re.Pattern[str] | None
    events: list[Event] = field(default_factory=list)
    state: str = "WAITING"
    active: bool = True
    matched: float | None = None
    matches: int = 0
    slow: int = 0

    def to(self, state: str, line: int, seconds: float | None, reason: str) -> None:
        if state != self.state:
            self.state = state
            self.events.append(Event(state, line, seconds, reason))

    def silence(self, until: float, line: int) -> None:
        """Judge the time up to a moment in which nothing was printed."""
        if not self.active:
            return
        start, again = (self.given.get(f"expected{key}InSeconds") for key in ("StartCutOff", "RecurringFrequency"))
        if start is not None and self.matched is None and until > start:
            self.to("HANGING", line, float(start), f"no line matched within {start} s of the start")
        if again is not None and self.matched is not None and until - self.matched > again:
            self.to("HANGING", line, self.matched + again, f"no line matched for {again} s")

    def take(self, text: str, line: int, seconds: float | None) -> None:
        """Judge one line. Raises ValueError for a value that is not a number, as the agent does."""
        if not self.active:
            return
        found = self.pattern.match(text)
        if found:
            self.matched, self.matches = seconds if seconds is not None else self.matched, self.matches + 1
            if self.given.get("faultOnMatch"):
                self.to("FAULTED", line, seconds, f"matched: {short(text)}")
                return
        if self.stop and self.stop.match(text):
            self.active = False
            self.to("HEALTHY", line, seconds, "stopPattern matched, the rule ends")
        elif found:
            self._measure(found, line, seconds)

    def _measure(self, found: re.Match[str], line: int, seconds: float | None) -> None:
        threshold, operator = self.given.get("metricThreshold"), self.given.get("operator")
        if not found.groups() or threshold is None or operator is None:
            self.to("HEALTHY", line, seconds, f"matched: {short(found.string)}")
            return
        value = float(found[1])
        self.slow = self.slow + 1 if OPERATORS[operator](value, float(threshold)) else 0
        points = self.given.get("metricEvaluationDataPoints", 1)
        if self.slow >= points:
            reason = f"{value:g} is {operator} {threshold}, {count(points, 'time')} in a row"
            self.to("SLOW", line, seconds, reason)
        else:
            self.to("HEALTHY", line, seconds, f"matched: {short(found.string)}")


def rules_of(value: Any, source: str) -> list[dict[str, Any]]:
    """Return the rules in a manifest's HyperPodPyTorchJob, in a mapping with the key, or in a list.

    Raises UserError if there are none.
    """
    found: Any = value if isinstance(value, list) else []
    if isinstance(value, dict):
        spec = value.get("spec")
        policy = spec.get("runPolicy") if isinstance(spec, dict) else value
        found = policy.get("logMonitoringConfiguration") if isinstance(policy, dict) else []
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{source}: no logMonitoringConfiguration", "a HyperPodPyTorchJob has it in spec.runPolicy")
    return found


def check(rules: Sequence[dict[str, Any]], lines: Sequence[Line]) -> list[Verdict]:
    """Return a verdict for each rule: FAIL if it is wrong, cannot match or fires, CANNOT TELL without times."""
    wrong = {index: fault for index, rule in enumerate(rules) if (fault := fault_of(rule))}
    good = [rule for index, rule in enumerate(rules) if index not in wrong]
    streams = _streams(lines)
    tried: dict[int, list[tuple[str, _Rule]]] = {}
    broken: dict[int, str] = {}
    for rank, stream in streams.items():
        made = [_Rule(one, re.compile(one["logPattern"]), _compiled(one.get("stopPattern"))) for one in good]
        for index, error in _run(made, stream):
            broken.setdefault(index, error)
        for index, one in enumerate(made):
            tried.setdefault(index, []).append((rank, one))
    judged = iter([_verdict(rows, broken.get(index, ""), streams) for index, rows in tried.items()])
    return [_wrong(rule, wrong[index]) if index in wrong else next(judged) for index, rule in enumerate(rules)]


def _streams(lines: Sequence[Line]) -> dict[str, list[tuple[int, float | None, str]]]:
    """Return number, seconds and text of the lines of each rank, as in the files that the agent reads."""
    found: dict[str, list[tuple[int, float | None, str]]] = {}
    first = next((line.time for line in lines if line.time), None)
    for line in lines:
        prefix = _PREFIX.match(line.text)
        seconds = (line.time - first).total_seconds() if line.time and first else None
        rank = f"local rank {prefix[1]}" if prefix else ""
        found.setdefault(rank, []).append((line.number, seconds, line.text[prefix.end() if prefix else 0 :]))
    return found or {"": []}


def _run(rules: Sequence[_Rule], stream: Iterable[tuple[int, float | None, str]]) -> Iterator[tuple[int, str]]:
    """Judge the lines of one rank; yield each error, which ends the judgement of its line."""
    before = 0
    for number, seconds, text in stream:
        for index, rule in enumerate(rules):
            if seconds is not None:
                rule.silence(seconds, before)
            try:
                rule.take(text, number, seconds)
            except ValueError as problem:
                yield index, f"line {number}: {problem}: the agent judges this line by no rule after this one"
                break
        before = number


def fault_of(rule: dict[str, Any]) -> str | None:
    """Return why the agent would not load a rule, or why the rule can never match; None for a good one."""
    for key, value in rule.items():
        if key not in KEYS:
            return f"{short(key)} is not a key of a rule"
        if type(value) is not KEYS[key]:
            return f"{key} is {short(value)}, and not {'a number' if KEYS[key] is int else KEYS[key].__name__}"
    for key in ("name", "logPattern"):
        if not rule.get(key):
            return f"{key} is missing"
    if rule.get("operator", "gt") not in OPERATORS:
        return f"operator {short(rule['operator'])} is not one of {', '.join(OPERATORS)}"
    for key in ("logPattern", "stopPattern"):
        try:
            if key in rule and (reason := impossible(rule[key])):
                return f"{key} can never match: {reason}"
        except (re.error, OverflowError, RecursionError) as problem:
            return f"{key} is not a regular expression: {problem}"
    if {"operator", "metricThreshold"} <= rule.keys() and not re.compile(rule["logPattern"]).groups:
        return "logPattern has no group that holds the value for metricThreshold"
    return None


def impossible(pattern: str) -> str | None:
    """Return why no line can match a pattern from its start, None if one may. Raises re.error for no pattern."""
    if len(pattern) > _LONGEST:
        raise re.error(f"{len(pattern):,} characters, at most {_LONGEST:,}")
    re.compile(pattern)
    return _impossible(list(parser.parse(pattern)))


def _impossible(items: list[Any]) -> str | None:
    """Judge a sequence of parsed items: what stands before an anchor, behind the end, and beside a line's end."""
    taken, ended = 0, False
    for code, value in items:
        if code is codes.AT and value in _ANCHORS_AT_START and taken:
            return "^ stands behind text"
        if code is codes.AT and value in _ANCHORS_AT_END:
            ended = True
        elif code is codes.SUBPATTERN and (reason := _impossible(list(value[-1]))):
            return reason
        elif code is codes.BRANCH:
            reasons = [_impossible(list(branch)) for branch in value[1]]
            if all(reasons):
                return reasons[0]
        least = _least(code, value)
        if ended and least:
            return "text stands behind $"
        if code is codes.LITERAL and value == 10:
            ended = True  # a line ends there
        taken += least
    return None


def _least(code: Any, value: Any) -> int:
    """Return the fewest characters that one parsed item takes."""
    if code in (codes.AT, codes.ASSERT, codes.ASSERT_NOT, codes.GROUPREF, codes.GROUPREF_EXISTS):
        return 0
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return int(value[0]) * int(value[2].getwidth()[0])
    if code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
        return int((value[-1] if code is codes.SUBPATTERN else value).getwidth()[0])
    return min(int(branch.getwidth()[0]) for branch in value[1]) if code is codes.BRANCH else 1


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return None if pattern is None else re.compile(pattern)


def _wrong(rule: dict[str, Any], fault: str) -> Verdict:
    name = short(rule.get("name") or "a rule without a name")
    loads = "the agent loads none of the rules" if "never match" not in fault else "the rule never changes its state"
    return Verdict(State.FAIL, f"{name}: {fault}", [loads], "correct the rule", {"rule": name, "events": []})


def _verdict(rows: list[tuple[str, _Rule]], error: str, streams: dict[str, Any]) -> Verdict:
    """Return the verdict on one rule from its state in each rank's lines."""
    rule = rows[0][1].given
    events = [(rank, event) for rank, one in rows for event in one.events]
    fired = [(rank, event) for rank, event in events if event.state in REPORTED]
    details = {"rule": rule["name"], "events": [{"rank": rank, **vars(event)} for rank, event in events]}
    matches = sum(one.matches for _, one in rows)
    evidence = [_told(rank, event) for rank, event in (fired or events)[:5]]
    if error:
        return Verdict(State.FAIL, f"{rule['name']}: {error}", evidence, "make the group match a number", details)
    if fired:
        state = fired[0][1].state
        does = f"the agent reports its pod as faulted ({REPORTED[state]}_{rule['name']}), which restarts the job"
        summary = f"{rule['name']} fires: {state}; {does} by runPolicy.restartPolicy"
        return Verdict(State.FAIL, summary, evidence, None, details)
    timed = any(key.startswith("expected") for key in rule)
    if timed and all(seconds is None for stream in streams.values() for _, seconds, _ in stream):
        summary = f"{rule['name']}: the log has no times; {count(matches, 'line')} matched"
        return Verdict(State.CANNOT_TELL, summary, evidence, "kubectl logs --timestamps prints them", details)
    if not matches:
        return Verdict(State.WARN, f"{rule['name']}: no line matched", [_inside(rule, streams)], None, details)
    return Verdict(
        State.PASS, f"{rule['name']}: does not fire; {count(matches, 'line')} matched", evidence, None, details
    )


def _inside(rule: dict[str, Any], streams: dict[str, Any]) -> str:
    """Return where the pattern occurs inside a line, which the agent does not see."""
    pattern = re.compile(rule["logPattern"])
    for stream in streams.values():
        for number, _, text in stream:
            if pattern.search(text):
                return f"line {number} has it, but not at its start: begin the pattern with .*"
    return "it is in no line of this log"


def _told(rank: str, event: Event) -> str:
    when = "" if event.seconds is None else f", {event.seconds:.0f} s after the first line"
    where = f"{rank}: " if rank else ""
    return f"{where}{event.state} at line {event.line}{when}: {event.reason}"
