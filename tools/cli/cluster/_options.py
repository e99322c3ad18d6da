"""Options shared by the `yard cluster` commands."""

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from tools.aws.session import Session
from tools.cluster import context as contexts
from tools.cluster import spec
from tools.cluster.cluster_env import Fact
from tools.core import repo
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl

Command = Callable[..., Any]


def _with(command: Command, wrapper: Command) -> Command:
    """Give `wrapper` the help and options of `command`."""
    wrapper.__doc__ = command.__doc__
    own = getattr(wrapper, "__click_params__", [])
    wrapper.__click_params__ = [*getattr(command, "__click_params__", []), *own]  # type: ignore[attr-defined]
    return wrapper


def account(command: Command) -> Command:
    """Add --region and --profile; the command gets `session`."""

    @click.option("--region", metavar="NAME", help="The AWS region. Default: that of the environment or profile.")
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


def cluster_or_context(command: Command, both: bool = False) -> Command:
    """Add [CLUSTER], --context, --namespace, --region and --profile; `both` allows CLUSTER with --context.

    The command gets `spec`, without a directory where no CLUSTER is given, `session` and `kubectl`.
    """

    @click.argument("name", metavar="[CLUSTER]", required=False)
    @click.option("--context", metavar="NAME", help="The context of the kubeconfig. Default: the current one.")
    @click.option(
        "-n", "--namespace", metavar="NAME", help="The team's namespace. Default: that of CLUSTER, or of the context."
    )
    @click.option("--region", metavar="NAME", help="The AWS region. Default: that of the cluster.")
    @click.option("--profile", metavar="NAME", help="The profile in ~/.aws.")
    def with_either(
        name: str | None,
        context: str | None,
        namespace: str | None,
        region: str | None,
        profile: str | None,
        **options: Any,
    ) -> Any:
        if name and context and not both:
            raise UserError("CLUSTER and --context name one cluster each: give one of them")
        kubectl = Kubectl(context)
        found = spec.load(repo.project(), name) if name else contexts.read(kubectl, namespace)
        if name and namespace:
            found = dataclasses.replace(found, facts={**found.facts, "TEAM_NAMESPACE": Fact(namespace)})
        session = Session(region or found.get("AWS_REGION"), profile)
        return command(spec=found, session=session, kubectl=kubectl, **options)

    return _with(command, with_either)


as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
