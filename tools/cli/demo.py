"""Train a first cell on a cluster: operator, storage, image, training, diagnosis, removal.

The demo uses the current context, after a question, or makes a cluster with kind where there is none. Each
step is printed as a command. At the end it removes what it made, in the namespace trainyard-demo and outside,
and says what it left.

\b
Examples:
  yard demo
  yard demo --yes --keep                    on the current context; remove it later
  yard demo --down
  yard demo --image REGISTRY/trainer-cpu@sha256:...

\b
Exit codes: 0 trained and removed, 1 a step failed, 2 no cluster, no kind, or no answer to the question,
3 the cluster did not answer.
"""

import sys

import click

from tools.cluster import context as contexts
from tools.cluster import demo, snapshot, steps
from tools.cluster.demo import Demo
from tools.cluster.snapshot import Snapshot
from tools.cluster.steps import Step
from tools.core import output
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__)
@click.option("--context", metavar="NAME", help="The context of the kubeconfig.")
@click.option("--kind", "new", is_flag=True, help="Make a new cluster with kind.")
@click.option("--image", metavar="IMAGE", help="An image of trainer-cpu that the nodes can pull.")
@click.option("--yes", is_flag=True, help="Do not ask before the current context is used.")
@click.option("--keep", is_flag=True, help="Remove nothing at the end.")
@click.option("--down", is_flag=True, help="Only remove what an earlier demo made.")
def command(context: str | None, new: bool, image: str | None, yes: bool, keep: bool, down: bool) -> None:
    made = None if context or down else demo.cluster(new)
    if made is not None:
        _run(made)
        context = f"kind-{demo.NAME}"
    kubectl = Kubectl(context)
    named = contexts.read(kubectl).context
    assert named is not None
    running = Demo(named, image)
    seen = _seen(kubectl)
    if not down:
        todo = list(running.platform(seen))
        if made is None and not yes:
            _agree(named, len(seen.of("nodes")))
        for step in [*todo, *running.train()]:
            _run(step)
    if keep:
        output.note(f"kept; yard demo --down --context {named} removes it")
        return
    seen = _seen(kubectl)
    for step in running.remove(seen):
        _run(step)
    for line in running.left(seen):
        output.note(f"left: {line}")


def _run(step: Step) -> None:
    output.line(f"# {step.title}")
    output.line(f"$ {step}")
    steps.run(step, demo.FAILED, output.line)


def _seen(kubectl: Kubectl) -> Snapshot:
    """Return what the cluster has now. Raises UserError where nodes or types may not be listed."""
    seen = snapshot.collect(kubectl, kinds=demo.SEEN)
    for kind in ("nodes", "namespaces", snapshot.CRD, snapshot.CLASSES):
        if kind in seen.unseen:
            hint = "the demo needs an administrator; docs/tutorials/namespace-only.md needs only a namespace"
            raise UserError(seen.unseen[kind], hint, 3)
    return seen


def _agree(context: str, nodes: int) -> None:
    question = (
        f"train {demo.CELL} on the context {context} ({output.count(nodes, 'node')}) in a new namespace"
        f" {demo.NAME}? yes/no"
    )
    if not sys.stdin.isatty():
        raise UserError(f"the demo would use the context {context}", "--yes agrees; --kind makes a new cluster")
    if output.ask(question) != "yes":
        raise UserError("nothing was done", "--kind makes a new cluster")
