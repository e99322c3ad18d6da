"""TensorBoard on the volume of a job's runs: base/services/tensorboard, and a port-forward to it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO

from tools.cells import kustomize
from tools.core import output, repo
from tools.core.errors import UserError
from tools.job import submit
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.submit import Applied
from tools.kube.kubectl import Kubectl, missing
from tools.kube.manifests import Manifests, Object, parse

NAME = "tensorboard"
PORT = 6006
READY_SECONDS = 180.0  # until it is Ready: an image may have to be pulled
FORWARD_SECONDS = 60.0  # until it answers through the port-forward
EVERY = 1.0
ADDRESS = "127.0.0.1"  # never anything else: it has no login
HTTPS = 8443  # the proxy's, in images/tensorboard/proxy.conf
# What the proxy takes, and how it is made.
SECRETS = {
    "tensorboard-tls": "kubectl create secret tls tensorboard-tls --cert=tls.crt --key=tls.key",
    "tensorboard-login": "htpasswd -c htpasswd NAME, then"
    " kubectl create secret generic tensorboard-login --from-file=htpasswd",
}


def manifests(job: Object, exposed: bool = False) -> Manifests:
    """Return base/services/tensorboard with the job's image and the claim that its runs are on.

    `exposed`: with the proxy before it, base/services/tensorboard-exposed.
    """
    spec = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))["template"]["spec"]
    pod = JobPod({"spec": spec})
    claims = claim_names(pod)
    if not claims:
        raise UserError(f"{job['metadata']['name']} mounts no claim: its runs are gone with its pods", code=1)
    path = repo.root() / "base/services" / ("tensorboard-exposed" if exposed else "tensorboard")
    found = parse(kustomize.ensure(repo.root(), output.note).build(path), repo.shown(path))
    (deployment,) = found.of_kind("Deployment")
    own = deployment["spec"]["template"]["spec"]
    board = next(one for one in own["containers"] if one["name"] == NAME)
    board["image"] = pod.container_spec["image"]
    for volume in own["volumes"]:
        if "persistentVolumeClaim" in volume:
            volume["persistentVolumeClaim"]["claimName"] = claims[0]
    return found


def require_secrets(kubectl: Kubectl) -> None:
    """Raise UserError where the namespace lacks what the proxy takes; who may not look goes on."""
    for name, command in SECRETS.items():
        done = kubectl.run("get", "secret", name, "--ignore-not-found", "--output=name")
        if done.returncode == 0 and not done.stdout.strip():
            remedy = f"{command} -n {kubectl.namespace}"
            raise UserError(f"namespace {kubectl.namespace} lacks secret {name}", remedy, 1)


def start(kubectl: Kubectl, found: Manifests, say: Callable[[str], None]) -> list[Applied]:
    """Apply it and wait until it is Ready; UserError with what its pod waits for where it does not."""
    applied, warnings = submit.apply(kubectl, found)
    for warning in warnings:
        say(warning)
    say(f"waiting until {NAME} is Ready")
    began = told = time.monotonic()
    while time.monotonic() - began < READY_SECONDS:
        deployment = kubectl.json("get", "deployment", NAME)
        if _available(deployment):
            return applied
        if time.monotonic() - told > 5:
            told = time.monotonic()
            say(f"{time.monotonic() - began:.0f} s: {_waits(kubectl)}")
        time.sleep(EVERY)
    raise UserError(f"{NAME} is not Ready after {READY_SECONDS:.0f} s: {_waits(kubectl)}", code=1)


def _available(deployment: Object) -> bool:
    status = deployment.get("status") or {}
    current = status.get("observedGeneration") == deployment["metadata"].get("generation")
    wanted = deployment["spec"].get("replicas", 1)
    updated = status.get("updatedReplicas") == status.get("replicas") == wanted
    return bool(current and updated and status.get("availableReplicas") == wanted)


def _waits(kubectl: Kubectl) -> str:
    """Return what its newest pod waits for."""
    pods = kubectl.items("pods", f"--selector=app.kubernetes.io/name={NAME}")
    if not pods:
        return "it has no pod yet"
    newest = JobPod(max(pods, key=lambda one: str(one["metadata"]["creationTimestamp"])))
    reason, message = newest.waiting
    placed = newest.condition("PodScheduled") or {}
    return f"{reason}: {message}" if reason else placed.get("message") or f"its pod is {newest.phase}"


@contextlib.contextmanager
def forwarded(kubectl: Kubectl, port: int, say: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Keep a port-forward to this machine alone; yield the URL and the directory that TensorBoard reads.

    UserError where it does not answer there.
    """
    _check_free(port)
    words = kubectl.words("port-forward", f"--address={ADDRESS}", f"service/{NAME}", f"{port}:{PORT}")
    with tempfile.TemporaryFile() as complaint:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaint
            )
        except FileNotFoundError:
            raise missing() from None
        try:
            url = f"http://{ADDRESS}:{port}"
            say(f"waiting until it answers at {url}")
            yield url, _answers(url, process, complaint)
        finally:
            process.terminate()
            process.wait()


def _check_free(port: int) -> None:
    """Raise UserError where something has the port already: its answers would be taken for ours."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((ADDRESS, port))
        except OSError as problem:
            raise UserError(f"port {port} of this machine: {problem.strerror}", "--port N", 1) from None


def _answers(url: str, process: subprocess.Popen[bytes], complaint: IO[bytes]) -> str:
    began = time.monotonic()
    while time.monotonic() - began < FORWARD_SECONDS and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/data/environment", timeout=10) as answer:
                return str(json.load(answer)["data_location"])
        except (OSError, ValueError, KeyError):
            time.sleep(EVERY)
    complaint.seek(0)
    said = complaint.read().decode("utf-8", "replace").strip().splitlines()
    raise UserError(f"no answer at {url}: {said[-1] if said else 'it is silent'}", "--port N", 1)


def stop(kubectl: Kubectl) -> list[str]:
    """Delete it and return what was there, by kind and UID."""
    gone = []
    for kind in ("deployment", "service", "networkpolicy"):
        found = kubectl.items(kind, NAME, "--ignore-not-found")
        part_of = "app.kubernetes.io/part-of"
        for item in found:
            if kind != "networkpolicy" and (item["metadata"].get("labels") or {}).get(part_of) != "trainyard":
                raise UserError(f"the {kind} {NAME} is not trainyard's: it is left alone", code=1)
            kubectl.text("delete", kind, NAME, "--wait=true")
            gone.append(f"{kind}/{NAME} {item['metadata']['uid']}")
    return gone
