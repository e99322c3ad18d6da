"""The fixtures of local runs serve the commands too."""

from tests.local.conftest import _copied, _wait_until, checkout, make_job

__all__ = ["_copied", "_wait_until", "checkout", "make_job"]
