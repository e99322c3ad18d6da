"""What several commands of `yard image` are told in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from tools.core.errors import UserError


def arguments(given: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE options as a dictionary. Raises UserError where one has no `=`."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--build-arg {text}: not NAME=VALUE")
        found[name] = value
    return found
