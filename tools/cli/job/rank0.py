"""Print the pod of rank 0, and the evidence for it."""

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job.ranks import rank_zero
from tools.job.snapshot import collect
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str | None, only_name: bool, as_json: bool) -> int:
    _, seen = collect.find(kubectl, job)
    found = rank_zero(seen)
    if found is None:
        seen.require_pods()
        raise UserError(f"no pod of {seen.name} has the number 0", code=3)
    if as_json:
        facts = {"pod": found.pod.name, "uid": found.pod.uid, "node": found.pod.node}
        output.data({"job": seen.name, **facts, "certain": found.certain, "how": found.how})
    elif only_name:
        if not found.certain:
            raise UserError(f"perhaps {found.pod.name}: {found.how}", code=3)
        output.line(found.pod.name)
    else:
        sure = "" if found.certain else "perhaps "
        output.line(f"{sure}{found.pod.name} ({found.pod.uid}): {found.how}")
    return 0 if found.certain else 3
