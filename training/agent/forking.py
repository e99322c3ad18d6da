"""torchrun in the edit loop: the ranks of a user's script are forked from a process that has imported torch.

`agent.pyz --fork ...` stands in place of torchrun, with its arguments, and runs it with `training.pod.fork_server`.
A rank gets what torchrun would give it: arguments, variables, paths, signals, and a `__main__` of its own. It
also has the modules that `training.agent.installed` has imported. Its variables do not show in /proc, so it
calls itself `rank N` there.
"""

from __future__ import annotations

import atexit
import builtins
import os
import runpy
import shutil
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from training.pod import fork_server

FORK = "--fork"
MODULE = ("-m", "torch.distributed.run")
INSTALLED = f"{__package__}.installed"


def is_torchrun(words: Sequence[str]) -> bool:
    """Whether a command is torchrun, or what stands in its place."""
    return os.path.basename(words[0]) == "torchrun" or FORK in words[1:3] or MODULE[1] in words[:4]


def command(words: Sequence[str], archive: str) -> list[str]:
    """Return a command whose ranks are forked, or the same command; say why in that case."""
    python, rest = None, list(words[1:])
    if tuple(words[1:3]) == MODULE:
        python, rest = [words[0]], list(words[3:])
    elif os.path.basename(words[0]) == "torchrun":
        python = _interpreter(shutil.which(words[0]))
    if python is None:
        _say(f"{words[0]} is not a torchrun of Python: a changed script imports torch again")
        return list(words)
    return [*python, archive, FORK, *rest]


def _interpreter(script: str | None) -> list[str] | None:
    """Return the Python that the first line of a script names."""
    try:
        with open(script or "", "rb") as file:
            first = os.fsdecode(file.readline(4096)).split()
    except OSError:
        return None
    words = [first[0][2:], *first[1:]] if first and first[0].startswith("#!/") else [""]
    return words if os.path.basename(words[-1]).startswith("python") else None


def main(words: Sequence[str]) -> None:
    """Run torchrun with these arguments."""
    fork_server.launch(words, INSTALLED, _forked)


def _forked(run: Any, words: list[str]) -> tuple[str, list[str]]:
    """Return why the ranks cannot be forked, or "", and the arguments of torchrun."""
    parsed = run.parse_args(words)
    if parsed.no_python or "PYTHON_EXEC" in os.environ:
        return "torchrun starts another program than its own Python", words
    run.run_script_path = module if parsed.module else script  # what --run-path calls in each rank
    return "", ["--start_method=forkserver", "--run_path", *words]  # as torch 1 has them too


def script(path: str, *words: str) -> None:
    """Run a script in a forked rank, as `python -u PATH` does."""

    def run() -> None:
        own = vars(sys.modules["__main__"])
        own["__file__"] = os.path.abspath(path)
        exec(compile(Path(path).read_bytes(), own["__file__"], "exec", dont_inherit=True), own)

    _run(run, [path, *words], os.path.dirname(os.path.realpath(path)))


def module(name: str, *words: str) -> None:
    """Run a module in a forked rank, as `python -u -m NAME` does."""
    _run(lambda: runpy._run_module_as_main(name), [name, *words], os.getcwd())  # type: ignore[attr-defined]


def _run(start: Callable[[], object], words: list[str], directory: str) -> None:
    from training.agent import installed

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the server looks for new modules on it
    fork_server.set_up()
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = builtins
    sys.argv[:] = words
    sys.path[0] = directory  # it was the archive's
    installed.forget_hidden(directory)
    if os.environ.get("LOCAL_RANK") == "0":
        installed.record()
    code: object = 0
    try:
        start()
    except SystemExit as end:
        code = end.code
    except Exception as problem:  # noqa: BLE001 - the script's own
        own = _of_the_script(problem.__traceback__)
        sys.excepthook(type(problem), problem.with_traceback(own), own)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # a process of multiprocessing ends without these two
    atexit._run_exitfuncs()
    if code not in (None, 0):
        sys.exit(code)  # type: ignore[arg-type]


def _of_the_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leave out the frames that started the script."""
    ours = (__file__, script.__code__.co_filename, runpy.run_module.__code__.co_filename)
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _say(text: str) -> None:
    print(f"agent: {text}", file=sys.stderr, flush=True)
