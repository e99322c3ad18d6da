"""Show the accelerators of every pod in one table: ranks, memory, utilization, temperature, power, errors."""

from dataclasses import asdict

from tools.cli.job import _options
from tools.core import State, output
from tools.job import devices, status
from tools.job.snapshot import collect
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str | None, as_json: bool) -> int:
    here, seen = collect.find(kubectl, job, logs=False, around=True)
    output.note(f"asking {output.count(len(seen.pods), 'pod')} of {seen.name}")
    found = devices.report(here, seen)
    if as_json:
        facts = {"job": seen.name, "uid": seen.uid, "devices": [asdict(one) for one in found.devices]}
        output.data({**facts, "wrong": found.wrong, "not_seen": found.unseen})
    else:
        output.line(status.header(seen))
        states = [State.FAIL if one.problems else None for one in found.devices]
        if found.devices:
            output.table(devices.rows(found), head=True, states=states)
        for text in found.wrong:
            output.line(f"FAIL: {text}", state=State.FAIL)
        for text in found.unseen:
            output.line(f"CANNOT TELL: {text}", state=State.CANNOT_TELL)
    return 1 if found.wrong else 3 if found.unseen else 0
