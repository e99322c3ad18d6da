"""Watch all jobs: phase, step, loss, speed, time left, price, and the cause where one does not train."""

import functools
from collections.abc import Sequence
from dataclasses import asdict

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import top
from tools.kube import Kubectl
from tools.kube.kubectl import CANNOT_SEE


@_options.cluster
def command(kubectl: Kubectl, everywhere: bool, every: int, once: bool, as_json: bool) -> int:
    found, unseen = top.rows(kubectl, everywhere)
    if as_json:
        output.data({"jobs": [asdict(row) for row in found], "not_seen": unseen})
        return CANNOT_SEE if unseen else 0
    with output.repainted(not once) as page:
        page.show(functools.partial(_show, found, unseen))
        while page.painter is not None and page.wait(every):
            try:
                found, unseen = top.rows(kubectl, everywhere)
            except UserError as problem:
                if problem.code != CANNOT_SEE:
                    raise
                output.note(f"not seen this time: {problem.message}")
                continue
            page.show(functools.partial(_show, found, unseen))
    return CANNOT_SEE if unseen else 0


def _show(found: Sequence[top.Row], unseen: dict[str, str]) -> None:
    rows, states = top.table(found)
    output.table(rows, indent="", head=True, states=states) if found else output.line("no job")
    for what, reason in unseen.items():
        output.note(f"not seen: {what}: {reason}")
