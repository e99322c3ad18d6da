"""Commands of yard and of other programs that are run one after the other, with their output."""

import functools
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tools.core import UserError, repo

LAST_LINES, LONGEST_LINE = 5, 65536  # characters
INSTALL = {
    "eksctl": "install eksctl 0.230 or newer: https://docs.aws.amazon.com/eks/latest/eksctl/installation.html",
    "kind": "install kind: https://kind.sigs.k8s.io",
    "minikube": "install minikube: https://minikube.sigs.k8s.io",
    "kubectl": "install kubectl 1.31 or newer: https://kubernetes.io/docs/tasks/tools/",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """A command, and its purpose."""

    title: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)


def run(step: Step, hint: str, say: Say) -> None:
    """Run a command and print its output. Raises UserError with its last error where it fails."""
    words = step.words
    if words[0] == "yard":
        words = (sys.executable, "-m", "tools.cli", *words[1:])
    last: deque[str] = deque(maxlen=LAST_LINES)
    null, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    try:
        process = subprocess.Popen(
            words, cwd=repo.project(), stdin=null, stdout=pipe, stderr=both, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise UserError(f"{words[0]} is not on PATH", INSTALL.get(words[0])) from None
    with process:
        assert process.stdout is not None
        try:
            for line in iter(functools.partial(process.stdout.readline, LONGEST_LINE), ""):
                last.append(line.strip())
                say(f"  {line.rstrip()}")
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode != 0:
        said = [line for line in reversed(last) if line]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        cause = next(iter((*errors, *said)), "no output")
        # The exit codes of yard keep their meaning.
        code = process.returncode if step.words[0] == "yard" and process.returncode in (2, 3) else 1
        raise UserError(f"{' '.join(step.words[:3])} failed: {cause}", hint, code)
