"""The options that several `yard job` commands have."""

import functools
from collections.abc import Callable
from typing import Any

import click

from tools.kube.kubectl import Kubectl

Command = Callable[..., Any]
SECONDS = 1800


def cluster(command: Command) -> Command:
    """Add -n and --context; the command gets `kubectl`."""

    @click.option("-n", "--namespace", metavar="NAME", help="The job's namespace.")
    @click.option("--context", metavar="NAME", help="The kubeconfig's context.")
    @functools.wraps(command)
    def with_kubectl(namespace: str | None, context: str | None, **options: Any) -> Any:
        return command(kubectl=Kubectl(context, namespace), **options)

    return with_kubectl


def timeout(text: str) -> Callable[[Command], Command]:
    """Add --timeout with this help text."""
    kind = click.IntRange(min=1)
    return click.option("--timeout", type=kind, default=SECONDS, show_default=True, metavar="SECONDS", help=text)


job = click.argument("job", required=False, metavar="[JOB|CELL]")
as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
