"""A program in a pod that answers questions, one line each: a single `kubectl exec` for all of them."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from tools.job.snapshot import JobPod
from tools.kube import Kubectl, Object
from tools.kube.kubectl import failure, started

SECONDS = 120.0  # for one answer
LONGEST = 4 << 20  # bytes of an answer
CHUNK = 1 << 16


class PodTalk:
    """The program of one pod, from its start to `close`."""

    def __init__(self, kubectl: Kubectl, pod: JobPod, program: str) -> None:
        self.pod = pod.name
        command = ("python3", "-u", "-c", program)
        words = kubectl.words("exec", f"--container={pod.container_name}", "--stdin", names=[pod.name], command=command)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with `close`
        pipe = subprocess.PIPE
        self._process = started(words, stdin=pipe, stdout=pipe, stderr=self._errors)

    def ask(self, question: Object) -> Object | str:
        """Return the answer to a question, or why there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(b"".join(self._line()))
        except (OSError, EOFError):
            return self._complaint()
        except (ValueError, RecursionError):
            return "the answer is not JSON"
        if not isinstance(answer, dict):
            return "the answer is not an object"
        return str(answer["error"]) if "error" in answer else answer

    def _line(self) -> Iterator[bytes]:
        """Yield the parts of one line. Raises EOFError if it is late, too long or not whole."""
        assert self._process.stdout is not None
        deadline, size = time.monotonic() + SECONDS, 0
        while select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self._process.stdout.fileno(), CHUNK)
            size += len(part)
            if not part or size > LONGEST:
                break
            yield part
            if part.endswith(b"\n"):
                return
        raise EOFError

    def _complaint(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        said = self._errors.read(CHUNK).decode("utf-8", "replace")
        return failure("exec", said).message if said.strip() else f"no answer within {SECONDS:.0f} s"

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
