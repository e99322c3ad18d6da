"""One rank as a process, from the command line to its exit code; the same for all tasks."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch.distributed as dist

from training.checkpoint.errors import CheckpointError
from training.config import ConfigError, load
from training.data.errors import DataError
from training.distributed.process import Attempt, die_with_parent
from training.run import failure, heartbeat
from training.run.directory import RunDir
from training.task import Task
from training.trainer.loop import log, train


def main(task: Task, about: str | None) -> None:
    """Command line of a task's module; `about` is its help. Exit codes: `training.run.failure.CODES`."""
    die_with_parent()
    attempt = Attempt()
    parser = argparse.ArgumentParser(prog=f"python -m {task.module}", description=about)
    parser.add_argument("--config", required=True, help="directory with model.yaml, hardware.yaml and cell.yaml")
    arguments = parser.parse_args()
    directory = RunDir(os.environ.get("TRAINYARD_RUN", f"local/runs/{task.module.rpartition('.')[2]}"))
    data_root = Path(os.environ.get("TRAINYARD_DATA", "local/data"))
    rank = int(os.environ.get("RANK", "0"))
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        heartbeat.begin(directory.heartbeat, rank)
        train(task, load(arguments.config), directory, data_root, attempt)
    except Exception as error:  # noqa: BLE001 - every failed rank leaves a record
        sys.exit(_fail(error, rank, attempt, directory))
    finally:
        logging.shutdown()
    heartbeat.enter("done")
    if dist.is_initialized():
        dist.destroy_process_group()


def _fail(error: Exception, rank: int, attempt: Attempt, directory: RunDir) -> int:
    """Log and record why this rank stops; return its exit code."""
    kind = failure.classify(error)
    own = (failure.LossError, failure.ReplicaError, failure.Drained)
    known = isinstance(error, (ConfigError, DataError, CheckpointError, *own))
    text = f"rank {rank}: {kind}: {failure.message(error)}"
    if log.handlers:
        log.error(text)
    else:  # failed before the logs were opened: the logger would write the same line to standard error
        sys.stderr.write(f"{text}\n")  # print would write the newline separately, and ranks share the stream
    if not known:
        log.debug("traceback", exc_info=error)  # only in this rank's log file
    try:
        failure.record(error, rank, attempt.step, directory, heartbeat.current())
    except OSError as why:
        print(f"rank {rank}: the failure record was not written: {why}", file=sys.stderr, flush=True)
    return failure.CODES[kind]
