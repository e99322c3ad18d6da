"""List the jobs of a namespace or of all namespaces: kind, state, pods, age and UID."""

from datetime import UTC, datetime

from tools.cli.job import _options
from tools.core import duration, moment, output
from tools.job import status
from tools.job.snapshot import LiveJob, lookup
from tools.kube import Kubectl, Object
from tools.kube.kubectl import CANNOT_SEE


@_options.cluster
def command(kubectl: Kubectl, everywhere: bool, as_json: bool) -> int:
    seen = lookup.jobs(kubectl, everywhere)
    rows = [_row(job) for job in seen.topmost]
    rows += [_facts(item, item, str(item["kind"]), "CANNOT TELL", "-") for item in seen.unread]
    rows.sort(key=lambda row: (row["namespace"], row["job"]))
    if as_json:
        output.data(rows)
    elif not rows:
        output.line("no job")
    else:
        output.table([list(rows[0]), *(list(map(str, row.values())) for row in rows)], indent="")
    for kind, reason in seen.unseen.items():
        output.note(f"not seen: {kind}: {reason}")
    return CANNOT_SEE if seen.hidden else 0


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
        "state": state,
        "pods": pods,
        "age": duration((datetime.now(UTC) - made).total_seconds()) if made else "-",
        "uid": metadata.get("uid") or top["metadata"].get("uid"),
    }
