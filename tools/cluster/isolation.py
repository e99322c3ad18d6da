"""Tries whether the cluster enforces NetworkPolicies, with two pods and two policies in the team's namespace.

Every API server accepts a NetworkPolicy, but only some network plugins enforce it. One pod listens on three
ports and another tries them. The policies of both open the first; that of the pod that listens closes the
second, that of the pod that tries the third. An answer of the first port is the control of the other two.
"""

import contextlib
import json
import re
import secrets
from pathlib import Path
from string import Template
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.cells import kustomize
from tools.cluster.finding import Finding, bad, good, unknown
from tools.core import UserError, output, repo, wait
from tools.kube import Kubectl, Object

OPEN, NO_INGRESS, NO_EGRESS = 18081, 18082, 18083
PORTS = tuple(map(str, (OPEN, NO_INGRESS, NO_EGRESS)))
ANSWER = re.compile(r"\[(\d{5}(, \d{5}){0,2})?\]")
LABEL = "trainyard/isolation"
STARTS, POLL = 90.0, 1.0  # seconds for each pod to start, an image pull included
SETTLES = 30  # seconds for the policies to take effect; the VPC CNI needs some after a pod has started
OBJECTS = Path(__file__).with_suffix(".yaml")
PENDING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "Unschedulable")


def probe(kubectl: Kubectl, namespace: str) -> Finding:
    """Return whether NetworkPolicies are enforced in a namespace. What it creates is removed."""
    here = Kubectl(kubectl.context, namespace)
    name = f"isolation-{secrets.token_hex(4)}"
    output.note(f"starting two pods in {namespace} to see whether NetworkPolicies are enforced")
    try:
        found = _answering(here, name)
    except UserError as problem:
        return unknown("isolation", f"NetworkPolicies were not tried: {problem.message}", problem.hint)
    finally:
        with contextlib.suppress(UserError):
            words = ("delete", "pods,networkpolicies", "--wait=false", "--ignore-not-found")
            here.run(*words, f"--selector={LABEL}={name}")
    return judge(found)


def judge(found: list[int]) -> Finding:
    """Return the finding from the ports that answered."""
    if OPEN not in found:
        return unknown("isolation", "no port answered, not even the one that the policies open")
    if found == [OPEN]:
        return good("isolation", "NetworkPolicies are enforced: of three ports, the open one answered")
    sides = {NO_INGRESS: "that admits no pod", NO_EGRESS: "that the other pod may not reach"}
    lines = [f"a port {sides[port]} answered" for port in found if port in sides]
    remedy = "enable it in the network plugin (vpc-cni: enableNetworkPolicy), or install one that enforces them"
    return bad("isolation", "NetworkPolicies are not enforced: every pod reaches every job", remedy, *lines)


def _image() -> str:
    """Return the image of the debug pod: by digest where `yard image pin` has written one."""
    (debug,) = kustomize.rendered(repo.root() / "base/services/debug").of_kind("Pod")
    return str(debug["spec"]["containers"][0]["image"])


def _answering(here: Kubectl, name: str) -> list[int]:
    """Return the ports that answered. Raises UserError where the pods cannot run."""
    image = _image()
    _create(here, *objects(name)["policies"], _pod(name, "listener", image, *PORTS))
    address = str(_waited(here, f"{name}-listener", "podIP"))
    _create(here, _pod(name, "prober", image, address, str(SETTLES), *PORTS))
    ended = _waited(here, f"{name}-prober", "terminated")
    said = str(ended.get("message"))
    if not ANSWER.fullmatch(said):
        raise UserError(f"the pod ended with exit code {ended.get('exitCode')} and no answer")
    return [int(port) for port in re.findall(r"\d+", said)]


def objects(name: str, side: str = "", image: str = "") -> Object:
    """Return the policies of a probe, the pod of one side, and the scripts of both, as OBJECTS has them."""
    ports = {"open": OPEN, "no_ingress": NO_INGRESS, "no_egress": NO_EGRESS}
    text = Template(OBJECTS.read_text(encoding="utf-8"))
    found: Object = yaml.safe_load(text.substitute(name=name, side=side, image=json.dumps(image), **ports))
    return found


def _pod(name: str, side: str, image: str, *arguments: str) -> Object:
    found = objects(name, side, image)
    pod: Object = found["pod"]
    pod["spec"]["containers"][0]["command"] = ["python3", "-c", found["scripts"][side], *arguments]
    return pod


def _create(here: Kubectl, *items: Object) -> None:
    listing = {"apiVersion": "v1", "kind": "List", "items": list(items)}
    here.text("create", "--filename=-", stdin=json.dumps(listing))


def _waited(here: Kubectl, name: str, wanted: str) -> Any:
    """Return a pod's address (podIP) while it runs, or how its container ended (terminated)."""

    def state() -> Object:
        status = here.json("get", "pod", names=[name]).get("status") or {}
        own = (status.get("containerStatuses") or [{}])[0].get("state") or {}
        address = status.get("podIP") if "running" in own else None
        refused: Object = next((one for one in status.get("conditions") or [] if one.get("reason") in PENDING), {})
        return {**refused, **(own.get("waiting") or {}), "podIP": address, "terminated": own.get("terminated")}

    def is_settled(found: Object) -> bool:
        return bool(found[wanted] or found["terminated"] or found.get("reason") in PENDING)

    found = wait.settled(state, is_settled, STARTS + (SETTLES if wanted == "terminated" else 0), POLL)
    if not found[wanted]:
        reason = output.short(f"{found.get('reason') or 'no reason given'} {found.get('message') or ''}", 200)
        raise UserError(f"the pod {name} does not run: {reason}")
    return found[wanted]
