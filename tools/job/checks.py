"""What has to be true before anything of a cell is applied."""

from __future__ import annotations

from collections.abc import Callable

from tools.core.errors import UserError
from tools.core.verdict import State
from tools.job import submit
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests
from tools.preflight.evaluate import evaluate


def check(kubectl: Kubectl, manifests: Manifests, say: Callable[[str], None]) -> None:
    """Raise UserError for what would fail on the cluster and can be known beforehand."""
    judged = evaluate(manifests)
    failed = judged.of(State.FAIL)
    for verdict in failed:
        say(f"FAIL {verdict.details['rule']}: {verdict.summary}")
    if failed:
        hint = f"yard preflight {manifests.source}"
        raise UserError(f"{manifests.source}: preflight fails, nothing was applied", hint, 1)
    unseen = submit.check_namespace(kubectl)
    if unseen:
        say(f"the namespace could not be looked at: {unseen}")
    missing = list(submit.missing(kubectl, manifests))
    if missing:
        where = f"namespace {kubectl.namespace} lacks {', '.join(missing)}"
        raise UserError(
            f"{where}: nothing was applied", "base/storage has claims; secrets are yours to make", 1
        )
