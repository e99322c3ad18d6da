"""Stands in for the trainer in tests of the runner; `DO` says what it does, on rank `ON` or on all.

It knows only what a container knows: its environment. It leaves what it saw in TRAINYARD_RUN. `fail` first waits
for the file AFTER there, which another pod writes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RUN = Path(os.environ["TRAINYARD_RUN"])
RANK = int(os.environ.get("RANK", "0"))
POD = os.environ["HOSTNAME"]


def main() -> int:
    """Do what DO says and return the exit code."""
    RUN.mkdir(parents=True, exist_ok=True)
    (RUN / f"environment-{POD}.json").write_text(json.dumps(dict(os.environ)))
    # One write a line: torchrun starts its ranks unbuffered, and print's newline is a write of its own.
    sys.stdout.write(f"hello from {POD}\n")
    sys.stdout.flush()
    sys.stderr.write(f"warning of {POD}\n")
    chosen = os.environ.get("ON", str(RANK)) == str(RANK)
    return {
        "end": end,
        "fail": fail,
        "fail once": fail_once,
        "record": record,
        "wait": wait,
        "orphan": orphan,
        "finish": finish,
        "meet": meet,
    }[os.environ.get("DO", "end") if chosen else os.environ.get("ELSE", "end")]()


def end() -> int:
    return 0


def fail() -> int:
    while "AFTER" in os.environ and not (RUN / os.environ["AFTER"]).exists():
        time.sleep(0.05)
    raise ValueError("the stand-in was told to fail")


def fail_once() -> int:
    """Fail at the first attempt, after one step. Succeed at the second."""
    if (RUN / "metrics.jsonl").exists():
        return 0
    (RUN / "metrics.jsonl").write_text('{"step": 1}\n')
    return 3


def record() -> int:
    """Record a failure and its consequence, then exit with the code in CODE."""
    now = time.time()
    if "EARLIER" in os.environ:  # a failure that a restart has cured: the run has made a step since
        path = RUN / "failures" / f"{int(now * 1000)}-rank-00000.json"
        path.parent.mkdir(exist_ok=True)
        values = {
            "class": "error",
            "rank": 0,
            "host": "here",
            "step": 3,
            "message": "cured",
            "time": now - 60,
        }
        path.write_text(json.dumps(values))
        (RUN / "metrics.jsonl").write_text(json.dumps({"step": 4, "time": now}) + "\n")
    for offset, rank, kind, message in (
        (0.0, 1, os.environ["CLASS"], "told to"),
        (-0.1, 0, "lost peer", "gone"),
    ):
        moment = now + offset
        path = RUN / "failures" / f"{int(moment * 1000)}-rank-{rank:05d}.json"
        path.parent.mkdir(exist_ok=True)
        values = {
            "class": kind,
            "rank": rank,
            "host": "here",
            "step": 7,
            "message": message + "\nmore",
            "time": moment,
        }
        path.write_text(json.dumps(values))
    return int(os.environ["CODE"])


def wait() -> int:
    """Wait for SIGTERM with a child process, write a file that says so, and exit as a drained trainer
    does.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    child.stdout.readline()  # from now on it dies with this process

    def drain(number: int, _frame: object) -> None:
        (RUN / f"drained-{POD}").write_text(signal.Signals(number).name)
        child.kill()
        sys.exit(143)

    signal.signal(signal.SIGTERM, drain if os.environ.get("STUBBORN") is None else signal.SIG_IGN)
    (RUN / f"waiting-{POD}").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


def orphan() -> int:
    """Leave a child in its own session behind, as a killed torchrun leaves its workers."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (RUN / f"orphan-{POD}").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def finish() -> int:
    steps = int(os.environ.get("STEPS", "5"))
    report = {
        "step": steps,
        "steps": steps,
        "heldout_loss": 5.0,
        "ln_vocab": 8.3178,
        "unigram_nats": 6.7,
        "tokens_per_s": 1234.5,
        "mfu": 0.25,
        "samples": [{"prompt": "import ", "text": "os\nimport sys"}],
        "checkpoint": "checkpoints/step-00000005",
        "seconds": 12.0,
    }
    (RUN / "report.json").write_text(json.dumps(report))
    return 0


def meet() -> int:
    """Record which pods are in one job with this one."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    pods: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(pods, POD)
    (RUN / f"met-{POD}").write_text(json.dumps(sorted(pods)))
    dist.destroy_process_group()
    return 0


CHILD = f"""
import ctypes, time
ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)}, 0, 0, 0)
print("tied", flush=True)
time.sleep(600)
"""

if __name__ == "__main__":
    sys.exit(main())
