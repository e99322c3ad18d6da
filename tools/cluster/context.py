"""A cluster of which only a context of the kubeconfig is known, as a Spec for the checks."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.cluster_env import Fact
from tools.cluster.inventory import Resource, control_plane_price, instance_price
from tools.cluster.nodes import INSTANCE_TYPE
from tools.cluster.snapshot import collect
from tools.cluster.spec import CLUSTER_NAME, NAMESPACE, REGION, Spec
from tools.core import UserError
from tools.facts.instances import HYPERPOD_PREFIX
from tools.kube import Kubectl, Object

# `aws eks update-kubeconfig` calls the cluster by its ARN.
ARN = re.compile(r"arn:[\w-]{3,30}:eks:(?P<region>[\w-]{3,40}):\d{12}:cluster/(?P<name>[\w-]{1,100})")
# The labels of EKS's node groups and of Karpenter with the way a node is bought, and EC2's words for it.
MARKETS = ("eks.amazonaws.com/capacityType", "karpenter.sh/capacity-type")
MARKETS_OF_EC2 = {"spot": "spot", "capacity_block": "capacity-block", "reserved": "capacity-block"}
# The options of `aws eks get-token` and of `aws-iam-authenticator token` that name the cluster.
NAMED = ("--cluster-name", "--cluster-id", "-i")


def read(kubectl: Kubectl, namespace: str | None = None) -> Spec:
    """Return what the kubeconfig says of a cluster: the team's namespace and, on EKS, name and region.

    Raises UserError where there is no such context, or the namespace is not a valid one.
    """
    view = kubectl.json("config", "view", "--minify")
    chosen = named(view, "contexts", str(view.get("current-context"))).get("context") or {}
    team = namespace or chosen.get("namespace") or "default"
    if not NAMESPACE.fullmatch(str(team)):
        raise UserError(f"{team!r} is not a valid name of a namespace", "such as team-a")
    facts = {"TEAM_NAMESPACE": str(team), **eks(view, chosen)}
    known = {name: Fact(value) for name, value in facts.items()}
    return Spec(Path(), known, context=str(view.get("current-context")))


def leading_to(endpoint: str) -> str | None:
    """Return a context of the kubeconfig that leads to an API server, or None."""
    view = Kubectl().json("config", "view")
    servers = {one["name"]: str((one.get("cluster") or {}).get("server")) for one in view.get("clusters") or []}
    for one in view.get("contexts") or []:
        if servers.get((one.get("context") or {}).get("cluster"), "").rstrip("/") == endpoint.rstrip("/"):
            return str(one["name"])
    return None


def version(kubectl: Kubectl) -> str | None:
    """Return the minor version of the API server, such as 1.35, or None where it does not say it."""
    try:
        found = json.loads(kubectl.text("version", "--output=json"))["serverVersion"]
        numbers = f"{found['major']}.{found['minor'].rstrip('+')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return numbers if re.fullmatch(r"1\.\d{2}", numbers) else None


def costs(kubectl: Kubectl, spec: Spec) -> list[Resource]:
    """Return the nodes with their prices by instance type, and the control plane of EKS.

    Raises UserError where the nodes may not be listed.
    """
    snapshot = collect(kubectl, kinds=("nodes",))
    if "nodes" in snapshot.unseen:
        raise UserError(f"the nodes are unknown: {snapshot.unseen['nodes']}", None, 3)
    found = []
    for one in sorted(snapshot.of("nodes"), key=lambda one: str(one["metadata"]["name"])):
        labels = one["metadata"].get("labels") or {}
        kind = labels.get(INSTANCE_TYPE, "unknown instance type")
        market = next((labels[name] for name in MARKETS if name in labels), "")
        price = instance_price(kind.removeprefix(HYPERPOD_PREFIX), MARKETS_OF_EC2.get(market.lower(), ""))
        found.append(Resource("node", one["metadata"]["name"], f"{kind} {market}".strip(), price))
    if spec.get("CLUSTER_NAME"):
        minor = version(kubectl) or "unknown"
        found.append(Resource("cluster", spec.name, f"Kubernetes {minor}", control_plane_price(minor)))
    return found


def eks(view: Object, chosen: Object) -> dict[str, str]:
    """Return the facts of the EKS cluster to which a context of the kubeconfig leads, or none."""
    name = region = ""
    if found := ARN.fullmatch(str(chosen.get("cluster"))):
        name, region = found["name"], found["region"]
    user = named(view, "users", str(chosen.get("user"))).get("user") or {}
    words = [str(one) for one in (user.get("exec") or {}).get("args") or []]
    if "get-token" in words or "token" in words:
        name = next((value for option in NAMED if (value := _after(words, option))), name)
        region = _after(words, "--region") or region
    if not CLUSTER_NAME.fullmatch(name):
        return {}
    place = {"AWS_REGION": region} if REGION.fullmatch(region) else {}
    return {"CLUSTER_NAME": name, "ADOPTED": "true", **place}


def _after(words: Sequence[str], option: str) -> str:
    """Return the word after an option, or nothing."""
    return next((value for word, value in itertools.pairwise(words) if word == option), "")


def named(view: Object, part: str, name: str) -> Object:
    """Return the entry of a part of the kubeconfig by its name, or an empty one."""
    return next((one for one in view.get(part) or [] if one.get("name") == name), {})
