"""Fill the compile cache before training: `python -m training.precompile torchrun -m training.bert ...`.

The command is the one that trains. neuron_parallel_compile runs it with NEURON_EXTRACT_GRAPHS_ONLY: the
trainer then shows two steps and the held-out data to the compiler and computes nothing. The compiler compiles
these graphs in parallel into this run's cache of `device.cacheset`. The training job copies them from there.

Exit codes: 0 every graph is compiled, 1 some are not or it is unknown, 78 configuration, 143 stopped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from training.config import Config, ConfigError, load
from training.distributed.process import tied_to
from training.neuron import cache as neuron_cache
from training.neuron import compile_log
from training.run.directory import RunDir
from training.run.failure import CODES

COMPILER = "neuron_parallel_compile"


def main(words: Sequence[str]) -> int:
    """Precompile for a training command; return the exit code."""
    try:
        return _precompile(words, _config(words))
    except ConfigError as error:
        print(f"config: {error}", file=sys.stderr)
        return CODES["config"]


def _config(words: Sequence[str]) -> Config:
    if "--config" not in words[:-1]:
        raise ConfigError(
            "no --config; for example: python -m training.precompile torchrun -m training.bert --config DIR"
        )
    config = load(words[words.index("--config") + 1])
    if config.device.type != "neuron":
        raise ConfigError(f"device.type is {config.device.type}: only neuron compiles graphs in advance")
    if shutil.which(COMPILER) is None:
        raise ConfigError(f"{COMPILER} is not on PATH: it comes with torch-neuronx (image trainer-neuron)")
    return config


def _precompile(words: Sequence[str], config: Config) -> int:
    cache = neuron_cache.use(config)
    print(f"compiling the graphs of {' '.join(words)} into {cache}", flush=True)
    said: list[str] = []
    run = os.environ.setdefault("TRAINYARD_RUN", "local/runs/precompile")  # the ranks share the claim
    with neuron_cache.claimed(cache, RunDir(run).name):
        code, stopped = _run([COMPILER, *words], said)
    if stopped:
        return CODES["drained"]
    if code:
        print(f"{COMPILER} failed with exit code {code}", file=sys.stderr)
        return 1
    found = compile_log.summaries(said)
    if not found:
        print(f"{COMPILER} printed no summary: whether graphs were compiled is unknown", file=sys.stderr)
        return 1
    summary = compile_log.together(found)
    print(f"{summary.line()}; cache {cache}", flush=True)
    return 0 if summary.good else 1


def _run(command: Sequence[str], said: list[str]) -> tuple[int, bool]:
    """Run the compiler, pass on its output and our signals; return its code and whether it was stopped."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        preexec_fn=tied_to(os.getpid()),
    )  # fmt: skip
    with _passing_signals_to(child) as stopped:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            if "PARALLEL_COMPILE||: Total" in line:
                said.append(line)
        return child.wait(), bool(stopped)


@contextmanager
def _passing_signals_to(child: subprocess.Popen[str]) -> Iterator[list[int]]:
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
