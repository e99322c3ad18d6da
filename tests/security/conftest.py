"""The fixtures of local runs and of jobs serve the attacks on them too, beside those of attacked checkpoints."""

from tests.job.conftest import cluster, rendered, world, yard
from tests.local.conftest import _copied, _wait_until, checkout, make_job
from tests.security.hostile import bounded, give, steps

__all__ = [
    "_copied", "_wait_until", "bounded", "checkout", "cluster", "give", "make_job", "rendered", "steps",
    "world", "yard",
]  # fmt: skip
