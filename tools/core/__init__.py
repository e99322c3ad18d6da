"""Errors, output, verdicts, paths and waiting: what every other package builds on."""

from tools.core.errors import UserError
from tools.core.repo import did_you_mean, nearest
from tools.core.timestamps import duration, moment
from tools.core.verdict import State, Verdict, bad, doubtful, good, unclear, worst
from tools.core.wait import Say

__all__ = [
    "Say", "State", "UserError", "Verdict", "bad", "did_you_mean", "doubtful", "duration", "good", "moment",
    "nearest", "unclear", "worst",
]  # fmt: skip
