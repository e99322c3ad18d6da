"""The exception for errors that the user can correct."""


class UserError(Exception):
    """An error that the user can correct.

    `tools.cli` prints the message as one `error:` line, the hint below it, and exits with `code`: 2 for bad
    input, 1 for a failed run, 3 if the answer is unknown.
    """

    def __init__(self, message: str, hint: str | None = None, code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
