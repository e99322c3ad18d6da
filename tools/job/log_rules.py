"""HyperPod's log-monitoring rules tried on a log: which rule fires, at which line, when, and what the agent does.

It follows LogEvaluator of hyperpod-elastic-agent 1.1.3 (PyPI, November 2026; logagent/log_agent.py): a pattern must
match from the start of a line, the agent looks once a second also without a new line, and an error in one rule ends
the judgement of that line for all of them. The agent reads the file of one local rank, whose lines have no prefix.
"""

import re
import re._compiler as compiler  # type: ignore[import-not-found]
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tools.core import State, UserError, Verdict
from tools.core.output import count, short
from tools.job.snapshot.log_lines import Line

KEYS: dict[str, type] = {
    "name": str, "logPattern": str, "expectedStartCutOffInSeconds": int, "expectedRecurringFrequencyInSeconds": int,
    "stopPattern": str, "metricThreshold": int, "operator": str, "metricEvaluationDataPoints": int,
    "faultOnMatch": bool,
}  # fmt: skip
OPERATORS = {
    "gt": float.__gt__, "lt": float.__lt__, "eq": float.__eq__, "gteq": float.__ge__, "lteq": float.__le__,
}  # fmt: skip
REPORTED = {"HANGING": "LogHang", "SLOW": "LogSlow", "FAULTED": "LogFault"}  # the agent's reason for a faulted pod
_PREFIX = re.compile(r"\[(?:default|trainer|worker)(\d+)\]: ?")  # of torchrun --tee with its roles, in a pod's log
_WORDS = {int: "a number", str: "a text", bool: "true or false"}
_LONGEST = 2000  # characters of a pattern
_PROOF_SECONDS = 1  # of the processor, for the proof of one pattern: nearly all take milliseconds
_LOG_SECONDS = 60  # for all patterns on all lines
_SIGNALS = {signal.ITIMER_VIRTUAL: signal.SIGVTALRM, signal.ITIMER_REAL: signal.SIGALRM}
_NOT_LOADED = "the agent loads none of the rules"
_TIMES = {"expectedStartCutOffInSeconds", "expectedRecurringFrequencyInSeconds"}
_STARTS = {codes.AT_BEGINNING, codes.AT_BEGINNING_STRING}
_ENDS = {codes.AT_END: 1, codes.AT_END_STRING: 0}  # characters that may follow: the line's own end
_CHARACTERS = {codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY}
_REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}


class _LateError(Exception):
    """The time for a pattern is used up."""


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
    spent: float = 0.0

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
        begun = time.perf_counter()
        try:
            self._judge(text, line, seconds)
        finally:
            self.spent += time.perf_counter() - begun

    def inside(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in a line."""
        begun = time.perf_counter()
        try:
            return self.pattern.search(text) is not None
        finally:
            self.spent += time.perf_counter() - begun

    def _judge(self, text: str, line: int, seconds: float | None) -> None:
        found = self.pattern.match(f"{text}\n")
        if found:
            self.matched, self.matches = seconds if seconds is not None else self.matched, self.matches + 1
            if self.given.get("faultOnMatch"):
                self.to("FAULTED", line, seconds, f"matched: {short(text)}")
                return
        if self.stop and self.stop.match(f"{text}\n"):
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
    if not isinstance(found, list) or not found:
        raise UserError(f"{source}: no logMonitoringConfiguration", "a HyperPodPyTorchJob has it in spec.runPolicy")
    if wrong := [one for one in found if not isinstance(one, dict)]:
        raise UserError(f"{source}: {short(wrong[0])} is not a rule", "a rule is a mapping with name and logPattern")
    return found


def check(rules: Sequence[dict[str, Any]], lines: Sequence[Line]) -> list[Verdict]:
    """Return a verdict for each rule: FAIL if it is wrong, cannot match or fires, CANNOT TELL without times.

    Raises UserError if the patterns take too long on the log.
    """
    wrong = {index: fault for index, rule in enumerate(rules) if (fault := fault_of(rule))}
    good = [rule for index, rule in enumerate(rules) if index not in wrong]
    streams = _streams(lines)
    tried = {rank: [_ready(one) for one in good] for rank in streams}
    try:
        with _limited(_LOG_SECONDS, signal.ITIMER_REAL):
            judged = iter(_judged(tried, streams))
    except _LateError:
        raise _too_slow([one for made in tried.values() for one in made]) from None
    return [_wrong(rule, *wrong[index]) if index in wrong else next(judged) for index, rule in enumerate(rules)]


def _judged(tried: dict[str, list[_Rule]], streams: dict[str, list[Any]]) -> list[Verdict]:
    """Run the rules of each rank on its lines; return a verdict for each rule."""
    broken: dict[int, str] = {}
    for rank, made in tried.items():
        for index, error in _run(made, streams[rank]):
            broken.setdefault(index, error)
    rows = zip(*tried.values(), strict=True)
    return [
        _verdict(list(zip(tried, row, strict=True)), broken.get(index, ""), streams) for index, row in enumerate(rows)
    ]


def _too_slow(rules: Sequence[_Rule]) -> UserError:
    slowest = max(rules, key=lambda one: one.spent).given["name"]
    text = f"the patterns took more than {_LOG_SECONDS} s on this log, longest those of the rule {short(slowest)}"
    return UserError(text, "a pattern with nested repeats, such as (a+)+, may never end; the agent has no limit", 1)


@contextmanager
def _limited(seconds: float, timer: int = signal.ITIMER_VIRTUAL) -> Iterator[None]:
    """Raise _LateError in the block after so many seconds, by default of the processor.

    Python's re looks for signals while it matches. A timer of the processor's time judges alike on a busy machine.
    """

    def late(*_: object) -> None:
        raise _LateError

    before = signal.signal(_SIGNALS[timer], late)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(_SIGNALS[timer], before)


def _streams(lines: Sequence[Line]) -> dict[str, list[tuple[int, float | None, str]]]:
    """Return number, seconds and text of the lines of each rank, as in the files that the agent reads.

    Beside lines of ranks, those without a rank are torchrun's own.
    """
    found: dict[str, list[tuple[int, float | None, str]]] = {}
    first = next((line.time for line in lines if line.time), None)
    for line in lines:
        prefix = _PREFIX.match(line.text)
        seconds = (line.time - first).total_seconds() if line.time and first else None
        rank = f"local rank {prefix[1]}" if prefix else ""
        found.setdefault(rank, []).append((line.number, seconds, line.text[prefix.end() if prefix else 0 :]))
    if len(found) > 1:
        found.pop("", None)
    return found or {"": []}


def _run(rules: Sequence[_Rule], stream: Iterable[tuple[int, float | None, str]]) -> Iterator[tuple[int, str]]:
    """Judge the lines of one rank; yield each error, which ends the judgement of its line."""
    before = 0
    for number, seconds, text in stream:
        if seconds is not None:
            for rule in rules:
                rule.silence(seconds, before)
        for index, rule in enumerate(rules):
            try:
                rule.take(text, number, seconds)
            except ValueError as problem:
                yield index, f"line {number}: {problem}: the agent judges this line by no rule after this one"
                break
        before = number


def fault_of(rule: dict[str, Any]) -> tuple[str, str] | None:
    """Return why a rule does not work, and what happens then; None for a good one."""
    for key, value in rule.items():
        if key not in KEYS:
            return f"{short(key)} is not a key of a rule", "the API server refuses or drops the key"
        if type(value) is not KEYS[key]:
            return f"{key} is {short(value)}, and not {_WORDS[KEYS[key]]}", "the API server refuses the job"
        if isinstance(value, int) and KEYS[key] is int and key != "metricThreshold" and value < 1:
            return f"{key} is {value}, and must be at least 1", "the rule fires on a run that is well"
    for key in ("name", "logPattern"):
        if not rule.get(key):
            return f"{key} is missing", _NOT_LOADED
    if rule.get("operator", "gt") not in OPERATORS:
        return f"operator {short(rule['operator'])} is not one of {', '.join(OPERATORS)}", _NOT_LOADED
    fires = "it fires at once" if rule.get("faultOnMatch") else "no silence fires"
    started = ("logPattern", "the rule never sees a line", fires)
    for key, never, always in (started, ("stopPattern", "the rule never ends", "the rule ends at once")):
        try:
            if key in rule and (reason := impossible(rule[key])):
                return f"{key} can never match: {reason}", never
            if key in rule and _matches_empty(rule[key]):
                each = "the agent tries one each second without a line"
                return f"{key} matches an empty text", f"{each}, so that {always}"
        except (re.error, OverflowError, RecursionError) as problem:
            return f"{key} is not a regular expression: {problem}", _NOT_LOADED
    if {"operator", "metricThreshold"} <= rule.keys() and not re.compile(rule["logPattern"]).groups:
        return "logPattern has no group that holds the value for metricThreshold", "the rule compares no value"
    if not (_TIMES & rule.keys() or rule.get("faultOnMatch") or {"operator", "metricThreshold"} <= rule.keys()):
        needs = f"{', '.join(sorted(_TIMES))}, faultOnMatch, or operator with metricThreshold"
        return f"it can never fire without {needs}", "the rule never changes what the agent does"
    return None


def impossible(pattern: str) -> str | None:
    """Return why no line can match a pattern from its start, None if one may. Raises re.error for no pattern.

    A reason is a proof. Patterns without one, such as `a*+a`, may still be impossible.
    """
    if len(pattern) > _LONGEST:
        raise re.error(f"{len(pattern):,} characters, at most {_LONGEST:,}")
    re.compile(pattern)
    return _impossible(parser.parse(pattern), 0, 0)


def _matches_empty(pattern: str) -> bool:
    """Whether a pattern matches an empty text, as far as that is known in time."""
    try:
        with _limited(_PROOF_SECONDS):
            return re.match(pattern, "") is not None
    except _LateError:
        return False


def _impossible(items: Any, least: int, most: int) -> str | None:
    """Judge parsed items in turn, which begin behind `least` to `most` characters of the line."""
    room: int | None = None  # characters that the line can still have: its end is reached
    for code, value in _flat(items):
        item = parser.SubPattern(items.state, [(code, value)])
        low, high = item.getwidth()
        if reason := _reason(item, least, most):
            return reason
        if room is not None and low:
            if low > room or (code in _CHARACTERS and not compiler.compile(item).match("\n")):
                return "text stands behind the end of the line"
            room -= low
        if code is codes.AT and value in _ENDS:
            room = min(_ENDS[value], 1 if room is None else room)
        elif code is codes.LITERAL and value == ord("\n"):
            room = 0
        least, most = least + low, most + high
    return None


def _reason(item: Any, least: int, most: int) -> str | None:
    """Return why one item cannot match in its place."""
    [(code, value)] = item
    if code is codes.AT:
        behind = value in _STARTS and least and not item.state.flags & re.MULTILINE
        return "^ stands behind text" if behind else None
    if code is codes.FAILURE or (code is codes.ASSERT_NOT and not value[1]):
        return "(?!) matches nothing"
    if code is codes.LITERAL and value == ord("\r"):
        return "Python reads a carriage return as the end of a line"
    if code is codes.ASSERT and value[0] < 0:
        return "(?<=...) stands at the start of the line" if value[1].getwidth()[0] > most else None
    if code in _REPEATS and not value[0]:
        return None
    reasons = [_impossible(part, least, most) for part in _parts(code, value)]
    return reasons[0] if reasons and all(reasons) else None


def _flat(items: Any) -> Iterator[Any]:
    """Yield parsed items, those of groups in their place; a group with flags of its own stays one item."""
    for code, value in items:
        inner = value if code is codes.ATOMIC_GROUP else value[3] if code is codes.SUBPATTERN else None
        if inner is None or (code is codes.SUBPATTERN and (value[1] or value[2])):
            yield code, value
        else:
            yield from _flat(inner)


def _parts(code: Any, value: Any) -> list[Any]:
    """Return the sequences in an item, of which one must match."""
    if code is codes.BRANCH:
        return list(value[1])
    if code is codes.ASSERT:
        return [value[1]]
    return [value[2]] if code in _REPEATS else []


def _ready(rule: dict[str, Any]) -> _Rule:
    stop = rule.get("stopPattern")
    return _Rule(rule, re.compile(rule["logPattern"]), None if stop is None else re.compile(stop))


def _wrong(rule: dict[str, Any], fault: str, effect: str) -> Verdict:
    name = short(rule.get("name") or "a rule without a name")
    return Verdict(State.FAIL, f"{name}: {fault}", [effect], "correct the rule", {"rule": name, "events": []})


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
        return Verdict(State.WARN, f"{rule['name']}: no line matched", [_inside(rows[0][1], streams)], None, details)
    return Verdict(
        State.PASS, f"{rule['name']}: does not fire; {count(matches, 'line')} matched", evidence, None, details
    )


def _inside(rule: _Rule, streams: dict[str, Any]) -> str:
    """Return where the pattern occurs inside a line, which the agent does not see."""
    for stream in streams.values():
        for number, _, text in stream:
            if rule.inside(text):
                return f"line {number} has it, but not at its start: begin the pattern with .*"
    return "it is in no line of this log"


def _told(rank: str, event: Event) -> str:
    when = "" if event.seconds is None else f", {event.seconds:.0f} s after the first line"
    where = f"{rank}: " if rank else ""
    return f"{where}{event.state} at line {event.line}{when}: {event.reason}"
