"""The fixtures of local runs and of jobs serve the attacks on them too."""

from tests.job.conftest import cluster, rendered, world, yard
from tests.local.conftest import _copied, _wait_until, checkout, make_job

__all__ = ["_copied", "_wait_until", "checkout", "cluster", "make_job", "rendered", "world", "yard"]
