"""Volcano's controllers, scheduler and webhooks beside the API server, with upstream's manifests.

As with the other controllers (controllers.py): everything of upstream's file but the Deployments is applied.
"""

from __future__ import annotations

import json
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.cluster.control_plane import CERTIFICATES, ControlPlane
from tests.cluster.kube import condition
from tests.cluster.sandbox import UP_SECONDS, Process

NAMESPACE, SERVICE = "volcano-system", "volcano-admission-service"
PORT = 19843
# The Job makes the certificate of the webhooks.
LEFT_OUT = ("Deployment", "Job")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_POD = {"spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": "none"}]}}
PROBE = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {"minAvailable": 2, "tasks": [{"name": "a", "replicas": 1, "template": _POD}]},
}


def start(plane: ControlPlane) -> None:
    """Apply Volcano's objects and start its three programs. Raises CannotStart."""
    plane.kube.make_namespace(NAMESPACE)
    items = [_here(item) for item in _upstream(plane) if item["kind"] not in LEFT_OUT]
    kinds = [item for item in items if item["kind"] == "CustomResourceDefinition"]
    _apply(plane, [*kinds, *(item for item in items if item["kind"] == "Namespace")])
    names = [item["metadata"]["name"] for item in kinds]

    def established() -> bool:
        return all(condition(plane.kube.get("crd", name) or {}, "Established") for name in names)

    plane.sandbox.wait("Volcano's types", established, UP_SECONDS)
    _apply(plane, items)
    webhooks = _webhooks(plane)  # which judge the queues that the scheduler creates
    plane.sandbox.wait("Volcano's webhooks", lambda: _judged(plane), UP_SECONDS, [webhooks])
    running = [_controllers(plane), _scheduler(plane)]
    root = ("queues.scheduling.volcano.sh", "root")
    plane.sandbox.wait("Volcano's queues", lambda: plane.kube.get(*root) is not None, UP_SECONDS, running)


def _upstream(plane: ControlPlane) -> list[Any]:
    text = plane.programs.volcano_manifests.read_text(encoding="utf-8")
    return [item for item in yaml.load_all(text, Loader=_LOADER) if item]


def _judges(plane: ControlPlane) -> str:
    """Return the flag that names the webhooks of upstream's manifests."""
    (deployment,) = (
        one for one in _upstream(plane) if (one["kind"], one["metadata"]["name"]) == ("Deployment", "volcano-admission")
    )
    words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return next(str(word) for word in words if word.startswith("--enabled-admission="))


def _here(item: Any) -> Any:
    """Return an object with the webhooks where the program runs."""
    if item["kind"] == "Service":
        item["spec"] = {"type": "ExternalName", "externalName": "localhost"}
    for webhook in item.get("webhooks") or []:
        webhook["clientConfig"]["service"]["port"] = PORT
    return item


def _apply(plane: ControlPlane, items: list[Any]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kube.apply(text, None, "--force-conflicts")


def _webhooks(plane: ControlPlane) -> Process:
    program = "vc-webhook-manager"
    folder = plane.home_of(program) / CERTIFICATES
    folder.mkdir(parents=True)
    for name, data in plane.pki.for_server(program, f"{SERVICE}.{NAMESPACE}.svc").items():
        (folder / name).write_bytes(data)
    return plane.start_controller(
        program,
        "volcano-admission",
        NAMESPACE,
        *(f"--tls-cert-file=/tmp/{CERTIFICATES}/tls.crt", f"--tls-private-key-file=/tmp/{CERTIFICATES}/tls.key"),
        *(f"--ca-cert-file=/tmp/{CERTIFICATES}/ca.crt", f"--port={PORT}", "--logtostderr"),
        *(f"--webhook-namespace={NAMESPACE}", f"--webhook-service-name={SERVICE}"),
        _judges(plane),
    )


def _controllers(plane: ControlPlane) -> Process:
    flags = ("--leader-elect=false", "--logtostderr", "--kube-api-qps=400", "--kube-api-burst=800")
    return plane.start_controller("vc-controller-manager", "volcano-controllers", NAMESPACE, *flags)


def _scheduler(plane: ControlPlane) -> Process:
    """Start the scheduler with the configuration that upstream's manifests bring."""
    program, name = "vc-scheduler", "volcano-scheduler.conf"
    found = plane.kube.get("configmap", "volcano-scheduler-configmap", NAMESPACE) or {}
    plane.home_of(program).mkdir()
    (plane.home_of(program) / name).write_text(found["data"][name], encoding="utf-8")
    flags = (f"--scheduler-conf=/tmp/{name}", "--leader-elect=false", "--logtostderr", "--schedule-period=200ms")
    return plane.start_controller(program, "volcano-scheduler", NAMESPACE, *flags)


def _judged(plane: ControlPlane) -> bool:
    """Return whether the webhook itself refuses a Job that needs more pods than it has."""
    done = plane.kube.call("create", "--dry-run=server", "-f", "-", given=json.dumps(PROBE))
    return "denied the request" in done.err
