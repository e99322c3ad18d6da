"""Print the platform of a cluster: plugins, storage and queues with the cluster's facts."""

import click

from tools.cells import kustomize
from tools.cluster import platform
from tools.core import output, repo
from tools.kube import manifests


@click.command(
    name="platform",
    epilog="\b\nExamples:\n  yard platform example/storage\n"
    "  yard platform example | kubectl apply --server-side -f -\n\n"
    "\b\nExit codes: 0 success, 2 no such cluster or part, or a fact is missing.",
)
@click.argument("name", metavar="CLUSTER")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of the objects.")
def command(name: str, as_json: bool) -> None:
    """Print the platform of CLUSTER, a directory under clusters/, or one part of it.

    The parts are CLUSTER/plugins, CLUSTER/storage and CLUSTER/queues. Each ${NAME} is replaced by its value
    in cluster.env, as Flux does in strict mode. An unset or empty name is an error.
    """
    found = platform.load(repo.project(), name)
    renderer = kustomize.ensure(repo.root(), output.note)
    text = platform.render(repo.project(), found, renderer)
    if as_json:
        output.data(manifests.parse(text, name).objects, raw=True)
        return
    output.block(text, raw=True)
    output.note(f"to apply it: yard platform {name} | kubectl apply --server-side -f -")
