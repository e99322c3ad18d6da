"""Takes the values of secret variables out of texts that are kept in the run directory."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST = 8  # characters; a shorter value also occurs by chance


class Mask:
    """Replaces the values of the variables whose names end like a secret's."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        values = {value for name, value in environment.items() if _NAME.search(name)}
        self._values = sorted((one for one in values if len(one) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, "***")
        return text
