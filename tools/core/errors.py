"""The one exception that a wrong input ends in."""

from __future__ import annotations


class UserError(Exception):
    """Something the user gave is wrong or missing, and the user can put it right.

    `tools.cli` prints it as one `error:` line, with `hint` on a line of its own, and exits with `code`:
    2 for bad input, 1 for a run that failed, 3 where nothing can be said.
    """

    def __init__(self, message: str, hint: str | None = None, code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
