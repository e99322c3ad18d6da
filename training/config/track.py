"""Trackers: where the metrics of a run go besides its own directory."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from training.config.base import Section

# A bound inside a pattern with \w takes a tenth of a second to compile, in each process: max_length does not.
Name = Annotated[str, Field(max_length=128, pattern=r"^\w[\w .:/@-]*$")]
Tag = Annotated[str, Field(max_length=63, pattern=r"^\w[\w.-]*$")]
# A tracking server of SageMaker, or an MLflow app of it, which the plugin sagemaker-mlflow opens.
SAGEMAKER = re.compile(r"arn:aws[a-z-]{0,20}:sagemaker:[a-z0-9-]{1,30}:\d{12}:mlflow-[a-z-]{1,30}/[\w-]{1,256}")


def _server(value: str) -> str:
    """Refuse what is not the address of a server; a password in it would be copied into every file of the run."""
    try:
        parts = urlsplit(value)
        found = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        found = None
    if not found:
        raise ValueError(f"{value[:200]!r} is not the address of a server: write https://mlflow.example.com")
    if parts.username or parts.password or parts.query:
        text = "put the user, the password or the token into the Secret `trackers`, and leave them out of the address"
        raise ValueError(text)
    return value


class Mlflow(Section):
    """A tracking server of MLflow."""

    uri: str
    """The server: https://mlflow.example.com, or the ARN of a tracking server or MLflow app of SageMaker."""

    experiment: Name = "trainyard"
    """Name of the experiment, which is created if it does not exist."""

    @field_validator("uri")
    @classmethod
    def _place(cls, value: str) -> str:
        return value if SAGEMAKER.fullmatch(value) else _server(value)

    @property
    def sagemaker(self) -> bool:
        """Whether the server is one of SageMaker, which knows the pod by its role and not by a Secret."""
        return self.uri.startswith("arn:")


class Wandb(Section):
    """A project of Weights & Biases."""

    project: Name = "trainyard"
    """Name of the project."""

    entity: Name | None = None
    """The team or user that the project belongs to; without it the key's own default."""

    server: Annotated[str, Field(max_length=1024)] = "https://api.wandb.ai"
    """The address of the service, for an installation of your own."""

    mode: Literal["online", "offline"] = "online"
    """`offline` needs no network: it only writes files below the run's directory track/wandb, which `wandb sync`
    sends later."""

    @field_validator("server")
    @classmethod
    def _address(cls, value: str) -> str:
        return _server(value)


class Trackio(Section):
    """A project of trackio, in a database below the run's directory track/trackio."""

    project: Annotated[str, Field(max_length=64, pattern=r"^\w[\w-]*$")] = "trainyard"
    """Name of the project."""

    space: Annotated[str, Field(pattern=r"^[0-9A-Za-z_.-]{1,96}/[0-9A-Za-z_.-]{1,96}$")] | None = None
    """A Space of the Hugging Face hub, <user>/<name>, that shows the project; the Secret hf-token opens it."""


class Track(Section):
    """Trackers that get the metrics of a run. Each runs in a process of its own beside rank 0: whatever it does, the
    run trains on.
    """

    mlflow: Mlflow | None = None
    """MLflow, also the one that SageMaker manages."""

    wandb: Wandb | None = None
    """Weights & Biases, or an installation of it."""

    trackio: Trackio | None = None
    """The tracker of the Hugging Face hub, without a server."""

    tags: dict[Tag, Annotated[str, Field(max_length=250)]] = Field(default={}, max_length=40)
    """Names and values that find the run again in a tracker."""

    @property
    def trackers(self) -> dict[str, Mlflow | Wandb | Trackio]:
        """The trackers of this section, by name."""
        found = {"mlflow": self.mlflow, "wandb": self.wandb, "trackio": self.trackio}
        return {name: tracker for name, tracker in found.items() if tracker is not None}

    @model_validator(mode="after")
    def _one_at_least(self) -> Self:
        if not self.trackers:
            raise ValueError("names no tracker: add mlflow, wandb or trackio, for example wandb: {project: my-project}")
        return self
