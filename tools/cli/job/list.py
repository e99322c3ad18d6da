"""List the jobs of a namespace or of all namespaces: kind, model, state, step, loss, time left, price, pods, age."""

from collections.abc import Iterator
from datetime import UTC, datetime

from tools.cli.job import _options
from tools.core import State, UserError, duration, moment, output
from tools.job import status, top
from tools.job.snapshot import LiveJob, Snapshot, lookup, many
from tools.job.status import Status
from tools.kube import Kubectl, Object
from tools.kube.kubectl import CANNOT_SEE

MODEL = "trainyard/model"  # the label that a cell gives its job
HEAD = {
    "namespace": "namespace", "job": "job", "kind": "kind", "model": "model", "state": "state", "step": "step",
    "loss": "loss", "left": "ETA", "usd_per_hour": "$/h", "pods": "pods", "age": "age",
}  # fmt: skip
STATES = {"Failed": State.FAIL, "Running": State.PASS, "CANNOT TELL": State.CANNOT_TELL}


@_options.cluster
def command(kubectl: Kubectl, everywhere: bool, show_left: bool, as_json: bool) -> int:
    if show_left:
        return _left(kubectl, everywhere, as_json)
    seen = lookup.jobs(kubectl, everywhere)
    rows = [*_rows(kubectl, seen.topmost)]
    rows += [_facts(item, item, str(item["kind"]), "CANNOT TELL", "-") for item in seen.unread]
    rows.sort(key=lambda row: (row["namespace"], row["job"]))
    if as_json:
        output.data(rows)
    elif not rows:
        output.line("no job")
    else:
        table = [tuple(HEAD.values()), *(tuple(str(row[key]) for key in HEAD) for row in rows)]
        output.table(table, indent="", head=True, states=[STATES.get(row["state"]) for row in rows])
    for kind, reason in seen.unseen.items():
        output.note(f"not seen: {kind}: {reason}")
    return CANNOT_SEE if seen.hidden else 0


def _rows(kubectl: Kubectl, jobs: list[LiveJob]) -> Iterator[Object]:
    """Yield the facts of each job, and where those that run are; of many, only some are asked."""
    running = [job for job in jobs if job.state == "Running"]
    found = many.snapshots(kubectl, running)
    if found.read < len(running):
        limit = f"{many.MOST} at most, in {many.SECONDS:.0f} s"
        note = f"progress is read of {found.read} of {len(running)} running jobs ({limit})"
        output.note(f"{note}: `yard job top` reads up to {top.MOST}")
    if found.refused:
        output.note(f"not seen: progress of {output.count(len(found.refused), 'job')}: {found.refused[0]}")
    for kind, reason in found.unseen.items():
        output.note(f"not seen: {kind}: {reason}")
    asked = dict(zip(map(id, running), found.snapshots, strict=True))
    for job in jobs:
        yield _row(job) | (_progress(asked[id(job)]) if id(job) in asked else {})


def _progress(seen: Snapshot) -> dict[str, str]:
    try:
        now = Status(seen)
        return top.figures(now, now.training())
    except UserError:  # of a wrong shape: the other facts are still shown
        return {}


def _left(kubectl: Kubectl, everywhere: bool, as_json: bool) -> int:
    """Show what jobs leave behind, and the sum of the known prices."""
    from tools.job import left  # slow to import

    found, unseen = left.find(kubectl, everywhere)
    known, unknown = sum(one.price or 0.0 for one in found), sum(one.price is None for one in found)
    if as_json:
        output.data({"left": [vars(one) for one in found], "usd_per_month": round(known, 2), "unknown": unknown})
    else:
        for one in found:
            price = "unknown" if one.price is None else f"{one.price:,.2f} $/month"
            remove = f"; {one.remove}" if one.remove else ""
            output.line(f"{price:>16}  {one.kind} {one.namespace}/{one.name} ({one.detail}){remove}")
        rest = f", and {output.count(unknown, 'object')} without a price" if unknown else ""
        output.line(f"{known:>8,.2f} $/month  for what {output.count(len(found), 'object')} hold{rest}")
        output.note(f"list prices: us-east-1, {left.PRICES['date']}; yours may differ")
    for kind, reason in unseen.items():
        output.note(f"not seen: {kind}: {reason}")
    return CANNOT_SEE if set(unseen) - left.OPTIONAL else 0


def _row(job: LiveJob) -> Object:
    inner, active = job.workload, status.active_pods(job.workload)
    kind = inner.kind if job.owner is None else f"{job.owner['kind']}/{inner.kind}"
    pods = f"{'-' if active is None else active}/{inner.replicas or '-'}"
    return _facts(inner.item, job.top, kind, job.state, pods)


def _facts(item: Object, top: Object, kind: str, state: str, pods: str) -> Object:
    metadata = item["metadata"]
    made = moment((metadata if "uid" in metadata else top["metadata"]).get("creationTimestamp"))
    return {
        "namespace": metadata.get("namespace") or top["metadata"].get("namespace"),
        "job": metadata["name"],
        "kind": kind,
        "model": (metadata.get("labels") or {}).get(MODEL) or "-",
        "state": state,
        **dict.fromkeys(("step", "loss", "left", "usd_per_hour"), "-"),
        "pods": pods,
        "age": duration((datetime.now(UTC) - made).total_seconds()) if made else "-",
        "uid": metadata.get("uid") or top["metadata"].get("uid"),
    }
