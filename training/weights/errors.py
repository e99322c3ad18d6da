"""The error of published weights that cannot be used."""

from __future__ import annotations

from training.config import ConfigError


class WeightsError(ConfigError):
    """`model.weights` names what cannot be used; the message says what and where, and what helps."""
