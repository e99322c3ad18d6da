"""What a run's time was used for, in seconds and dollars: its ledger, with prices, causes and what to do."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tools.core import UserError, duration, output, tables
from tools.facts.instances import HYPERPOD_PREFIX, INSTANCE_LABEL, INSTANCES, instance
from tools.job import ranks
from tools.job.runs import Run
from tools.job.snapshot import JobPod, Snapshot
from tools.job.snapshot.snapshot import event_time
from tools.kube import Object
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import committed_steps
from training.run import ledger
from training.run.directory import read_json
from training.run.ledger import CATEGORIES, UNPAID, Evidence, Ledger

TO_DO: Mapping[str, str] = tables.load("job/tables.yaml")["losses"]
LARGEST = 3  # losses that are explained
HOUR = 3600 * 1000  # milliseconds
# What an event about a pod begins: the kubelet, the autoscalers and Karpenter report it.
EVENTS = {
    "TriggeredScaleUp": "node provisioning", "Nominated": "node provisioning", "Pulling": "image pull",
    "Pulled": "start and import",
}  # fmt: skip


@dataclass(frozen=True)
class Account:
    """A run's ledger with what it cost. `prices` are USD an hour by host; a host without one has no known price."""

    name: str
    ledger: Ledger
    prices: Mapping[str, Decimal]
    tied: Mapping[str, str | None]

    @property
    def seconds(self) -> dict[str, int]:
        """Whole rank-seconds of each category; their sum is that of the wall times."""
        return apportioned({name: Fraction(ms, 1000) for name, ms in self.ledger.totals.items()})

    @property
    def cents(self) -> dict[str, int] | None:
        """Cents of each category; their sum is the cost. None if the price of a host is unknown."""
        shares = dict.fromkeys(CATEGORIES, Fraction(0))
        on_host = [self.ledger.hosts.get(rank, "") for rank in self.ledger.ranks if rank not in self.ledger.moved]
        for rank, spans in self.ledger.ranks.items():
            host = self.ledger.hosts.get(rank, "")
            if host not in self.prices:
                return None
            rate = Fraction(self.prices[host]) * 100 / on_host.count(host) / HOUR
            for span in spans:
                shares[span.category] += 0 if span.category in UNPAID else rate * (span.end - span.start)
        return apportioned(shares)

    @property
    def gaps(self) -> list[str]:
        """What the account lacks, and why its times may be wrong."""
        lacking = self.ledger.missing
        told = [f"rank {ranks.spans(lacking)} is not counted: no phases of it can be read"] if lacking else []
        return [f"CANNOT TELL: {self.name}: {one}" for one in (*told, *self.ledger.unsure)]

    def losses(self) -> list[tuple[str, int]]:
        """The largest categories that are not training, with their seconds."""
        return losses([self])

    def as_dict(self) -> Object:
        """Return the account for JSON."""
        cents, book = self.cents, self.ledger
        return {
            "run": self.name,
            "started": round(book.start, 3),
            "ranks": len(book.ranks),
            "restarts": book.restarts,
            "running": book.running,
            "rank_seconds": sum(self.seconds.values()),
            "seconds": self.seconds,
            "usd": None if cents is None else dollars(sum(cents.values())),
            "usd_by_category": None if cents is None else {name: dollars(number) for name, number in cents.items()},
            "goodput": book.goodput,
            "ettr": book.ettr,
            "losses": [{"category": name, "seconds": number, "fix": TO_DO[name]} for name, number in self.losses()],
            **self.tied,
            "by_rank": {str(rank): self._of_rank(rank) for rank in book.ranks},
            "notes": list(book.notes),
        }

    def _of_rank(self, rank: int) -> Object:
        own = replace(self, ledger=replace(self.ledger, ranks={rank: self.ledger.ranks[rank]}))
        return {name: number for name, number in own.seconds.items() if number}

    def row(self) -> Object:
        """Return the account as one line of a table."""
        value = self.as_dict()
        kept = ("run", "started", "ranks", "restarts", "rank_seconds", "usd", "goodput", "ettr", *self.tied)
        return {key: value[key] for key in kept} | self.seconds

    def lines(self) -> Iterator[str]:
        """Return the account for people."""
        book, seconds, cents = self.ledger, self.seconds, self.cents
        wall = sum(seconds.values())
        size, restarts = output.count(len(book.ranks), "rank"), output.count(book.restarts, "restart")
        yield f"{self.name}: {size}, {duration(wall / len(book.ranks))} each, {restarts}"
        rows = [
            (
                name,
                f"{number:,} s",
                f"{number / wall:.1%}" if wall else "-",
                _money(None if cents is None else cents[name]),
            )
            for name, number in seconds.items()
            if number
        ]
        rows.append(("sum", f"{wall:,} s", "", _money(None if cents is None else sum(cents.values()))))
        yield from (f"  {line}" for line in output.columns(rows))
        yield f"  goodput {_share(book.goodput)} of the time paid for was training that was kept"
        yield f"  ETTR    {_share(book.ettr)} of the time since the start was training that was kept"
        tied = (f"{key} {output.short(value, 80) if value else UNKNOWN}" for key, value in self.tied.items())
        yield f"  {', '.join(tied)}"
        yield from advice([self])
        yield from (f"  note: {note}" for note in book.notes)


UNKNOWN = "unknown"


def losses(accounts: Iterable[Account]) -> list[tuple[str, int]]:
    """Return the largest categories of several accounts together that are not training, with their seconds."""
    found: Counter[str] = Counter()
    for one in accounts:
        found.update({name: number for name, number in one.seconds.items() if name != "training" and number})
    return found.most_common(LARGEST)


def advice(accounts: Iterable[Account]) -> Iterator[str]:
    """Yield a line for each of the largest losses: what to do."""
    yield from (f"  {name}, {duration(number)}: {TO_DO[name]}" for name, number in losses(accounts))


def of(run: Run, machine: str | None = None, since: float | None = None) -> Account | None:
    """Return the account of a run, None if nothing of it is after `since`. `machine` is the type of its nodes.

    Raises UserError (3) if the run has no record of phases.
    """
    try:
        evidence = ledger.read(run.files, kept=max(committed_steps(run.files.checkpoints), default=0))
        os.listdir(run.files.heartbeat)
    except (FileNotFoundError, NotADirectoryError):
        evidence = Evidence({})
    except OSError as problem:
        raise UserError(f"CANNOT TELL: {problem.filename}: {problem.strerror}", code=3) from None
    except CheckpointError as problem:
        raise UserError(f"CANNOT TELL: {problem}", code=3) from None
    if not evidence.ranks:
        hint = "the trainer writes it, and scripts that `import trainyard`; `yard job why` shows whether ranks start"
        raise UserError(f"CANNOT TELL: {run.name} has no phases of any rank in heartbeat/", hint, 3)
    if run.seen is not None:
        marks = {pod.host: marks_of(run.seen, pod) for pod in run.seen.pods}
        evidence = replace(evidence, submitted=_created(run.seen), marks=marks)
    book = ledger.of(evidence)
    book = book if since is None else book.since(since)
    if not book.ranks:
        return None
    return Account(run.name, book, _prices(run.seen, book, machine), _tied(run))


def of_snapshot(seen: Snapshot) -> Object | None:
    """Return the goodput of the first rank and its largest loss, None if the run directory has no phases of it.

    Of a long run only the last changes were read: then it counts from the first of them, `since`.
    """
    told = seen.run or {}
    evidence = ledger.told(told)
    if not evidence.ranks:
        return None
    if not told.get("phases_cut"):
        marks = {pod.name: marks_of(seen, pod) for pod in seen.pods}
        evidence = replace(evidence, submitted=_created(seen), marks=marks)
    book = ledger.of(evidence)
    name, seconds = next(iter(Account(seen.name, book, {}, {}).losses()), (None, 0))
    found = {"rank": min(book.ranks), "goodput": book.goodput, "ettr": book.ettr, "restarts": book.restarts}
    since = book.start if told.get("phases_cut") else None
    return {**found, "loss": name, "loss_s": seconds, "since": since, "unsure": list(book.unsure)}


def in_words(found: Object) -> str:
    """Return what `of_snapshot` found for people."""
    if found["unsure"]:
        return f"CANNOT TELL: {found['unsure'][0]}"
    loss = f"; most went to {found['loss']}, {duration(found['loss_s'])}" if found["loss"] else ""
    cut = found["since"] and datetime.fromtimestamp(found["since"], UTC).strftime(" since %Y-%m-%d %H:%M UTC")
    return f"{found['goodput']:.1%} of the time of rank {found['rank']}{cut or ''} was training that was kept{loss}"


def _created(seen: Snapshot) -> float | None:
    created = JobPod({"metadata": seen.job["metadata"]}).created
    return created.timestamp() if created else None


def marks_of(seen: Snapshot, pod: JobPod) -> list[tuple[float, str]]:
    """Return what the cluster tells about a pod before its container ran: from each moment on it was in a category."""
    placed = (pod.placed if pod.node else None, "image pull")
    told = [(event_time(one), EVENTS.get(str(one.get("reason")), "")) for one in seen.events("Pod", pod.name)]
    before = [one for one in told if one[1] == "node provisioning"]
    after = [one for one in told if one[1] in ("image pull", "start and import")]
    times = [(pod.created, "queued"), *before, placed, *after, (pod.started, "start and import")]
    return [(moment.timestamp(), category) for moment, category in times if moment is not None]


def _prices(seen: Snapshot | None, book: Ledger, machine: str | None) -> dict[str, Decimal]:
    """Return the price of each host: that of `machine`, or else of the type that its node's label says."""
    if machine is not None:
        price = instance(machine).price_usd_per_hour
        return {} if price is None else dict.fromkeys(["", *book.hosts.values()], Decimal(str(price)))
    found = {}
    for pod in seen.pods if seen else ():
        node = seen.find("Node", pod.node) if seen and pod.node else None
        kind = ((node or {}).get("metadata", {}).get("labels") or {}).get(INSTANCE_LABEL, "")
        known = INSTANCES.get(str(kind).removeprefix(HYPERPOD_PREFIX))
        if known is not None and known.price_usd_per_hour is not None:
            found[pod.host] = Decimal(str(known.price_usd_per_hour))
    return found


def _tied(run: Run) -> dict[str, str | None]:
    """Return what the account is of: commit, image and configuration, as far as they are known."""
    info: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        info = read_json(run.files.run)
    images = {str(pod.container.get("imageID") or "") for pod in run.seen.pods} if run.seen else set()
    texts = {name: info.get(key) for name, key in (("commit", "commit"), ("config", "config_digest"))}
    known = {name: value if isinstance(value, str) else None for name, value in texts.items()}
    return {"commit": known["commit"], "image": ", ".join(sorted(images - {""})) or None, "config": known["config"]}


def apportioned(parts: Mapping[str, Fraction]) -> dict[str, int]:
    """Return whole numbers whose sum is the rounded sum of the parts: those with the largest rests are rounded up."""
    found = {name: int(value) for name, value in parts.items()}
    missing = round(sum(parts.values(), Fraction(0))) - sum(found.values())
    for name in sorted(parts, key=lambda name: found[name] - parts[name])[:missing]:
        found[name] += 1
    return found


def dollars(cents: int) -> str:
    """Return an amount as digits, such as `12.30`: a float has no exact cents."""
    return f"{Decimal(cents) / 100:.2f}"


def _money(cents: int | None) -> str:
    return "" if cents is None else f"${Decimal(cents) / 100:,.2f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"
