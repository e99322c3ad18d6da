"""The trackers themselves, each behind the same four calls. Their packages are imported only when they are used."""

from __future__ import annotations

import contextlib
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from training.run.secret_files import secret
from training.trackers.rows import Row

REQUEST_SECONDS = 10
_FEW = 90  # parameters of one request: MLflow takes 100


@dataclass(frozen=True)
class About:
    """A run as a tracker shows it: its name, its configuration by dotted keys, and what finds it again."""

    name: str
    directory: Path
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    commit: str | None


class Service(Protocol):
    """One tracker. Every call may raise any error, and is made again later."""

    url: str

    def open(self, known: str, keep: Callable[[str], None]) -> None:
        """Begin a run, or continue the one with the id `known`. `keep` gets the id of a new one."""
        ...

    def describe(self) -> None:
        """Send the configuration, once in the life of a run."""
        ...

    def send(self, rows: Sequence[Row]) -> None: ...

    def close(self, finished: bool | None) -> None:
        """End this attempt; `finished` says whether the run is complete, None that this is unknown."""
        ...


class Mlflow:
    """A tracking server of MLflow, by the client of MLflow."""

    def __init__(self, settings: Mapping[str, Any], about: About) -> None:
        given = {"HTTP_REQUEST_TIMEOUT": REQUEST_SECONDS, "HTTP_REQUEST_MAX_RETRIES": 0, "DISABLE_TELEMETRY": "true"}
        for name, value in given.items():
            os.environ.setdefault(f"MLFLOW_{name}", str(value))
        for name in ("token", "username", "password"):
            if (found := secret(f"mlflow-tracking-{name}")) is not None:
                os.environ[f"MLFLOW_TRACKING_{name.upper()}"] = found
        import mlflow

        mlflow.set_tracking_uri(settings["uri"])  # the plugin for SageMaker takes its region from here
        self._client = mlflow.MlflowClient()
        self._experiment, self._about = settings["experiment"], about
        self._id, self.url = "", settings["uri"]

    def open(self, known: str, keep: Callable[[str], None]) -> None:
        client = self._client
        if known:
            client.update_run(known, status="RUNNING")
        else:
            found = client.get_experiment_by_name(self._experiment)
            number = found.experiment_id if found else client.create_experiment(self._experiment)
            commit = self._about.commit
            tags = {**self._about.tags, **({"mlflow.source.git.commit": commit} if commit else {})}
            known = client.create_run(number, run_name=self._about.name, tags=tags).info.run_id
            keep(known)
        self._id = known

    def describe(self) -> None:
        from mlflow.entities import Param

        entries = [Param(key[:250], value) for key, value in self._about.parameters.items()]
        for part in _parts(entries, _FEW):
            self._client.log_batch(self._id, params=part)

    def send(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        values = [
            Metric(name, value, int(row.time * 1000), row.step) for row in rows for name, value in row.values.items()
        ]
        for part in _parts(values, 1000):
            self._client.log_batch(self._id, metrics=part)

    def close(self, finished: bool | None) -> None:
        if finished is not None:
            self._client.set_terminated(self._id, "FINISHED" if finished else "FAILED")


class Wandb:
    """A project of Weights & Biases, by its own library, which writes below the run's directory first."""

    def __init__(self, settings: Mapping[str, Any], about: About) -> None:
        self._settings, self._about = settings, about
        self._run: Any = None
        self.url = ""

    def open(self, known: str, keep: Callable[[str], None]) -> None:
        offline = self._settings["mode"] == "offline"
        if not offline:
            _answers(self._settings["server"])
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if not known:
            known = secrets.token_hex(8)
            keep(known)
        self._run = wandb.init(
            project=self._settings["project"],
            entity=self._settings["entity"],
            name=self._about.name,
            id=known,
            resume="allow",
            mode=self._settings["mode"],
            dir=str(self._about.directory),
            config=dict(self._about.parameters),
            tags=[f"{key}={value}"[:64] for key, value in self._about.tags.items()],
            settings=wandb.Settings(
                api_key=secret("wandb-api-key"),
                base_url=self._settings["server"],
                console="off",
                disable_code=True,
                disable_git=True,
                init_timeout=REQUEST_SECONDS,
                silent=True,
            ),
        )
        self._run.define_metric("*", step_metric="step")
        self.url = self._run.url or ""

    def describe(self) -> None:
        """The configuration went with `open`."""

    def send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log({**row.values, "step": row.step, "time": row.time})

    def close(self, finished: bool | None) -> None:
        self._run.finish(exit_code=int(finished is False))


class Trackio:
    """A project of trackio: a database below the run's directory, and a Space of the hub if there is one."""

    def __init__(self, settings: Mapping[str, Any], about: About) -> None:
        self._settings, self._about = settings, about
        self._run: Any = None
        self.url = settings["space"] or str(about.directory / "trackio")
        os.environ["TRACKIO_DIR"] = str(about.directory / "trackio")

    def open(self, known: str, keep: Callable[[str], None]) -> None:
        import trackio

        keep(self._about.name)
        self._run = trackio.init(
            project=self._settings["project"],
            name=self._about.name,
            space_id=self._settings["space"],
            config={**self._about.parameters, **self._about.tags},
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def describe(self) -> None:
        """The configuration went with `open`."""

    def send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(dict(row.values), step=row.step)

    def close(self, finished: bool | None) -> None:
        self._run.finish()


SERVICES: dict[str, Callable[[Mapping[str, Any], About], Service]] = {
    "mlflow": Mlflow,
    "wandb": Wandb,
    "trackio": Trackio,
}


def _answers(server: str) -> None:
    """Raise OSError if a server does not answer at all; any status is an answer."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(server, timeout=REQUEST_SECONDS).close()


def _parts(values: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]
