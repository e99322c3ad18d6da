"""Train a first cell on a cluster: operator, storage, image, training, diagnosis, removal."""

from tools.cluster import context as contexts
from tools.cluster import demo, snapshot, steps
from tools.cluster.demo import Demo
from tools.cluster.snapshot import Snapshot
from tools.cluster.steps import Step
from tools.core import UserError, output
from tools.kube import Kubectl


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
    output.agree(
        f"train {demo.CELL} on the context {context} ({output.count(nodes, 'node')}) in a new namespace {demo.NAME}",
        UserError(f"the demo would use the context {context}", "--yes agrees; --kind makes a new cluster"),
        UserError("nothing was done", "--kind makes a new cluster"),
    )
