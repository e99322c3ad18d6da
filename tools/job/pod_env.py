"""What running pods really have: environment, packages, torch's build, devices, mounts, limits, kernel."""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.core import UserError
from tools.job.snapshot import JobPod
from tools.job.snapshot.pod_exec import in_pod
from tools.kube import Kubectl
from tools.kube.kubectl import each
from training.remote import pod_env

Env = dict[str, dict[str, str]]  # values by section and name
# Variables that differ between the pods of one job by their meaning.
OWN = frozenset(
    ("HOSTNAME", "POD_NAME", "POD_IP", "NODE_NAME", "RANK", "NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")
)


def of_pods(kubectl: Kubectl, pods: Sequence[JobPod]) -> dict[str, Env | str]:
    """Return what each pod has by its name, or why that is unknown."""
    program, salt = Path(pod_env.__file__).read_text(encoding="utf-8"), secrets.token_hex(16)

    def ask(pod: JobPod) -> Env | str:
        if not pod.running:
            return f"it does not run ({pod.phase})"
        try:
            return checked(json.loads(in_pod(kubectl, pod, "python3", "-", salt, stdin=program)))
        except UserError as problem:
            return problem.message
        except (ValueError, RecursionError):
            return "its answer is not that of the program"

    return dict(zip((pod.name for pod in pods), each(ask, pods), strict=True))


def checked(answer: object) -> Env:
    """Return the answer of the program; ValueError for another one, because whoever made the image wrote it."""
    if not isinstance(answer, dict) or not all(isinstance(section, dict) for section in answer.values()):
        raise ValueError("sections are needed")
    return {str(name): {str(key): str(value) for key, value in section.items()} for name, section in answer.items()}


def differences(found: Mapping[str, Env]) -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Yield section, name, and the pods of each value, for what differs between pods.

    A pod's own name in a value, and variables that hold its number, do not count as differences.
    """
    names = {(section, name) for env in found.values() for section, values in env.items() for name in values}
    for section, name in sorted(names):
        if section == "environment" and name in OWN:
            continue
        values: dict[str, list[str]] = {}
        for pod, env in found.items():
            value = env.get(section, {}).get(name, "(missing)").replace(pod, "(this pod)")
            values.setdefault(value, []).append(pod)
        if len(values) > 1:
            yield section, name, values
