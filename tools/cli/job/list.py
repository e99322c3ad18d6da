"""List the PyTorchJobs of a namespace, or of all: state, pods, age and UID.

\b
Examples:
  yard job list
  yard job list -A
  yard job list -n team-a --json
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.timestamps import duration, moment
from tools.job.snapshot import lookup
from tools.job.status import state_of
from tools.kube.kubectl import Kubectl


@click.command(name="list", help=__doc__, short_help="the jobs there are")
@_options.cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces.")
@_options.as_json
def command(kubectl: Kubectl, everywhere: bool, as_json: bool) -> None:
    rows = [_row(job) for job in lookup.jobs(kubectl, everywhere)]
    if as_json:
        output.data(rows)
        return
    if not rows:
        output.line("no PyTorchJob")
        return
    head = {
        "namespace": "namespace",
        "job": "job",
        "state": "state",
        "pods": "pods",
        "age": "age",
        "uid": "uid",
    }
    widths = {key: max(len(str(row[key])) for row in [head, *rows]) for key in head}
    for row in [head, *rows]:
        output.line("  ".join(str(row[key]).ljust(widths[key]) for key in head).rstrip())


def _row(job: dict[str, Any]) -> dict[str, Any]:
    metadata = job["metadata"]
    replicas = (job["spec"].get("pytorchReplicaSpecs") or {}).values()
    active = sum(
        int(one.get("active") or 0)
        for one in ((job.get("status") or {}).get("replicaStatuses") or {}).values()
    )
    made = moment(metadata.get("creationTimestamp"))
    return {
        "namespace": metadata["namespace"],
        "job": metadata["name"],
        "state": state_of(job),
        "pods": f"{active}/{sum(int(one.get('replicas') or 1) for one in replicas)}",
        "age": duration((datetime.now(UTC) - made).total_seconds()) if made else "-",
        "uid": metadata["uid"],
    }
