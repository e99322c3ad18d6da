"""Writes the Component of a script in an image of the user's own: image, command, variables and volumes.

The cell's controller and its hardware set the pods, processes and devices, so that what a manifest says about
these is not taken from it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tools.core import UserError, output, tables
from tools.core.nested import mappings
from tools.kube import Manifests, Object, name_of
from tools.kube.manifests import written
from tools.workload import Workload, kinds
from tools.workload.operator_admission import DEFAULT_CONTAINER

AGENT = ("python3", "/trainyard-agent/agent.pyz", "--")
IMAGE = re.compile(r"[a-zA-Z0-9][\w./:@-]{0,511}")
SET_BY_THE_JOB = re.compile(
    r"(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|NNODES|NPROC_PER_NODE|MASTER_(?:ADDR|PORT)|PET_\w+"
)
OWN_VOLUMES = ("config", "shared", "shm", "tmp", "compiled", "secrets", "trainyard-agent")  # of the cell
SHARED_MEMORY = "/dev/shm"
TAKEN = ("containers", "volumes", "imagePullSecrets", "restartPolicy")  # of a pod's spec
TAKEN_OF_CONTAINER = ("name", "image", "command", "args", "env", "envFrom", "volumeMounts", "workingDir")
PLAIN_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.podIP")


@dataclass
class Script:
    """What a script needs. `said` are remarks for the user, one line each."""

    image: str = ""
    command: list[str] = field(default_factory=list)
    nodes: int = 1
    container: Object = field(default_factory=dict)  # env, envFrom, volumeMounts, workingDir
    pod: Object = field(default_factory=dict)  # volumes, imagePullSecrets
    config_maps: list[Object] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def from_manifest(manifests: Manifests) -> Script:
    """Return the script of the one job of a manifest, of any kind. Raises UserError."""
    job = _job(manifests)
    roles = [role for role in job.roles if role.trains] or job.roles
    spec, main = roles[0].template["spec"], job.container_of(roles[0].template)
    container = next(one for one in spec["containers"] if one.get("name") == main)
    made = Script(str(container.get("image") or ""), nodes=sum(role.replicas for role in roles))
    made.said.append(f"from {manifests.source}: {job.title}, {output.count(made.nodes, 'pod')}")
    if container.get("command"):  # without it, the image has the first word
        made.command = [str(word) for key in ("command", "args") for word in container.get(key) or []]
    made.container = {key: container[key] for key in ("envFrom", "workingDir") if container.get(key)}
    if env := _environment(container.get("env") or [], made.said):
        made.container["env"] = env
    _take_volumes(made, spec, container, manifests)
    if spec.get("imagePullSecrets"):
        made.pod["imagePullSecrets"] = spec["imagePullSecrets"]
    left = [key for key in spec if key not in TAKEN]
    left += [f"containers[].{key}" for key in container if key not in TAKEN_OF_CONTAINER]
    left += [f"container {one.get('name')}" for one in spec["containers"] if one is not container]
    if left:
        made.said.append(f"not taken, because the cell has its own: {', '.join(sorted(left))}")
    return made


def _job(manifests: Manifests) -> Workload:
    """Return the one job, or the one that is a distributed training."""
    every = kinds.find(manifests).workloads
    found = [one for one in every if one.trains] or every
    if len(found) != 1:
        held = ", ".join(one.title for one in found) or "no job of a kind that is known"
        raise UserError(f"{manifests.source}: contains {held}", "one job is needed; or give --image, --command")
    job = found[0]
    if job.misshapen:
        fault = job.misshapen[0]
        raise UserError(f"{manifests.source}: {job.title}: {job.prefix}{fault.path} must be {fault.wanted}")
    if not job.roles:
        raise UserError(f"{manifests.source}: {job.title} has no pod template", "give --image and --command")
    return job


def _environment(entries: Iterable[Object], said: list[str]) -> list[Object]:
    """Return the variables without those that the cell's own job sets, or cannot have."""
    kept: list[Object] = []
    dropped: list[Object] = []
    for entry in entries:
        path = str(((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or "")
        other = bool(path) and path not in PLAIN_FIELDS
        (dropped if other or SET_BY_THE_JOB.fullmatch(str(entry["name"])) else kept).append(entry)
    if dropped:
        names = ", ".join(str(one["name"]) for one in dropped)
        said.append(f"variables not taken, because the job sets its own: {names}")
    return kept


def _take_volumes(made: Script, spec: Object, container: Object, manifests: Manifests) -> None:
    """Take the volumes that the container mounts, and the file's ConfigMaps that the script uses."""
    known = {one["name"]: one for one in spec.get("volumes") or []}
    mounts, volumes = [], {}
    for mount in container.get("volumeMounts") or []:
        volume = known.get(mount["name"])
        if volume is None or mount["mountPath"].rstrip("/") == SHARED_MEMORY:
            made.said.append(f"not taken, because the cell has its own: the mount of {mount['mountPath']}")
            continue
        name = f"own-{mount['name']}" if mount["name"] in OWN_VOLUMES else mount["name"]
        volumes[name] = {**volume, "name": name}
        mounts.append({**mount, "name": name})
    if volumes:
        made.container["volumeMounts"], made.pod["volumes"] = mounts, list(volumes.values())
    named = set(_names({"container": made.container, "volumes": made.pod.get("volumes")}))
    used = [item for item in manifests.of_kind("ConfigMap") if name_of(item) in named]
    made.config_maps = [{**item, "metadata": {"name": name_of(item)}} for item in used]
    for kind in ("Secret", "PersistentVolumeClaim"):
        if others := sorted(name_of(item) for item in manifests.of_kind(kind) if name_of(item) in named):
            made.said.append(f"the namespace needs {kind} {', '.join(others)}: create it there yourself")


def _names(value: Any) -> Iterable[str]:
    """Yield the names of ConfigMaps, Secrets and claims in volumes and variables."""
    for _, part in mappings(value):
        yield from (part[key] for key in ("name", "secretName", "claimName") if isinstance(part.get(key), str))


def files_of(script: Script) -> dict[str, str]:
    """Return the Component's files by name. Raises UserError for a script without image or command."""
    if not script.image:
        raise UserError("the script has no image", "--image registry.example.com/team/mine:1")
    if not IMAGE.fullmatch(script.image):
        raise UserError(f"not the name of an image: {output.short(script.image)}")
    if not script.command:
        raise UserError("the script has no command: only its image knows it", '--command "torchrun train.py"')
    container = {
        "name": DEFAULT_CONTAINER, "image": script.image, "command": list(AGENT), "args": script.command,
        **script.container,
        "volumeMounts": [
            *script.container.get("volumeMounts", []), {"mountPath": "/etc/trainyard", "$patch": "delete"}
        ],
    }  # fmt: skip
    volumes = [*script.pod.get("volumes", []), {"name": "config", "$patch": "delete"}]
    pod = {**script.pod, "containers": [container], "volumes": volumes}
    replica = {"Worker": {"template": {"spec": pod}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"}}
    files = {"script.yaml": written([{**job, "spec": {"pytorchReplicaSpecs": replica}}])}
    if script.config_maps:
        files["configmaps.yaml"] = written(script.config_maps)
    resources = "resources: [configmaps.yaml]\n" if script.config_maps else ""
    text = tables.load("new/texts.yaml")["script kustomization"].format(resources=resources)
    return {"kustomization.yaml": text, **files}
