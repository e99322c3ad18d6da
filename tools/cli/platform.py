"""Print the platform of a cluster: plugins, storage and queues with the cluster's facts."""

from tools.cells import kustomize
from tools.cluster import platform
from tools.core import output, repo
from tools.kube import manifests


def command(name: str, as_json: bool) -> None:
    found = platform.load(repo.project(), name)
    text = platform.render(repo.project(), found, kustomize.ensure(repo.root(), output.note))
    if as_json:
        output.data(manifests.parse(text, name).objects, raw=True)
        return
    output.block(text, raw=True)
    output.note(f"to apply it: yard platform {name} | kubectl apply --server-side -f -")
