"""Starts scripts under torchrun with the probe, as the runner does, and reads what they recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.prove import records

ROOT = Path(__file__).resolve().parents[2]
PROBE = ROOT / "training/prove/path"
# The environment of a start: nothing of the caller's but the paths to programs.
VARIABLES = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
}


@dataclass
class Started:
    """One start of a script, after its end."""

    exit_code: int
    output: str
    workdir: Path
    ranks: dict[int, list[Any]] = field(default_factory=dict)  # of the process with the most events
    files: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    workers: list[records.Worker] = field(default_factory=list)

    def of(self, rank: int, kind: type[Any]) -> list[Any]:
        """Return the events of one kind of a rank."""
        return [event for event in self.ranks[rank] if isinstance(event, kind)]

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for rank in self.ranks for event in self.of(rank, kind)]


def launch(
    workdir: Path,
    script: str | Path,
    *arguments: str,
    ranks: int = 2,
    steps: int = 5,
    fault: dict[str, Any] | None = None,
    probe: bool = True,
    variables: dict[str, str] | None = None,
    timeout: float = 300,
    **instructions: Any,
) -> Started:
    """Start a script (its text, or its file) in a directory: under torchrun, or with `ranks` 0 by Python alone."""
    workdir.mkdir(parents=True, exist_ok=True)
    if isinstance(script, str):
        path = workdir / "train.py"
        path.write_text(textwrap.dedent(script), encoding="utf-8")
    else:
        path = script
    out = workdir / "records"
    number = sum(1 for _ in out.glob("*")) if out.exists() else 0
    out = out / str(number)
    out.mkdir(parents=True)
    given = {"out": str(out), "steps": steps, "node": 0, "fault": fault, "stand_in": False, "kept": [], **instructions}
    (out / "probe.json").write_text(json.dumps(given), encoding="utf-8")
    environment = {**VARIABLES, "HOME": str(workdir), **(variables or {})}
    if probe:
        environment |= {"PYTHONPATH": str(PROBE), "TRAINYARD_PROVE": str(out / "probe.json")}
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *torchrun, str(path), *arguments]
    with subprocess.Popen(
        command, cwd=workdir, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
    files = records.ranks(out)
    started = Started(process.returncode, output, workdir, files=files, workers=records.workers(out, records.Worker))
    for (rank, _), events in files.items():
        started.ranks[rank] = max(started.ranks.get(rank, []), events, key=len)
    return started
