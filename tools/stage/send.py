"""Sends files of this machine to the pod that sees the claim; training/stage/push.py has the protocol."""

import contextlib
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tools.core import Say, UserError, command_line, output, wait
from tools.kube import Kubectl
from tools.kube.kubectl import started
from tools.stage.pods import CONTAINER, TARGET
from tools.stage.request import Request
from training.stage.offer import Broken, Changed, Offer

LARGEST = 1 << 28  # bytes of the pod's messages
TRIES = 5  # without a new byte: a stream through the API server may break off
SILENCE = 900.0  # seconds for digests and unpacking of what was sent
REFUSED = "2"  # exit code of training.stage for what another attempt cannot change
ENDED = "command terminated with exit code "


def send(kubectl: Kubectl, pod: str, asked: Request, say: Say) -> dict[str, Any]:
    """Send the request's files through a running pod, and return its program's answer. Raises UserError."""
    offer = Offer(Path(asked.source), asked.include)
    if not offer.files:
        raise UserError(f"{asked.source}: there is no file to send")
    say(f"sending {output.count(len(offer.files), 'file')}, {output.size(offer.total)}")
    tries, before = 0, 0
    while True:
        try:
            return _attempt(kubectl, pod, asked, offer, say)
        except Changed as problem:
            raise UserError(str(problem), code=1) from None
        except Broken as problem:
            tries = 1 if offer.there > before else tries + 1
            before = max(before, offer.there)
            say(f"{problem}: attempt {tries} of {TRIES}")
            if tries == TRIES:
                hint = "the same command continues where it stopped"
                raise UserError(f"{asked.source} was not sent: {problem}", hint, 1) from None
            time.sleep(2.0)


def _attempt(kubectl: Kubectl, pod: str, asked: Request, offer: Offer, say: Say) -> dict[str, Any]:
    program = ["python", "-m", "training.stage", "receive", *asked.options(), f"--to={TARGET}/{asked.path}"]
    words = kubectl.words("exec", f"--container={CONTAINER}", "--stdin", names=[pod], command=program)
    pipe = subprocess.PIPE
    process = started(words, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    complaint = command_line.Reader(process.stderr, LARGEST)
    complaint.start()
    silent = threading.Timer(SILENCE, process.kill)
    try:
        answer = offer.made(process.stdin, process.stdout, wait.sparing(say), silent.start)
        if "digest" in answer:
            return answer
    finally:
        silent.cancel()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        process.kill()
        process.wait()
        process.stdout.close()
    complaint.join(2.0)
    lines = complaint.data.decode("utf-8", "replace").splitlines()
    said = [line.strip().removeprefix("error: ") for line in lines if line.strip()]
    own = next((line for line in reversed(said) if not line.startswith(ENDED)), "the stream broke off")
    if f"{ENDED}{REFUSED}" in said or "orbidden" in own:
        raise UserError(own, code=1)
    raise Broken(own)
