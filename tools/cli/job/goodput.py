"""Show what a run's time was used for: training, or which loss, in seconds and dollars, and what to do."""

import re
import time
from datetime import UTC, datetime

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import goodput, runs
from tools.job.goodput import Account
from tools.kube import Kubectl
from tools.kube.kubectl import CANNOT_SEE

UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}


@_options.cluster
def command(
    kubectl: Kubectl, runs_wanted: tuple[str, ...], machine: str | None, since: str | None, as_csv: bool, as_json: bool
) -> int:
    if as_csv and as_json:
        raise UserError("--csv and --json: the answer has one form", "give one of them")
    start = None if since is None else moment_of(since)
    found: list[Account] = []
    with runs.opened(kubectl, runs_wanted) as (opened, unread):
        for run in opened:
            try:
                account = goodput.of(run, machine, start)
            except UserError as problem:
                if len(opened) + len(unread) == 1 or problem.code != CANNOT_SEE:
                    raise
                unread.append(problem.message)
                continue
            found += [account] if account else []
            unread += account.gaps if account else []
    found.sort(key=lambda one: one.ledger.start)
    if as_csv:
        rows = [one.row() for one in found]
        output.csv_table(rows, list(rows[0]) if rows else ["run"])
    elif as_json:
        output.data({"since": start, "runs": [one.as_dict() for one in found], "not_seen": unread})
    elif not found:
        output.line(f"no run since {since}" if since else "no run that can be accounted for")
    else:
        _print(found)
    if len(found) > 1 and not as_json:
        for line in (f"{one.name}: {note}" for one in found for note in one.ledger.notes):
            output.note(line)
    for reason in unread:
        output.note(reason)
    return CANNOT_SEE if unread else 0


def moment_of(text: str) -> float:
    """Return the time that `30d`, `12h`, `2026-11-01` or `2026-11-01T08:00` means, in UTC. Raises UserError."""
    if match := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return time.time() - int(match[1]) * UNITS[match[2]]
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise UserError(f"--since {text}: not a time", "12h, 30d, 4w, or a date such as 2026-11-01") from None


def _print(found: list[Account]) -> None:
    if len(found) == 1:
        for line in found[0].lines():
            output.line(line)
        return
    head = ("run", "ranks", "restarts", "rank-hours", "USD", "goodput", "ETTR", "largest loss")
    output.table([head, *map(_row, found)], indent="", head=True)
    known = [cents for one in found if (cents := one.cents) is not None]
    hours = sum(sum(one.seconds.values()) for one in found) / 3600
    rest = f", and {len(found) - len(known)} without a known price" if len(known) < len(found) else ""
    total = f"{goodput.dollars(sum(sum(cents.values()) for cents in known))} USD{rest}" if known else "cost unknown"
    output.line(f"{len(found)} runs, {hours:,.2f} rank-hours, {total}")
    for line in goodput.advice(found):
        output.line(line)


def _row(one: Account) -> tuple[str, ...]:
    value, loss = one.as_dict(), next(iter(one.losses()), ("-", 0))[0]
    shares = ("unknown" if value[key] is None else f"{value[key]:.1%}" for key in ("goodput", "ettr"))
    hours = f"{value['rank_seconds'] / 3600:,.2f}"
    numbers = (str(value["ranks"]), str(value["restarts"]), hours, value["usd"] or "unknown")
    return (output.short(one.name, 63), *numbers, *shares, loss)
