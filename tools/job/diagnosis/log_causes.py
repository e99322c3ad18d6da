"""The class of failure that a log shows, and the line that shows it.

Only lines that report a failure count: the trainer's own record, and what `log_failures` finds.
"""

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tools.job.diagnosis import log_failures, log_patterns, log_topics, log_tracebacks, signs
from tools.job.diagnosis.cause import OWN_TRAINER, TRAINERS, Cause, short
from tools.job.diagnosis.exit_codes import KINDS, SIGNALS, UNKNOWN, VICTIMS, failure, summary_of
from tools.job.diagnosis.log_failures import Reading, Report, Weight
from tools.job.diagnosis.log_patterns import form
from tools.job.snapshot.log_lines import Line
from training.run.failure import CODES

# The trainer's own line, `rank 3: out of memory: ...`, with the classes of training/run/failure.py.
_RANK = re.compile(rf"^(?:\S+ )*?(?:ERROR )?rank (\d+): ({'|'.join(CODES)}): (.*)")
# The last line of a pod's first process (training/entrypoint.py): the first failing rank of the whole job.
_END = re.compile(
    rf"^entrypoint: ({'|'.join(CODES)}): (?:rank (\d+) on (\S+?)(?: at step \d+)?: )?(.*) \(exit code \d+\)$"
)
# Of a long report, evidence shows its begin, and the first and the last words of what proves its class.
SHOWN, HEAD, AROUND, PROOF = 170, 50, 15, 50  # characters
END = 40  # lines at the end of a log: programs stop soon after an error that they cannot handle
NAMED = 500  # lines at each end of a log that may show its trainer
WARNED = 6  # lines at the end of a log: a program that waits repeats its warning
SIGABRT = 6  # a rank aborts itself when one of its collectives has failed


@dataclass(frozen=True)
class Found:
    """A class of failure and the line that shows it; rank and host where the line names them.

    `concluded` marks the last line of a pod's first process, which knows the records of all ranks. `vague`
    marks an exception that only says that something before it failed. `signal` ended torchrun's child. `text`
    is the whole report; its characters `proof` prove the class. `fix` and `says` replace the class's words. `inner`:
    another exception follows. `unsure`: it stands near the end of the log, but the program is not known.
    `guessed`: no pattern knows it, so the class is what it is about, `script` or `crash`. `place` is the last
    frame of its traceback that is in no installed package. `bare`: without its traceback.
    `trainer` is the one of trainers.yaml that wrote the log. `survived`: new steps follow it. `driver`
    is the driver's line about a broken GPU, which explains the failed call.
    """

    kind: str
    line: Line
    rank: int | None = None
    host: str | None = None
    concluded: bool = False
    weight: Weight = Weight.UNCAUGHT
    vague: bool = False
    signal: int = 0
    text: str = ""
    proof: tuple[int, int] = (0, 0)
    fix: str | None = None
    says: str | None = None
    inner: bool = False
    unsure: bool = False
    guessed: bool = False
    bare: bool = False
    place: str = ""
    trainer: str = ""
    survived: bool = False
    driver: Line | None = None

    @property
    def evidence(self) -> str:
        """The failing line, without losing the words that prove the class, and what the next lines say."""
        line = self.line.text.strip()
        first, last = self.proof
        details = self._details
        shown = SHOWN - PROOF if details else SHOWN
        if self.guessed and len(line) > shown:  # the reason may be at either end
            return f"{line[: 2 * HEAD]} … {line[-2 * HEAD :]}"
        proven = self.text[first:last]
        if (last <= shown and proven in line) or proven in details:
            return f"{short(line, shown)} {details}" if details else line
        ends = [0, HEAD]
        for start, end in ((first - AROUND, first + PROOF), (last - PROOF, last + AROUND)):
            ends += [max(start, ends[-1]), max(end, ends[-1])]
        parts = [self.text[slice(*ends[place : place + 2])] for place in (0, 2, 4)]
        gaps = (" … " if ends[place] > ends[place - 1] else "" for place in (2, 4))
        around = "".join(itertools.chain(*itertools.zip_longest(parts, gaps, fillvalue=""))).strip()
        return f"{around} … {details}" if details and details not in around else around

    @property
    def _details(self) -> str:
        """What the next lines of an exception's message say; NCCL puts the reason last."""
        text = self.text.lstrip()
        _, begin, rest = self.line.text.rstrip().partition(text.partition(" ")[0] or "?")
        return text[len(begin + rest) :].rpartition("Last error:")[2].strip() if begin else ""

    def cited(self, source: str) -> list[str]:
        """The evidence: `source` with the failing line, and the program's own place if no class is proven."""
        line = self.driver
        driver = [short(f"{line.pod}:{line.number}: {line.text.strip()}")] if line else []
        raised = [short(f"raised at {self.place}")] if self.place else []
        return [f"{source}: {short(self.evidence)}", *driver, *raised]

    @property
    def exception(self) -> bool:
        """Whether it is an exception that says what went wrong."""
        return self.weight <= Weight.RAISED and not self.vague

    def summary(self, kind: str, who: str) -> str:
        """The failure in words: its own ones, unless a signal has changed its kind."""
        return f"{who}: {self.says}" if self.says and kind == self.kind else summary_of(kind, who)

    def cause(self, kind: str, who: str, evidence: list[str], pod: str, at: datetime | None) -> Cause:
        """The cause for a rank or pod `who`, of a kind that a signal may have changed."""
        found = failure(kind, who, evidence, self.host or pod, self.rank, at)
        advice = self.fix if kind == self.kind else None
        return replace(found, summary=self.summary(kind, who), advice=advice, trainer=self.trainer)

    @property
    def confidence(self) -> str:
        """How much the log proves, and why."""
        if self.survived:
            return "low: training survived this error, and no later line says why the process ended"
        if self.concluded:
            return "high: the pod's first process says so"
        if self.kind in UNKNOWN:
            return str(log_topics.table("confidence")[self.kind])
        if self.guessed:
            return "medium: what the message and the code are about"
        return str(log_topics.table("confidence")[self.weight.name.lower()])

    @property
    def victim(self) -> bool:
        """Whether a rank fails like this when another one has failed."""
        return self.kind in VICTIMS


def first_cause(lines: Iterable[Line]) -> Found | None:
    """Return the cause that `cause_of` finds in lines."""
    return cause_of(Reading(list(lines)))


def cause_of(log: Reading) -> Found | None:
    """Return what a log concludes, else the failure that ended its processes, else a consequence of one.

    An exception that a rank did not catch outranks one that may have been caught, and that outranks what was
    only logged. An exception of an unknown class is `script`. The error that an unknown program reports at the
    end of its log is `crash`. None: no line reports an error.
    """
    found = _first_cause(log)
    return found and replace(found, trainer=_trainer([found.line, *log.lines[:NAMED], *log.lines[-NAMED:]]))


def of_survived(report: Report) -> Found:
    """Return what a report says that training survived. It may still tell why the process ended later."""
    found = _found(report) or Found("crash", report.line, report.line.rank, text=report.text)
    return replace(found, weight=report.weight, survived=True)


def _trainer(lines: list[Line]) -> str:
    """Return the trainer that lines of a log show, or an empty text."""
    if any(_own(line) for line in lines):
        return OWN_TRAINER
    seen = ((name, re.compile(row["seen"])) for name, row in TRAINERS.items())
    return next((name for name, words in seen if any(words.search(line.text) for line in lines)), "")


def _first_cause(log: Reading) -> Found | None:
    every, reports = log.lines, log.reports
    own = [one for one in map(_own, every) if one is not None]
    reported = [found for one in reports if one.weight is not Weight.CUT and (found := _found(one))]
    if any(form("asserted").search(line.text) for line in every):
        reported = [replace(one, kind="script") if one.kind == "device" else one for one in reported]
    known = [one for one in own if not one.victim and one.kind != "crash"]
    concluded = [one for one in known if one.concluded][::-1]
    chosen = concluded or known or _chosen(reported) or [one for one in own if one.kind != "crash"]
    found = next(iter(chosen or own[::-1]), None)
    said = any(one.exception for one in reports) or any(form("agent").search(line.text) for line in every)
    if said and found and found.guessed and found.kind == "unreachable":
        outside = log_topics.table("outside")
        found = _in_any_line(every, [form("quiet")], lambda one: one.kind in outside) or found
    if found and found.kind == "device":
        found = _of_a_broken_gpu(found, reports)
    if found is None or (found.kind in UNKNOWN and found.vague):  # the log does not explain the end
        warned = _in_any_line(every, [form("quiet")], lambda one: not one.victim) if said else None
        found = warned or found or _at_the_end(every, reports) or next(iter(reported), None)
    plain = [] if found or reports or log.records else log.plain
    if any(form("ignored").search(log_failures.bare(line)) for line in plain):
        return None
    # A program without levels, that did not train; then what it warned of last.
    harmless = log_patterns.lines("harmless")
    return found or _in_any_line(plain, [form("any_mild"), harmless], lambda _: True) or waits(plain)


def _of_a_broken_gpu(found: Found, reports: list[Report]) -> Found:
    """Return a failed call with the driver's line that explains it, and with the remedy for a broken GPU."""
    driver = next((one.line for one in reports if form("broken_gpu").search(one.line.text)), None)
    return replace(found, driver=driver, fix=None, says=None) if driver and driver != found.line else found


def warning(line: Line) -> Found | None:
    """Return the cause that a line of any level but INFO and below names."""
    return _in_any_line([line], [form("quiet")], lambda _: True)


def waits(lines: list[Line]) -> Found | None:
    """Return what a program warns of again and again in the last lines of its log."""
    last = [line for line in lines if line.text.strip()][-WARNED:]
    known = [one for one in map(warning, last) if one and one.kind in log_topics.table("waited_for")]
    return next((one for one, other in itertools.pairwise(known) if one.kind == other.kind), None)


def _at_the_end(lines: list[Line], reports: list[Report]) -> Found | None:
    """Return the error that a program reports in the last lines of its log, by its subject."""
    last = {line.number for line in [line for line in lines if line.text.strip()][-END:]}
    near = [
        one
        for one in reports
        if one.line.number in last
        and one.weight in (Weight.LOGGED, Weight.END)
        and not log_patterns.lines("harmless").search(one.text)
    ]
    if not near:
        return None
    if warned := _in_any_line(lines[-END:], [form("quiet")], lambda one: not one.victim):
        return warned
    named = ((kind, one) for one in near if (kind := log_topics.of(one)))
    kind, shown = next(named, ("crash", min(near, key=lambda one: one.weight)))
    return Found(
        kind, shown.line, shown.line.rank, weight=shown.weight, vague=True, text=shown.text, unsure=True,
        proof=proof_of(shown.text),
    )  # fmt: skip


def _in_any_line(lines: list[Line], skipped: list[re.Pattern[str]], wanted: Callable[[Found], bool]) -> Found | None:
    """Return the last line with a known and wanted cause, of any level, that no pattern skips."""
    texts = ((line, log_failures.bare(line)) for line in reversed(lines))
    bare = ((line, text) for line, text in texts if not any(skip.search(text) for skip in skipped))
    found = (_found(Report(line, text, Weight.HINT)) for line, text in bare)
    return next((replace(one, unsure=True) for one in found if one and wanted(one)), None)


def _chosen(found: list[Found]) -> list[Found]:
    """Return the failures of the strongest kind of report; consequences come last."""
    known = [one for one in found if not one.guessed and not one.victim]
    if any(one.victim for one in found):  # a rank whose collective has failed aborts itself
        known = [one for one in known if one.kind != "memory-fault" or not form("aborted").search(one.text)]
    if any(one.kind in ("shared-memory", "oom-host") for one in known):  # which kill the workers of a loader
        known = [one for one in known if one.kind != "killed"]
    # Another failure may explain these.
    explained = {"limits": "shared-memory", "storage-full": "storage"}
    late = ["killed", "memory-fault", "command", *(explained[one.kind] for one in known if one.kind in explained)]
    known.sort(key=lambda one: one.kind in late or _of_a_client(one) or bool(form("quiet").search(one.line.text)))
    by_weight = {weight: [one for one in known if one.weight is weight] for weight in Weight}
    crashes = [one for one in reversed(found) if one.guessed and one.weight is not Weight.END]
    if len(found) > 1:  # the next line says what was thrown
        crashes = [one for one in crashes if not one.text.startswith("terminate called")]
    # Of unknown exceptions the last one counts: the one that ended the process follows those it has caught.
    # An uncaught one has ended its rank, so the first of these counts.
    specific = [one for one in crashes if not one.vague]
    uncaught = [one for one in specific[::-1] if one.weight is Weight.UNCAUGHT]
    killed = [one for one in by_weight[Weight.CHILD] if one.kind != "memory-fault" or one.signal != SIGABRT]
    return (
        by_weight[Weight.UNCAUGHT]
        or uncaught
        or by_weight[Weight.RAISED]
        or specific
        or by_weight[Weight.LOGGED]
        or ([] if crashes else by_weight[Weight.HINT])
        or killed
        or sorted(crashes, key=lambda one: one.kind in UNKNOWN)
        or sorted(
            (one for one in found if one.victim and not one.guessed),
            key=lambda one: (_of_a_client(one), one.kind == "communication"),
        )
        or by_weight[Weight.CHILD]
        or [one for one in found if one.kind not in UNKNOWN]
    )


def _of_a_client(found: Found) -> bool:
    """Return whether the exception that follows knows better whose connection it was."""
    return found.inner and found.kind in log_topics.table("between_ranks")


def _own(line: Line) -> Found | None:
    """Return what the trainer itself, or the first process of its pod, says in a line."""
    if end := _END.match(line.text):
        rank = int(end[2]) if end[2] else None
        return Found(refine(end[1], end[4]), line, rank, end[3], concluded=True)
    if own := _RANK.search(line.text):
        return Found(refine(own[2], own[3]), line, int(own[1]))
    return None


def _found(report: Report) -> Found | None:
    """Return the class of a report; None where no class matches and it is not an exception either."""
    found = Found("crash", report.line, report.line.rank, weight=report.weight, text=report.text)
    if report.weight is Weight.CHILD:
        kind, sign = SIGNALS.get(128 + report.signal), log_patterns.of_signal(report.signal)
        if kind is None:
            return None
        found = replace(found, kind=kind, signal=report.signal, proof=proof_of(report.text))
        return replace(found, says=sign.says, fix=sign.fix) if sign else found
    if event := signs.event(report.text):
        shown = event.match.search(report.text)
        return replace(found, kind=event.cause, proof=shown.span() if shown else (0, 0), fix=event.fix)
    client = form("client").search(report.text) or form("client_code").search(report.place)
    for row in log_patterns.classes():
        hit = row.search(report.text, report.stack)
        if hit and not (client and row.kind in log_topics.table("between_ranks")):
            # What NCCL says of a refused connection is not about the rendezvous.
            kind = (row.kind == "rendezvous" and log_patterns.of_program(report.text)) or row.kind
            proof, sign = hit[0].span(), hit[1]
            return replace(found, kind=kind, proof=proof, fix=sign.fix, says=sign.says, inner=report.inner)
    if not report.exception:
        known = log_patterns.of_program(report.text)
        return replace(found, kind=known, proof=proof_of(report.text)) if known else None
    relayed = form("relays").match(report.text) is not None
    kind = None if relayed else log_topics.of(report)
    vague = relayed or form("vague").match(report.text) is not None
    vague = vague or (report.inner and kind in (None, "script"))
    place = log_tracebacks.of_program(report.stack)
    if kind is None and not relayed:
        python = form("exception").match(report.text) is not None
        kind = "script" if place or (python and (report.text.rstrip(": ").count(" ") or not vague)) else None
    return replace(found, kind=kind or "crash", vague=vague, guessed=True, bare=not report.place, place=place)


def proof_of(text: str) -> tuple[int, int]:
    """Return where a report that is not an exception says what happened."""
    forms = (form("child"), *map(log_patterns.lines, ("runtime", "hints", "ends")))
    return next((hit.span() for one in forms if (hit := one.search(text))), (0, 0))


def refine(trainer_class: str, message: str) -> str:
    """Return the kind of cause for one of the trainer's classes, narrowed by its message."""
    kind = KINDS.get(trainer_class, trainer_class)
    narrower = log_topics.table("narrower").get(kind, ())
    first = (row.kind for row in log_patterns.classes() if narrower and row.search(message))
    return found if (found := next(first, kind)) in narrower else kind
