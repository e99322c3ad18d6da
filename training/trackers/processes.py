"""The processes that send a run's metrics, one for each tracker, as rank 0 starts and ends them.

They read the files that the trainer writes anyway. So the trainer hands nothing over, and a tracker that is dead, slow
or refuses can neither stop nor slow it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable

from training.config import ConfigError, Track
from training.run.directory import RunDir, write_json
from training.trackers.rows import SETTINGS

END_SECONDS = 15  # for what is left to send when the trainer ends
KILL_SECONDS = 5  # after those, for a process that has not ended by itself
FAILED_SECONDS = 2  # the same where the trainer fails or stops: another attempt may follow, and sends the rest
PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb", "trackio": "trackio"}  # by tracker, which is the module's name
_PLUGIN = "sagemaker-mlflow"


def check_packages(track: Track | None) -> None:
    """Raise ConfigError if the package of a tracker is not installed."""
    if track is None:
        return
    wanted = {name: (name, PACKAGES[name]) for name in track.trackers}
    if track.mlflow is not None and track.mlflow.sagemaker:
        wanted["mlflow.uri"] = ("sagemaker_mlflow", _PLUGIN)
    for key, (module, package) in wanted.items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"track.{key} needs the package {package}, which is not installed: run `make setup-track`, or build "
                "the image with --build-arg LOCK=requirements-track.lock"
            )


class Trackers:
    """The processes of a run's trackers; none without the section `track`."""

    def __init__(self, run: RunDir, track: Track | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        if track is None:
            return
        try:
            write_json(run.track / SETTINGS, {"run": run.name, **track.model_dump(mode="json")})
            for name in track.trackers:
                self._processes[name] = _started(run, name)
        except OSError as problem:
            say(f"no tracker gets this run: {problem}; training continues")

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the processes send the rest, for a bounded time. After an error they may continue beside what follows."""
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        deadline = time.monotonic() + (END_SECONDS + KILL_SECONDS if kind is None else FAILED_SECONDS)
        for name, process in self._processes.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if kind is None:
                    process.kill()
                    process.wait()
                    self._say(f"tracker {name} did not end within {END_SECONDS} s and was stopped")


def _started(run: RunDir, name: str) -> subprocess.Popen[bytes]:
    """Start a tracker's process in a session of its own, so that signals to the ranks do not reach it.

    The end of its standard input tells it that the trainer has ended.
    """
    words = ["-m", "training.track", "--run", str(run.path.resolve()), "--tracker", name, "--within", str(END_SECONDS)]
    return subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
