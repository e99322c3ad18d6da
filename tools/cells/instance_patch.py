"""The resources of a pod that takes a whole machine: from the table of instance types to a Component's patch.

The default size of a hardware Component and every other size that a cell names are generated here, so that
device, processor and memory counts are never written by hand.
"""

import io
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted

from tools.facts.environment import variables
from tools.facts.instances import EFA, INSTANCE_LABEL, Instance
from tools.kube.manifests import Object
from tools.kube.selectors import REQUIRED, ZONE, node_terms
from tools.workload.hyperpod import HyperPodPyTorchJob
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import TrainJob

HUGEPAGES = "hugepages-2Mi"
# Reserved for a node's own pods: network, volumes, device plugins, logs, metrics.
DAEMON_CPU_M, DAEMON_MEMORY_MIB = 600, 1024
# Allocatable memory differs by about one percent between AMI releases.
MEMORY_SHARE = 0.98
# As in the EKS user guide's NCCL test. A node with the EFA driver has at least twice as many.
HUGEPAGES_MIB = 5120
SHM_MIB_PER_DEVICE, SHM_MOST_MIB = 8192, 65536

POD = "/spec/pytorchReplicaSpecs/Worker/template/spec"
CONTAINER = f"{POD}/containers/0"
SHM = 2  # the index of volume `shm` in base/pytorchjob; the patch tests it before the change


def cpus(instance: Instance) -> int:
    """Return the whole processors left for a trainer on a node of this type."""
    return max(1, (instance.allocatable_cpu_m - DAEMON_CPU_M) // 1000)


def memory_mib(instance: Instance) -> int:
    """Return the memory left for a trainer in MiB, a whole number of GiB: the kubelet subtracts huge pages."""
    left = instance.allocatable_memory_mib - instance.hugepages_2mi_mib - DAEMON_MEMORY_MIB
    return int(left * MEMORY_SHARE) // 1024 * 1024


def shm_mib(instance: Instance) -> int:
    """Return the size of /dev/shm in MiB: 8 GiB a device, at most 64. It counts against the container's memory."""
    share = memory_mib(instance) // 8 // 1024 * 1024
    return max(1024, min(SHM_MIB_PER_DEVICE * max(1, instance.accelerators), SHM_MOST_MIB, share))


def limits(instance: Instance) -> dict[str, str]:
    """Return what is both requested and limited. Processors are only requested."""
    found = {"memory": _gib(memory_mib(instance))}
    if instance.device_resource:
        found[instance.device_resource] = str(instance.accelerators)
    if instance.efa and instance.accelerators:
        found[EFA] = str(instance.efa)
    if instance.hugepages_2mi_mib:
        found[HUGEPAGES] = f"{HUGEPAGES_MIB}Mi"
    return found


def taints(instance: Instance) -> list[str]:
    """Return the keys of the taints that such nodes may have. They are named after the devices."""
    return [key for key in limits(instance) if "/" in key]


def patch(instance: Instance) -> str:
    """Return the JSON6902 patch, as YAML, that fits base/pytorchjob to one whole machine of this type."""
    selectors = [
        {"key": key, "operator": "In", "values": _flow(values)} for key, values in instance.node_labels.items()
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": selectors}]}
    found = limits(instance)
    processors = {"cpu": Quoted(str(cpus(instance)))}
    operations = [
        _add("/spec/nprocPerNode", Quoted(str(instance.processes))),
        _add(f"{POD}/affinity", {"nodeAffinity": {REQUIRED: terms}, **(one_zone() if EFA in found else {})}),
        _add(f"{CONTAINER}/resources", {"requests": {**processors, **_quoted(found)}, "limits": _quoted(found)}),
        {"op": "test", "path": f"{POD}/volumes/{SHM}/name", "value": "shm"},
        _add(f"{POD}/volumes/{SHM}/emptyDir/sizeLimit", _gib(shm_mib(instance))),
    ]
    tolerations = [_flow(_toleration(key)) for key in taints(instance)]
    if tolerations:
        operations.append(_add(f"{POD}/tolerations", tolerations))
    for name, value in variables(instance).items():
        operations.append(_add(f"{CONTAINER}/env/-", _flow({"name": name, "value": Quoted(value)})))
    yaml, text = YAML(typ="rt"), io.StringIO()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=2, offset=0)
    yaml.dump(operations, text)
    return text.getvalue()


def one_zone() -> Object:
    """Return the affinity that keeps the pods of a job in one zone, whatever its kind: EFA does not leave it.

    Keys of labels that a pod lacks are ignored. Kubernetes below 1.31 ignores them all, and keeps the pods of
    all trainers of the namespace together.
    """
    selector = {"matchLabels": _flow({"app.kubernetes.io/name": "trainer"})}
    keys = _flow([kind.job_label for kind in (PyTorchJob, TrainJob, HyperPodPyTorchJob)])
    return {"podAffinity": {REQUIRED: [{"labelSelector": selector, "matchLabelKeys": keys, "topologyKey": ZONE}]}}


def wanted_types(spec: Object) -> list[str]:
    """Return the instance types that a pod's node selector and required affinity allow."""
    return [value for values, key in _type_values(spec) for value in ([values[key]] if key else values)]


def fit(spec: Object, container: Object, old: Instance, new: Instance) -> None:
    """Change a pod that asks for machines of type `old` so that it takes one whole machine of type `new`."""
    for values, key in _type_values(spec):
        places = [key] if key else range(len(values))
        for place in places:
            if values[place] in old.node_names:
                values[place] = new.node_names[old.node_names.index(values[place])]
    found = limits(new)
    affinity = spec.setdefault("affinity", {})
    if "podAffinity" in affinity and affinity["podAffinity"] == one_zone()["podAffinity"]:
        del affinity["podAffinity"]
    if EFA in found:
        affinity.setdefault("podAffinity", one_zone()["podAffinity"])
    container["resources"] = {"requests": {"cpu": str(cpus(new)), **found}, "limits": found}
    for volume in spec.get("volumes") or []:
        memory = volume.get("emptyDir") or {}
        if memory.get("medium") == "Memory" and "sizeLimit" in memory:
            memory["sizeLimit"] = _gib(shm_mib(new))
    kept = [one for one in spec.get("tolerations") or [] if one.get("key") not in taints(old)]
    spec["tolerations"] = kept + [_toleration(key) for key in taints(new)]
    before, after = variables(old), variables(new)
    gone = [name for name, value in before.items() if name not in after]
    entries = [one for one in container.get("env") or [] if one.get("name") not in (*gone, *after)]
    container["env"] = entries + [{"name": name, "value": value} for name, value in after.items()]


def _type_values(spec: Object) -> Iterator[tuple[Any, str]]:
    """Yield what holds a pod's instance types, each with its key: the selector, or lists with no key."""
    selector = spec.get("nodeSelector") or {}
    if INSTANCE_LABEL in selector:
        yield selector, INSTANCE_LABEL
    for term in node_terms(spec) or []:
        for one in term.get("matchExpressions") or []:
            if one.get("key") == INSTANCE_LABEL and one.get("operator") == "In":
                yield one.get("values") or [], ""


def _toleration(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _add(path: str, value: Any) -> dict[str, Any]:
    """Return an operation that sets a value whether or not one exists."""
    return {"op": "add", "path": path, "value": value}


def _quoted(amounts: dict[str, str]) -> dict[str, Any]:
    """Quote plain numbers: a quantity is a string."""
    return {key: Quoted(value) if value.isdigit() else value for key, value in amounts.items()}


def _gib(mib: int) -> str:
    return f"{mib // 1024}Gi"


def _flow(value: dict[str, Any] | list[str]) -> CommentedMap | CommentedSeq:
    """Return the value in flow style: on one line."""
    node = CommentedMap(value) if isinstance(value, dict) else CommentedSeq(value)
    node.fa.set_flow_style()
    return node
