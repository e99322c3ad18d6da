"""Show the accelerators of every pod in one table: ranks, memory, utilization, temperature, power, errors.

The command runs nvidia-smi or neuron-monitor in each running pod. Below the table are the faults that agents
report about the nodes (EKS: the condition AcceleratedHardwareReady, which includes Xids; HyperPod: its health
label).

\b
Examples:
  yard job devices p5-llama-3-1-8b-train
  yard job devices --json

\b
Exit codes: 0 all devices are healthy, 1 an error or a missing device, 3 a pod's devices are unknown.
"""

from dataclasses import asdict

import click

from tools.cli.job import _options
from tools.core import output
from tools.job import devices, status
from tools.job.snapshot import collect
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="memory, utilization and errors of the accelerators by rank")
@_options.job
@_options.cluster
@_options.as_json
def command(kubectl: Kubectl, job: str | None, as_json: bool) -> None:
    here, seen = collect.find(kubectl, job, logs=False)
    output.note(f"asking {output.count(len(seen.pods), 'pod')} of {seen.name}")
    found = devices.report(here, seen)
    if as_json:
        facts = {"job": seen.name, "uid": seen.uid, "devices": [asdict(one) for one in found.devices]}
        output.data({**facts, "wrong": found.wrong, "not_seen": found.unseen})
    else:
        output.line(status.header(seen))
        if found.devices:
            output.table(devices.rows(found))
        for text in found.wrong:
            output.line(f"FAIL: {text}")
        for text in found.unseen:
            output.line(f"CANNOT TELL: {text}")
    raise click.exceptions.Exit(1 if found.wrong else 3 if found.unseen else 0)
