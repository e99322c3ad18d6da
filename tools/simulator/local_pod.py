"""One pod as one process of this machine: its command, its environment, its directories.

The environment is exactly what the pod would have: the manifest's variables and the operator's, resolved as
the kubelet resolves them. Nothing of the user's shell is in it but this documented minimum, which on a
cluster the image and the node give:

- PATH, with the directory of the running Python first; LANG, LC_ALL, LD_LIBRARY_PATH where they are set;
- TRAINYARD_SIGNING_KEY_FILE and TRAINYARD_TRACK_SECRETS where they are set, as a cluster mounts the Secrets
  `trainyard-signing` and `trackers`;
- HOME and TMPDIR: the pod's own directory, unless the pod mounts /tmp or sets HOME;
- HOSTNAME: the pod's name, which the container runtime sets;
- CUDA_VISIBLE_DEVICES: what a device plugin would do. A pod that asks for `nvidia.com/gpu` gets that many of
  the GPUs that the user's own CUDA_VISIBLE_DEVICES allows, disjoint from other pods'; a pod that asks for
  none sees none.

The only other differences from a cluster: pods have loopback addresses, so that 127.0.0.1 replaces a pod's
host name in an address variable (`*ADDR`, `*ENDPOINT`, `*HOST`) and in the command, PET_LOCAL_ADDR is the
pod's own, and everything that torch starts listens on loopback only: gloo and NCCL by their variables,
torch's stores by `training/guard`, to which PYTHONPATH leads; PET_RDZV_ID is random for each start of a job;
mount paths are local directories (`volumes`); requested cores are this machine's share of them
(`environment`); a rendezvous port that is taken here gives way to the next free one
(`tools.local.job.at_port`).
"""

import itertools
import os
import re
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.core import UserError, output
from tools.facts.instances import NVIDIA
from tools.kube.manifests import Manifests
from tools.kube.quantity import quantity
from tools.simulator import environment, volumes
from tools.workload.pod import Pod
from training.run import progress, secret_files, signing

ADDRESS = environment.MACHINE
FROM_THE_MACHINE = ("LANG", "LC_ALL", "LD_LIBRARY_PATH")
MOUNTED = (signing.KEY_FILE, secret_files.DIRECTORY)  # of the user's own, in place of mounted Secrets
ADDRESS_VARIABLE = re.compile(r".*(ADDR|ENDPOINT|HOST)")
GUARD = Path(__file__).resolve().parents[2] / "training" / "guard"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK, "TRAINYARD_LOOPBACK": "1"}
DEFAULT_GRACE = 30  # seconds; Kubernetes' terminationGracePeriodSeconds


@dataclass(frozen=True)
class LocalPod:
    """What starting a pod on this machine needs. `secret` names the variables that must not be printed."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    secret: frozenset[str]
    directory: Path
    cwd: Path
    mounts: list[volumes.Mount]
    grace: int
    restart_policy: str

    def shown_environment(self) -> dict[str, str]:
        return {name: "***" if name in self.secret else value for name, value in self.environment.items()}


def local_pods(
    pods: Sequence[Pod],
    manifests: Manifests,
    shared: Path,
    checkout: Path,
    user: Mapping[str, str] = os.environ,
    plan_only: bool = False,
) -> list[LocalPod]:
    """Return each pod of one job as a local process. Writes nothing and starts nothing.

    `shared` stands for the claim `trainyard`; a pod's own directory is `shared/pods/<pod>`. `user` is the
    environment from which the documented minimum is taken. With `plan_only`, missing GPUs are not an error.
    Raises UserError when a pod needs something that this machine or the manifests do not have.
    """
    share = environment.core_share(len(pods))
    devices = _devices(pods, user, plan_only)
    hosts = [pod.name for pod in pods]
    meeting = uuid.uuid4().hex
    result = []
    for pod, address in zip(pods, environment.addresses(len(pods)), strict=True):
        directory = volumes.below(shared / "pods", pod.name)
        resolved = environment.resolve(pod, pod.container, manifests, share, address)
        mounts = volumes.plan(pod, pod.container, shared, directory, resolved.values)
        missing = resolved.missing + mounts.missing
        if missing:
            raise UserError(f"pod {pod.name} needs {missing[0]}, which is not in {manifests.source}")
        command = command_of(pod, resolved.values)
        final = {**_minimum(pod, mounts, directory, user), "CUDA_VISIBLE_DEVICES": devices[pod.name]}
        for name, value in resolved.values.items():
            final[name] = mounts.translate(_local_hosts(value, hosts) if ADDRESS_VARIABLE.fullmatch(name) else value)
        final |= {
            "PET_LOCAL_ADDR": address,
            "PET_RDZV_ID": meeting,
            **ON_LOOPBACK,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        }
        final["PYTHONPATH"] = os.pathsep.join(filter(None, [str(GUARD), final.get("PYTHONPATH")]))
        final["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{final['PATH']}"
        argv = [mounts.translate(_local_hosts(word, hosts)) for word in command]
        started = [_program(argv[0], final["PATH"], pod), *argv[1:]]
        cwd = mounts.local(pod.container.get("workingDir") or "") or checkout
        grace, secret = int(pod.spec.get("terminationGracePeriodSeconds") or DEFAULT_GRACE), frozenset(resolved.secret)
        local = LocalPod(pod.name, started, final, secret, directory, cwd, mounts.mounts, grace, pod.restart_policy)
        result.append(local)
    return result


def command_of(pod: Pod, values: Mapping[str, str]) -> list[str]:
    """Return the words that start a container, `$(NAME)` expanded.

    Raises UserError where the manifest leaves the command to the image.
    """
    container = pod.container
    if not container.get("command"):
        raise UserError(
            f"pod {pod.name}: container {container.get('name')} has no command: only its image knows it",
            'write it in the manifest, as command: ["torchrun"]',
        )
    words = [*container["command"], *(container.get("args") or [])]
    return [environment.expand(word, values) for word in words]


def _local_hosts(text: str, hosts: Sequence[str]) -> str:
    """Replace pods' host names, with or without `.ns.svc...`, by this machine's address; not in a path."""
    names = "|".join(re.escape(host) for host in sorted(hosts, key=len, reverse=True))
    return re.sub(rf"(?<![\w.-])(?<!(?<!/)/)(?:{names})(?:\.[a-z0-9.-]*[a-z0-9])?(?![\w-])", ADDRESS, text)


def _minimum(pod: Pod, mounts: volumes.Volumes, directory: Path, user: Mapping[str, str]) -> dict[str, str]:
    temporary = mounts.local("/tmp") or directory
    return {
        "PATH": user.get("PATH", os.defpath),
        **{name: user[name] for name in FROM_THE_MACHINE if name in user},
        **{name: os.path.abspath(user[name]) for name in MOUNTED if user.get(name)},
        "HOME": str(directory),
        "TMPDIR": str(temporary),
        "HOSTNAME": pod.name,
        **({progress.VARIABLE: "1"} if output.watched() else {}),
    }


def _program(word: str, path: str, pod: Pod) -> str:
    """Return the program to start. This Python's directory comes first on PATH."""
    found = shutil.which(word, path=path)
    if found is None:
        raise UserError(f"pod {pod.name}: its command {word} is not on this machine", f"looked in {path}")
    return found


def _devices(pods: Sequence[Pod], user: Mapping[str, str], plan_only: bool) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES for each pod: this machine's GPUs shared out as a device plugin does."""
    wanted = {pod.name: gpus(pod) for pod in pods}
    total = sum(wanted.values())
    if not total:
        return dict.fromkeys(wanted, "")
    free = visible_gpus(user)
    if total > len(free):
        if plan_only:
            return dict.fromkeys(wanted, "")
        asks = "pod asks" if len(pods) == 1 else "pods ask"
        raise UserError(
            f"{len(pods)} {asks} for {total} GPUs ({NVIDIA}), this machine has {len(free)}",
            f"--nodes 1 --nproc {len(free)} asks for fewer" if free else "run a cell of CPU hardware here",
        )
    result = {}
    for name, count in wanted.items():
        result[name] = ",".join(free[:count])
        free = free[count:]
    return result


def gpus(pod: Pod) -> int:
    """Return how many GPUs a pod asks for."""
    resources = pod.container.get("resources") or {}
    amount = (resources.get("limits") or {}).get(NVIDIA) or (resources.get("requests") or {}).get(NVIDIA) or 0
    return int(quantity(str(amount)))


def shown_gpus(count: int, environment: Mapping[str, str]) -> int:
    """Return how many of a pod's GPUs its variables leave to CUDA."""
    if environment.get("NVIDIA_VISIBLE_DEVICES") in ("none", "void", ""):
        return 0
    if "CUDA_VISIBLE_DEVICES" not in environment:
        return count
    names = [name.strip() for name in environment["CUDA_VISIBLE_DEVICES"].split(",")]
    # CUDA ignores the names after the first one that is not a device.
    valid = itertools.takewhile(lambda name: name.startswith(("GPU-", "MIG-")) or name.isdigit(), names)
    return min(count, len(list(valid)))


def visible_gpus(user: Mapping[str, str]) -> list[str]:
    """Return the GPUs of this machine that the user's CUDA_VISIBLE_DEVICES allows."""
    if "CUDA_VISIBLE_DEVICES" in user:
        return [name.strip() for name in user["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    found = [path.name for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((name.removeprefix("nvidia") for name in found), key=int)
