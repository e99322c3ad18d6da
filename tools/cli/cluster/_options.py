"""Options shared by the `yard cluster` commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tools.aws.session import Session
from tools.cluster import spec
from tools.core import repo

Command = Callable[..., Any]


def _with(command: Command, wrapper: Command) -> Command:
    """Give `wrapper` the help and options of `command`."""
    wrapper.__doc__ = command.__doc__
    own = getattr(wrapper, "__click_params__", [])
    wrapper.__click_params__ = [*getattr(command, "__click_params__", []), *own]  # type: ignore[attr-defined]
    return wrapper


def account(command: Command) -> Command:
    """Add --region and --profile; the command gets `session`."""

    @click.option(
        "--region", metavar="NAME", help="The AWS region. Default: that of the environment or profile."
    )
    @click.option("--profile", metavar="NAME", help="The profile in ~/.aws.")
    def with_session(region: str | None, profile: str | None, **options: Any) -> Any:
        return command(session=Session(region, profile), **options)

    return _with(command, with_session)


def cluster_and_account(command: Command) -> Command:
    """Add CLUSTER, --region and --profile; the command gets `spec` and `session`."""

    @click.argument("name", metavar="CLUSTER")
    @click.option("--region", metavar="NAME", help="The AWS region. Default: that of the cluster.")
    @click.option("--profile", metavar="NAME", help="The profile in ~/.aws.")
    def with_both(name: str, region: str | None, profile: str | None, **options: Any) -> Any:
        found = spec.load(repo.project(), name)
        return command(spec=found, session=Session(region or found.get("AWS_REGION"), profile), **options)

    return _with(command, with_both)


as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
