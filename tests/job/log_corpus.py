"""The corpus of logs: tests/job/logs/<class>/<name>.log.

The first line of a file, `# why: oom-device`, is the class that `why` must name: that of the first failure
and not of its victims. `, as in ADDRESS` behind it names a thread that has the same error. The rest is the
log of a failed container, in the words of torch, NCCL, the Neuron runtime, Hugging Face's libraries, boto,
shells and trainers. The logs of the class `healthy` report no failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOGS = Path(__file__).with_name("logs")
HEADER = "# why: "
HEALTHY = "healthy"


@dataclass(frozen=True)
class Case:
    """One log and its class."""

    name: str
    why: str
    text: str


def _read(path: Path) -> Case:
    # In bytes: a progress bar's carriage returns stay what they are.
    header, _, text = path.read_bytes().decode("utf-8").partition("\n")
    why, _, source = header.removeprefix(HEADER).partition(", as in ")
    assert header.startswith(HEADER + path.parent.name), f"{path}: not `{HEADER}<its directory>`"
    assert why == path.parent.name, f"{path}: {why}"
    assert not source or source.startswith("https://github.com/"), f"{path}: {source}"
    return Case(f"{path.parent.name}/{path.stem}", path.parent.name, text.removesuffix("\n"))


CASES = [_read(path) for path in sorted(LOGS.glob("*/*.log"))]
