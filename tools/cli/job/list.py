"""List the PyTorchJobs of a namespace or of all namespaces: state, pods, age and UID.

\b
Examples:
  yard job list
  yard job list -A
  yard job list -n team-a --json

\b
Exit codes: 0 listed, also if there is no job, 3 the cluster could not be read.
"""

from __future__ import annotations

from datetime import UTC, datetime

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.timestamps import duration, moment
from tools.job.snapshot import lookup
from tools.job.snapshot.pod import replicas
from tools.job.status import state_of
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object


@click.command(name="list", help=__doc__, short_help="the jobs of a namespace")
@_options.cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="List the jobs of all namespaces.")
@_options.as_json
def command(kubectl: Kubectl, everywhere: bool, as_json: bool) -> None:
    rows = [_row(job) for job in lookup.jobs(kubectl, everywhere)]
    if as_json:
        output.data(rows)
    elif not rows:
        output.line("no PyTorchJob")
    else:
        output.table([list(rows[0]), *(list(map(str, row.values())) for row in rows)], indent="")


def _row(job: Object) -> Object:
    metadata = job["metadata"]
    statuses = ((job.get("status") or {}).get("replicaStatuses") or {}).values()
    active = sum(int(one.get("active") or 0) for one in statuses)
    made = moment(metadata.get("creationTimestamp"))
    return {
        "namespace": metadata["namespace"],
        "job": metadata["name"],
        "state": state_of(job),
        "pods": f"{active}/{replicas(job)}",
        "age": duration((datetime.now(UTC) - made).total_seconds()) if made else "-",
        "uid": metadata["uid"],
    }
