"""Python's tracebacks as logs show them: plain, in a notebook's form, or in the boxes of the package rich."""

from dataclasses import dataclass, field

from tools.job.diagnosis.log_patterns import form
from tools.job.snapshot.log_lines import Line


@dataclass
class Traceback:
    """What was read of a traceback. `frames` has those of the exceptions that it comes from first.

    `place` is the last frame that is not in Python's standard library, with its line of code. `last` is the
    last line that was read, `index` its place among the lines. `ignored`: Python has ignored the exception.
    `boxed`: the package rich has drawn it.
    """

    place: str = ""
    frames: list[str] = field(default_factory=list)
    ignored: bool = False
    last: Line | None = None
    index: int = 0
    boxed: bool = False

    def add(self, body: str) -> bool:
        """Add a line: a frame, or code of the frame before. Return whether the traceback has this line."""
        frame = form("frame").match(body) or form("cell_frame").match(body) or form("box_frame").match(body)
        code = form("box_code").match(body)
        if frame:
            self._add_frame(frame[1].replace("\\", "/"), frame[2] or "0", frame[3])
            self.boxed = body.startswith("│")
        elif code:
            self.boxed = True
            self._add_code(code[2] if code[1] or not self.frames else "")
        elif not body.strip() or (body[0].isspace() and not form("exception").match(body.strip())):
            self._add_code("" if body.lstrip()[:1].isdigit() else body)
        else:
            return form("box").match(body) is not None or form("cell_code").match(body) is not None
        return True

    def _add_frame(self, path: str, line: str, function: str | None) -> None:
        self.frames.append(f"/{path}:{line}" + (f", in {function}" if function else ""))
        if not form("pythons_own").search(path):
            self.place = self.frames[-1]

    def _add_code(self, code: str) -> None:
        if code.strip() and (not self.frames or " | " not in self.place):
            self.place = f"{self.place.partition(' | ')[0]} | {code.strip()}"

    @property
    def launchers(self) -> bool:
        """Whether it is that of a launcher, which says nothing of what its children did."""
        return any(form("launcher").search(frame) for frame in self.frames)

    @property
    def raises(self) -> str:
        """The exception that its last line of code raises, with its message."""
        raised = form("raises").search(self.place)
        return f"{raised[1]}: {raised[3] or ''}" if raised else ""


def of_program(stack: str) -> str:
    """Return the last frame that is neither in an installed package nor in Python's standard library, else ""."""
    own = (frame for frame in reversed(stack.splitlines()) if "-packages/" not in frame)
    return next((frame[1:] for frame in own if not form("pythons_own").search(frame[1:])), "")
