"""Add the cluster to the kubeconfig with `aws eks update-kubeconfig`."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, kubeconfig
from tools.core import UserError, output


@_options.cluster_and_account
def command(spec: Spec, session: Session, context: str | None, use: bool, replace: bool, as_json: bool) -> None:
    cluster = session.call("eks", "describe_cluster", name=spec.name)["cluster"]
    if cluster.get("status") != "ACTIVE":
        raise UserError(f"the cluster {spec.name} is {cluster.get('status')}", "wait until it is ACTIVE", 1)
    name = context or spec.title
    entry = kubeconfig.add(session, cluster, name, replace, use)
    line = f"{entry.file}: context {name} {'written' if entry.changed else 'is up to date'}"
    output.answer({"file": entry.file, "context": name, "changed": entry.changed}, [line], as_json)
    if (cluster.get("resourcesVpcConfig") or {}).get("endpointPublicAccess") is False:
        output.note("the API server is private; reach it from its VPC, a VPN or a bastion host")
    output.note(f"next: kubectl --context {name} get nodes")
