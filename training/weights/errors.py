"""The error for weights that cannot be used."""

from __future__ import annotations

from training.config import ConfigError


class WeightsError(ConfigError):
    """`model.weights` cannot be used; the message says what is wrong, where, and how to fix it."""
