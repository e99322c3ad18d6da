"""Show the accelerators of every pod in one table: ranks, memory, use, temperature, power, errors.

nvidia-smi or neuron-monitor is asked in each pod that runs; what agents say of the nodes (EKS: the condition
AcceleratedHardwareReady, where an Xid ends up; HyperPod: its health label) stands below.

\b
Examples:
  yard job devices p5-llama-3-1-8b-train
  yard job devices --json

\b
Exit codes: 0 all are seen and well, 1 an error or a missing device, 3 one could not be seen.
"""

from __future__ import annotations

import click

from tools.cli.job import _options
from tools.core import output
from tools.job import devices
from tools.job.snapshot import collect, lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="memory, use and errors of the accelerators by rank")
@_options.job
@_options.cluster
@_options.as_json
def command(kubectl: Kubectl, job: str | None, as_json: bool) -> None:
    seen = collect.collect(kubectl, lookup.job_name(kubectl, job), logs=False)
    output.note(f"asking {output.count(len(seen.pods), 'pod')} of {seen.name}")
    found = devices.look(Kubectl(kubectl.context, seen.namespace), seen)
    if as_json:
        rows = [one.as_dict() for one in found.devices]
        facts = {"job": seen.name, "uid": seen.uid, "devices": rows}
        output.data({**facts, "wrong": found.wrong, "not_seen": found.unseen})
    else:
        output.line(f"{seen.namespace}/{seen.name} ({seen.uid})")
        for line in devices.lines(found) if found.devices else ():
            output.line(f"  {line}")
        for text in found.wrong:
            output.line(f"FAIL: {text}")
        for text in found.unseen:
            output.line(f"CANNOT TELL: {text}")
    raise click.exceptions.Exit(1 if found.wrong else 3 if found.unseen else 0)
