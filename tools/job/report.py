"""Runs as one HTML page: what they learned, how fast, where the time went, what failed, and with which settings."""

import contextlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.core import UserError, duration, output, repo
from tools.core.page import grid, page, table, text
from tools.core.timestamps import epoch
from tools.job import charts, goodput, planned
from tools.job.charts import Curve
from tools.job.goodput import Account
from tools.job.metrics import series, sources
from tools.job.metrics.plot import number
from tools.job.metrics.series import Record, RunMetrics
from tools.job.runs import Run
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import MANIFEST
from training.run import failure
from training.run.directory import read_json

MOST_RUNS = charts.COLOURS
LARGEST = 2_000_000  # bytes of a page: mail and chats take it
MOST_ROWS, MOST_TEXT, MOST_KEYS = 50, 4000, 400
MOST_STEPS, LONGEST_STEP = 5000, 1e6  # newest steps whose times of ranks are shown, and seconds of one
CHARTS = {
    "lr": "Learning rate", "grad_norm": "Gradient norm", "tokens_per_s": "Tokens/s", "samples_per_s": "Samples/s",
    "mfu": "MFU", "memory_gib": "Memory of rank 0, GiB", "step_s": "Time of a step, s",
    "data_wait_s": "Wait for data, s",
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What is known of a run. `info` is run.json, `report` report.json; both may be empty."""

    run: Run
    metrics: RunMetrics
    account: Account | None
    info: Mapping[str, Any]
    report: Mapping[str, Any]
    unclear: str = ""

    @property
    def config(self) -> dict[str, str]:
        config = self.info.get("config")
        return dict(list(_flat(config))[:MOST_KEYS]) if isinstance(config, dict) else {}


def write(path: Path, runs: Sequence[Run], machine: str | None = None) -> int:
    """Write the page of runs, whole or not at all, and return its bytes. Raises UserError."""
    if len(runs) > MOST_RUNS:
        raise UserError(f"{len(runs)} runs: a page shows {MOST_RUNS} at most", "name the runs")
    shown = page_of([_told(run, machine) for run in runs])
    size = len(shown.encode())
    if size > LARGEST:
        raise UserError(f"the page has {size:,} bytes, more than {LARGEST:,}", "name fewer runs")
    try:
        repo.write(path, shown)
    except OSError as problem:
        raise UserError(f"--to {path}: {problem.strerror}") from None
    return size


def _told(run: Run, machine: str | None) -> Told:
    account, unclear = None, ""
    try:
        account = goodput.of(run, machine)
    except UserError as problem:
        if problem.code != 3:
            raise
        unclear = problem.message
    found = [_json(run.files.run), _json(run.files.report)]
    return Told(run, sources.of_run(run.name, run.files), account, found[0], found[1], unclear)


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return read_json(path)
    return {}


def page_of(runs: Sequence[Told]) -> str:
    """Return the page. All that a run wrote is escaped, and secrets are masked."""
    names = [one.run.name for one in runs]
    title = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    body = [f"<h1>{text(title)}</h1>", charts.legend(names), _figures(runs)]
    body += ["<h2>Curves</h2>", f'<div class="charts">{"".join(_curves(runs))}</div>']
    if len(runs) > 1:
        body += ["<h2>Differences of the configurations</h2>", _differences(runs)]
    for one in runs:
        head = f"<h2>{text(one.run.name)}</h2>" if len(runs) > 1 else ""
        body += [head, *_sections(one)]
    return page(title, "\n".join(body))


def _figures(runs: Sequence[Told]) -> str:
    """The figures of all runs, one column for each."""
    columns = [dict(_of_one(one)) for one in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, *(column.get(key, "unknown") for column in columns)) for key in keys]
    return grid(["", *(one.run.name for one in runs)], rows, "Figures")


def _of_one(one: Told) -> Iterator[tuple[str, str]]:
    records, account = one.metrics.records, one.account
    last = series.progress(records)
    yield "state", _state(one)
    if last is not None:
        yield "step", f"{last.step} of {one.config.get('train.steps', 'unknown')}"
        yield "loss", number(last.loss) if last.loss is not None else "unknown"
    heldout = list(one.metrics.curve("heldout"))
    if heldout:
        yield "held-out loss", f"{number(heldout[-1][1])} after step {heldout[-1][0]:,.0f}"
    for key, name, form in (("tokens_per_s", "tokens/s, median", "{:,.0f}"), ("mfu", "MFU, median", "{:.1%}")):
        values = [value for _, value in one.metrics.curve(key)]
        if values:
            yield name, form.format(statistics.median(values))
    if memory := [value for _, value in one.metrics.curve("memory_gib")]:
        yield "memory, largest", f"{max(memory):.2f} GiB"
    if account is not None:
        value = account.as_dict()
        yield "started", f"{epoch(value['started']):%Y-%m-%d %H:%M} UTC"
        yield "ranks", f"{value['ranks']}, {duration(value['rank_seconds'] / max(1, value['ranks']))} each"
        yield "restarts", str(value["restarts"])
        for key in ("goodput", "ettr"):
            yield {"ettr": "ETTR"}.get(key, key), "unknown" if value[key] is None else f"{value[key]:.1%}"
        yield "cost", f"{value['usd']} USD" if value["usd"] else "unknown: the price of its machines is not known"
    if one.run.seen is not None and (plan := planned.beside(one.run.seen, records)):
        yield "beside the plan", plan["says"]


def _state(one: Told) -> str:
    end = str(_json(one.run.files.end).get("class") or "")
    if one.account is None or not one.account.ledger.running:
        return end or ("done" if one.report else "unknown")
    return "running, or ended without a record" + (f"; the start before it: {end}" if end else "")


def _curves(runs: Sequence[Told]) -> Iterator[str]:
    restarts = [[float(gap.after) for gap in series.gaps(one.metrics.records)] for one in runs]
    loss = [
        Curve(f"{one.run.name}, loss", list(one.metrics.curve("loss")), restarts[at]) for at, one in enumerate(runs)
    ]
    yield charts.curves("Loss", loss)
    yield charts.curves("Held-out loss", [Curve(one.run.name, list(one.metrics.curve("heldout"))) for one in runs])
    for key, name in CHARTS.items():
        shown = [Curve(one.run.name, list(one.metrics.curve(key)), restarts[at]) for at, one in enumerate(runs)]
        yield charts.curves(name, shown)


def _sections(one: Told) -> Iterator[str]:
    yield "<h3>Where the time went</h3>"
    if one.account is None:
        yield f"<p>{text(one.unclear)}</p>"
    else:
        yield from _time(one.account)
    yield "<h3>Ranks</h3>"
    yield from _ranks(one)
    yield "<h3>Failures and restarts</h3>" + _failures(one.run)
    yield "<h3>Checkpoints</h3>" + _checkpoints(one.run)
    yield "<h3>Samples</h3>" + _samples(one.report)
    unread = "" if one.info else "<p>CANNOT TELL: run.json is not there, or cannot be read.</p>"
    yield _folded("Environment", unread or table(_environment(one)))
    yield _folded("Configuration", unread or table(one.config))


def _time(account: Account) -> Iterator[str]:
    seconds, cents = account.seconds, account.cents
    known = {name: value for name, value in seconds.items() if value}
    yield charts.bar("Rank-seconds by category", known)
    whole = sum(known.values()) or 1
    rows = [
        (name, f"{value:,}", f"{value / whole:.1%}", "" if cents is None else goodput.dollars(cents[name]))
        for name, value in known.items()
    ]
    rows.append(("sum", f"{sum(known.values()):,}", "", "" if cents is None else goodput.dollars(sum(cents.values()))))
    yield grid(("category", "rank-seconds", "share", "USD"), rows, "Time by category")
    yield "".join(
        f"<p>{text(name)}, {text(duration(value))}: {text(goodput.TO_DO[name])}</p>" for name, value in account.losses()
    )
    yield "".join(f"<p>Note: {text(note)}</p>" for note in (*account.ledger.notes, *account.gaps))


def _ranks(one: Told) -> Iterator[str]:
    """Yield the heat maps of each rank's time and wait, and the ranks that make others wait."""
    records = [one for one in one.metrics.records[-MOST_STEPS:] if _has_times(one)]
    if not records:
        yield "<p>No times of ranks were logged.</p>"
        return
    rows = charts.longest_run([record.rank_step_s for record in records])
    by_rank = [list(column) for column in zip(*rows, strict=True)]
    ends = float(records[-len(rows)].step or 0), float(records[-1].step or 0)
    yield f'<div class="charts">{charts.heat("Step time before the exchange", by_rank, *ends)}'
    yield f"{charts.heat('Wait for the slowest rank', charts.waits(by_rank), *ends)}</div>"
    medians = sorted(((statistics.median(times), rank) for rank, times in enumerate(by_rank)), reverse=True)
    middle = statistics.median(value for value, _ in medians) or 1.0
    slow = [(rank, number(value), f"{value / middle:.2f}") for value, rank in medians[:5]]
    yield grid(("rank", "median, s", "of the median of all ranks"), slow, "Slowest ranks")


def _has_times(record: Record) -> bool:
    return bool(record.rank_step_s) and all(0 <= one < LONGEST_STEP for one in record.rank_step_s)


def _failures(run: Run) -> str:
    found = failure.since(run.files, 0.0)
    rows = [
        (_utc(one.time), one.rank, one.kind, "" if one.step is None else one.step, one.message)
        for one in found[-MOST_ROWS:]
        if 0 <= one.time < 2**33
    ]
    head = ("UTC", "rank", "class", "step", "message")
    more = f"<p>The last {MOST_ROWS} of {len(found)}.</p>" if len(found) > MOST_ROWS else ""
    damaged = len(list(run.files.failures.glob("*.json"))) - len(found)
    more += f"<p>CANNOT TELL: {output.count(damaged, 'record')} cannot be read.</p>" if damaged else ""
    return more + (grid(head, rows, "Failures") if rows or not damaged else "")


def _checkpoints(run: Run) -> str:
    """The steps with the sizes of their manifests, as `yard checkpoint list` has them."""
    head = ("step", "UTC", "bytes", "problem")
    if run.seen is not None:  # the files of its checkpoints were not copied here
        told = (run.seen.run or {}).get("checkpoints") or []
        kept = [(one["step"], _utc(one["time"] or 0), _bytes(one["bytes"]), "not checked") for one in told]
        return grid(head, kept[-MOST_ROWS:], "Checkpoints")
    try:
        found = checkpoints.answer("list", run.files.path)["checkpoints"][-MOST_ROWS:]
    except CheckpointError as problem:
        return f"<p>CANNOT TELL: {text(problem)}</p>"
    rows = []
    for one in found:
        written = "unknown"
        with contextlib.suppress(OSError):
            written = _utc((Path(one["directory"]) / MANIFEST).stat().st_mtime)
        rows.append((one["step"], written, _bytes(one.get("nbytes")), one["problem"] or ""))
    return grid(head, rows, "Checkpoints")


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _utc(seconds: float) -> str:
    return f"{epoch(seconds):%Y-%m-%d %H:%M:%S}"


def _samples(report: Mapping[str, Any]) -> str:
    found = report.get("samples")
    rows = [one for one in (found if isinstance(found, list) else [])[:MOST_ROWS] if isinstance(one, dict)]
    shown = (f"{one.get('prompt', '')}{one.get('text', json.dumps(one))}"[:MOST_TEXT] for one in rows)
    return "".join(f"<pre>{text(sample)}</pre>" for sample in shown) or "<p>None.</p>"


def _environment(one: Told) -> dict[str, str]:
    versions = one.info.get("versions")
    kept = ("world_size", "sharding", "precision", "dataset", "commit", "config_digest")
    found = {key: output.short(one.info[key], 200) for key in kept if one.info.get(key) is not None}
    found |= {key: output.short(value) for key, value in (versions if isinstance(versions, dict) else {}).items()}
    image = one.account.tied["image"] if one.account else None
    return found | ({"image": image} if image else {})


def _differences(runs: Sequence[Told]) -> str:
    keys = dict.fromkeys(key for one in runs for key in one.config)
    rows = [(key, *(one.config.get(key, "") for one in runs)) for key in keys]
    changed = [row for row in rows if len(set(row[1:])) > 1]
    return grid(["key", *(one.run.name for one in runs)], changed, "Differences")


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", output.short(json.dumps(value), 300)


def _folded(title: str, inner: str) -> str:
    return f'<details><summary>{text(title)}</summary><div class="wide">{inner}</div></details>'
