"""A rank without torch: records steps and saves as the probe does, and carries out the fault of its start."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from training.prove.records import Begin, Injected, Save, Step, Writer

LAST = 9


def main() -> None:
    options = set(sys.argv[1:])
    spec = json.loads(Path(os.environ["TRAINYARD_PROVE"]).read_text(encoding="utf-8"))
    rank = int(os.environ.get("NODE_RANK", "0"))
    writer = Writer(Path(spec["out"]) / f"rank-{rank}-{os.getpid()}.jsonl")
    writer.write(Begin(rank, 0, 1, rank, os.getpid(), sys.argv, "3"))
    while "meet" in options and len(list(Path(spec["out"]).glob("rank-*"))) < 2:  # ranks of a real job wait too
        time.sleep(0.02)
    place = Path(f"kept/step{rank or ''}")
    first = int(place.read_text()) if place.exists() else 0
    said = f"first {first} scratch {Path('scratch').exists()} node {rank} port {os.environ['MASTER_PORT']}"
    os.write(1, f"{said}\n".encode())  # one write: nodes share the log
    Path("scratch").write_text("lost")
    place.parent.mkdir(exist_ok=True)
    ended: list[int] = []
    if "deaf" not in options:
        signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    for step in range(first + 1, LAST + 1):
        writer.write(_step(step))
        if step % 3 == 0 and "no-saves" not in options:
            place.write_text(str(step))
            writer.write(Save(step, step // 3, str(place.resolve()), 1, "file", False, 0.0))
        _fault(spec.get("fault") or {}, step, writer, rank, ended)
        if ended:
            place.write_text(str(step))
            sys.exit(143)


def _fault(fault: dict[str, Any], step: int, writer: Writer, rank: int, ended: list[int]) -> None:
    if not fault or fault["kind"] == "torn-save" or fault["step"] != step:
        return
    writer.write(Injected(fault["kind"], rank, step))
    if fault["kind"] == "exception":
        raise RuntimeError("planted")
    end = time.monotonic() + 600.0
    while not ended and time.monotonic() < end:
        time.sleep(0.02)


def _step(number: int) -> Step:
    return Step(number, 0, "SGD", "a", "b", "c", "d", {}, [0.1], None, 0.01)


if __name__ == "__main__":
    main()
