"""TensorBoard: of runs on this machine, or of a job's volume by base/services/tensorboard and a port-forward."""

import contextlib
import importlib.util
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.cells import kustomize
from tools.core import Say, UserError, command_line, repo, tables, wait
from tools.job import submit
from tools.job.snapshot import JobPod
from tools.job.snapshot.pod import claim_names, first_template
from tools.job.submit import Applied
from tools.kube import Kubectl, Manifests, Object
from tools.kube.kubectl import started
from tools.workload import Workload

NAME = "tensorboard"
PORT = 6006
READY_SECONDS = 180.0  # until it is Ready: an image may have to be pulled
FORWARD_SECONDS = 60.0  # until it answers through the port-forward
EVERY = 1.0
MOST_TRACES = 20
LARGEST_ANSWER = 2**20  # bytes
ADDRESS = "127.0.0.1"  # never another address: TensorBoard has no login
HTTPS = 8443  # the proxy's port, in images/tensorboard/proxy.conf
# The Secrets of the proxy, and the commands that create them.
SECRETS: dict[str, str] = tables.load("job/tables.yaml")["tensorboard secrets"]


def manifests(job: Workload, exposed: bool = False) -> Manifests:
    """Return base/services/tensorboard with the job's image and claim; `exposed` adds the proxy."""
    pod = first_template(job)
    claims = claim_names(pod)
    if not claims:
        raise UserError(f"{job.name} mounts no claim: its runs are gone with its pods", code=1)
    found = kustomize.rendered(repo.root() / f"base/services/{'tensorboard-exposed' if exposed else 'tensorboard'}")
    (deployment,) = found.of_kind("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    board = next(container for container in spec["containers"] if container["name"] == NAME)
    board["image"] = pod.container_spec["image"]
    for volume in spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            volume["persistentVolumeClaim"]["claimName"] = claims[0]
    return found


def require_secrets(kubectl: Kubectl) -> None:
    """Raise UserError if the namespace lacks a Secret of the proxy."""
    for name, command in SECRETS.items():
        if submit.lacks(kubectl, "secret", name):
            remedy = f"{command} -n {kubectl.namespace}"
            raise UserError(f"namespace {kubectl.namespace} lacks secret {name}", remedy, 1)


def start(kubectl: Kubectl, found: Manifests, say: Say) -> list[Applied]:
    """Apply it and wait until it is Ready; UserError with the reason if it is not."""
    applied, warnings = submit.apply(kubectl, found)
    for warning in warnings:
        say(warning)
    say(f"waiting until {NAME} is Ready")
    say_sometimes = wait.sparing(say, 5.0)

    def ready() -> bool:
        return _available(kubectl.json("get", "deployment", names=[NAME]))

    def report(waited: float) -> None:
        say_sometimes(f"{waited:.0f} s: {_waits_for(kubectl)}")

    if not wait.until(ready, READY_SECONDS, EVERY, report):
        raise UserError(f"{NAME} is not Ready after {READY_SECONDS:.0f} s: {_waits_for(kubectl)}", code=1)
    return applied


def _available(deployment: Object) -> bool:
    status = deployment.get("status") or {}
    current = status.get("observedGeneration") == deployment["metadata"].get("generation")
    wanted = deployment["spec"].get("replicas", 1)
    updated = status.get("updatedReplicas") == status.get("replicas") == wanted
    return bool(current and updated and status.get("availableReplicas") == wanted)


def _waits_for(kubectl: Kubectl) -> str:
    """Return what its newest pod waits for."""
    pods = kubectl.items("pods", command_line.selector("app.kubernetes.io/name", NAME))
    if not pods:
        return "it has no pod yet"
    return JobPod(max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))).waits_for


@contextlib.contextmanager
def forwarded(kubectl: Kubectl, port: int, say: Say) -> Iterator[tuple[str, str]]:
    """Keep a port-forward to this machine; yield the URL and the directory that TensorBoard reads.

    Raises UserError if it does not answer there.
    """
    words = kubectl.words("port-forward", f"--address={ADDRESS}", f"service/{NAME}", f"{port}:{PORT}")
    with _answering(words, port, say) as answer:
        yield answer


def traces(runs: Sequence[Path]) -> list[Path]:
    """Return the traces that the profiler has written in run directories, one for each rank; at most MOST_TRACES."""
    found = (path for run in runs for path in sorted((run / "profile").glob("rank-*.json.gz")))
    return list(itertools.islice(found, MOST_TRACES))


@contextlib.contextmanager
def on_this_machine(runs: Sequence[Path], port: int, say: Say) -> Iterator[tuple[str, str]]:
    """Keep a TensorBoard of run directories, each under its own name; yield the URL and the directory that it reads.

    Raises UserError if it does not answer.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("this needs tensorboard, which is not installed", repo.how_to_install("train"), 3)
    with tempfile.TemporaryDirectory() as directory:
        for run in runs:
            link = Path(directory, run.resolve().name)
            if link.is_symlink():
                raise UserError(f"two runs are called {link.name}", "show one of them")
            link.symlink_to(run.resolve() / "tensorboard")
        words = [
            sys.executable,
            "-m",
            "tensorboard.main",
            f"--logdir={directory}",
            f"--host={ADDRESS}",
            f"--port={port}",
        ]
        with _answering(words, port, say) as answer:
            yield answer


@contextlib.contextmanager
def _answering(words: list[str], port: int, say: Say) -> Iterator[tuple[str, str]]:
    """Keep a program running that answers at a port; UserError with its last line if it does not."""
    _check_free(port)
    with tempfile.TemporaryFile() as complaint:
        process = started(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaint)
        try:
            url = f"http://{ADDRESS}:{port}"
            say(f"waiting until it answers at {url}")
            directory = _answer(url, process)
            if directory is None:
                complaint.seek(0)
                lines = complaint.read().decode("utf-8", "replace").strip().splitlines()
                why = lines[-1] if lines else f"{Path(words[0]).name} printed no reason"
                raise UserError(f"no answer at {url}: {why}", "--port N", 1)
            yield url, directory
        finally:
            process.terminate()
            process.wait()


def _check_free(port: int) -> None:
    """Raise UserError if the port is in use: another program's answers would look like TensorBoard's."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
        except OSError as problem:
            raise UserError(f"port {port} of this machine: {problem.strerror}", "--port N", 1) from None


def _answer(url: str, process: subprocess.Popen[bytes]) -> str | None:
    """Return the directory that TensorBoard reads, None if the port-forward ends or nothing answers."""

    def directory() -> str | None:
        try:
            with urllib.request.urlopen(f"{url}/data/environment", timeout=10) as answer:
                return str(json.loads(answer.read(LARGEST_ANSWER))["data_location"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    return wait.settled(directory, lambda one: one is not None or process.poll() is not None, FORWARD_SECONDS, EVERY)


def stop(kubectl: Kubectl) -> list[str]:
    """Delete it and return the deleted objects by kind and UID."""
    gone = []
    for kind in ("deployment", "service", "networkpolicy"):
        for item in kubectl.items(kind, "--ignore-not-found", names=[NAME]):
            part_of = (item["metadata"].get("labels") or {}).get("app.kubernetes.io/part-of")
            if kind != "networkpolicy" and part_of != "trainyard":
                raise UserError(f"the {kind} {NAME} is not trainyard's; nothing more was removed", code=1)
            kubectl.text("delete", kind, "--wait=true", names=[NAME])
            gone.append(f"{kind}/{NAME} {item['metadata']['uid']}")
    return gone
