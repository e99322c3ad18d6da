"""All jobs of a namespace on one screen: phase, step, loss, speed, time left, price, and why one does not train."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.core import State, UserError, duration, output
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import LiveJob, collect, lookup
from tools.job.status import Status
from tools.kube import Kubectl, Object, name_of

MOST = 100  # jobs that are read: each takes some requests
AT_ONCE = 4
TRAINS = ("training", "evaluating", "saving", "sampling", "uploading")


@dataclass(frozen=True)
class Row:
    """One job. Every value is a text; `-` stands for what is unknown or does not apply."""

    job: str
    state: str
    step: str = "-"
    loss: str = "-"
    speed: str = "-"
    mfu: str = "-"
    left: str = "-"
    usd_per_hour: str = "-"
    cause: str = ""


SHOWN = {"job": "job", "state": "state", "step": "step", "loss": "loss", "speed": "speed", "mfu": "MFU", "left": "ETA",
         "usd_per_hour": "$/h", "cause": "cause"}  # fmt: skip


def table(found: Sequence[Row]) -> tuple[list[tuple[str, ...]], list[State | None]]:
    """Return jobs as the rows of a table with its head, and the state of each job: a cause is a warning."""
    rows = [tuple(output.short(getattr(row, key), 60) for key in SHOWN) for row in found]
    return [tuple(SHOWN.values()), *rows], [State.WARN if row.cause else None for row in found]


def rows(kubectl: Kubectl, everywhere: bool) -> tuple[list[Row], dict[str, str]]:
    """Return the jobs by name, and what could not be seen. Raises UserError if no kind can be listed."""
    seen = lookup.jobs(kubectl, everywhere)
    wanted, unseen = seen.topmost[:MOST], dict(seen.unseen)
    if len(seen.topmost) > MOST:
        unseen["jobs"] = f"{len(seen.topmost)} jobs, of which {MOST} are shown: name a namespace"
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda job: _row(kubectl, job), wanted)
    return sorted(found, key=lambda row: row.job), unseen


def figures(status: Status, now: Object) -> dict[str, str]:
    """Return step, loss, time left and price of a job; `now` is its `training()`."""
    steps = "" if now["steps"] is None else f"/{now['steps']}"
    hourly = status.cost()["usd_per_hour"]
    return {
        "step": "-" if now["step"] is None else f"{now['step']}{steps}",
        "loss": "-" if now["loss"] is None else f"{float(now['loss']):.3f}",
        "left": " to ".join(dict.fromkeys(map(duration, now["seconds_left"]))) if now["seconds_left"] else "-",
        "usd_per_hour": "-" if status.state != "Running" or hourly is None else f"{hourly:,.2f}",
    }


def _row(kubectl: Kubectl, job: LiveJob) -> Row:
    """Return the row of a job, with the cause of one that does not train."""
    name = f"{job.namespace}/{name_of(job.top)}"
    try:
        status = Status(collect.collect(kubectl, job))
        now = status.training()
        trains = status.state == "Running" and now["phase"] in (None, *TRAINS) and now["step"] is not None
        over = status.state in ("Succeeded", "Suspended")
        found = explain(collect.collect(kubectl, job, around=True)) if not (trains or over) else None
    except UserError as problem:  # gone, or not readable: the others are still shown
        return Row(name, "CANNOT TELL", cause=problem.message)
    cause = "" if found is None else f"{found.causes[0].kind}: {found.summary}" if found.causes else found.summary
    speed = now["tokens_per_s"] or now["samples_per_s"]
    unit = "tok/s" if now["tokens_per_s"] else "samples/s"
    return Row(
        name,
        f"{status.state}, {now['phase']}" if now["phase"] and status.state == "Running" else status.state,
        speed=f"{float(speed):,.0f} {unit}" if speed else "-",
        mfu=f"{float(now['mfu']):.1%}" if now["mfu"] else "-",
        cause=cause,
        **figures(status, now),
    )
