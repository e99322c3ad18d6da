"""A trn1 cell, or a script in its pods, as a TorchX application: a Volcano job instead of a PyTorchJob.

    torchx run -s kubernetes -cfg queue=trainyard --workspace "" overlays/hardware/trn1/torchx.py:trn1_bert \\
        --name berttrain-graphs --precompile True
    torchx run -s kubernetes -cfg queue=trainyard --workspace "" overlays/hardware/trn1/torchx.py:trn1_bert

Needs the extra `torchx` (pip install -e ".[torchx]"), Volcano (base/plugins/volcano), and the claim
`trainyard`. The pods are those of the rendered cell: resources, EFA and Neuron devices, affinity, volumes,
security. What differs: Volcano's names lead the ranks to each other, and the configuration travels in the
pods' annotations, for a TorchX application has no ConfigMaps.

Facts: torchx 0.7.0, schedulers/kubernetes_scheduler.py (app_to_resource, role_to_pod), specs/api.py
(Role.pre_proc); Volcano 1.15, pkg/controllers/job/plugins/svc.
"""

# No `from __future__ import annotations` here: TorchX reads the types of the arguments.
import copy
import shlex
from dataclasses import dataclass, field
from typing import Any

from torchx import specs

from tools.cells import kustomize
from tools.cells.knobs import Knobs, applied
from tools.cells.kustomize_graph import is_kustomization
from tools.core import repo
from tools.kube.manifests import Manifests, Object

RENDEZVOUS_PORT = 29400
COMMAND_BEFORE_TORCHRUN = 3  # words: python -m training.entrypoint


def trn1_bert(
    name: str = "berttrain",
    model: str = "bert-large",
    script: str = "",
    script_args: str = "",
    nnodes: int = 0,
    instance_type: str = "",
    image: str = "",
    precompile: bool = False,
    cacheset: str = "auto",
    max_retries: int = 3,
) -> specs.AppDef:
    """Train a cell of trn1, BERT-large if nothing else is said, or run a script, or compile the graphs beforehand.

    Args:
        name: the application, and its run; a used name continues that run
        model: the cell overlays/trn1/<model>, or that of the instance type's family
        script: a program in the image, which torchrun starts in place of the cell's trainer
        script_args: the script's arguments, quoted as for a shell
        nnodes: machines; 0 takes the cell's own number
        instance_type: of the machines, such as trn1n.32xlarge; the cell's own if empty
        image: the trainer's image; the cell's own if empty
        precompile: compile the graphs with neuron_parallel_compile instead of training; name it <name>-graphs
        cacheset: directory of compiled graphs below the run
        max_retries: how often Volcano restarts the whole job after a failed or evicted pod
    """
    hardware = instance_type.partition(".")[0] or "trn1"
    cell = applied(_cell(hardware, model), Knobs(instance=instance_type or None))
    worker = cell.job()["spec"]["pytorchReplicaSpecs"]["Worker"]
    nodes = nnodes or int(worker["replicas"])
    pod = copy.deepcopy(worker["template"]["spec"])
    container = pod["containers"][0]
    command = [*container["command"], *(_program(script, script_args) or container["args"])]
    if precompile:
        command[COMMAND_BEFORE_TORCHRUN:COMMAND_BEFORE_TORCHRUN] = ["python", "-m", "training.precompile"]
    del container["args"]
    container["command"] = command
    container["image"] = image or container["image"]
    role = CellRole(
        name="trainer",
        image=container["image"],
        entrypoint=command[0],
        args=command[1:],
        num_replicas=nodes,
        max_retries=max_retries,
        retry_policy=specs.RetryPolicy.APPLICATION,
        resource=_resource(container["resources"]["limits"]),
        port_map={"c10d": RENDEZVOUS_PORT},
        mounts=[specs.VolumeMount(src="trainyard", dst_path="/shared")],
        pod=pod,
        config=_config(cell, cacheset),
        processes=str(cell.job()["spec"]["nprocPerNode"]),
        run=name,
    )
    return specs.AppDef(name=name, roles=[role])


@dataclass
class CellRole(specs.Role):  # type: ignore[misc]  # torchx is not in the project's own environment
    """A role whose pods are a cell's, for the Kubernetes scheduler."""

    pod: Object = field(default_factory=dict)  # the cell's pod spec
    config: dict[str, str] = field(default_factory=dict)  # the trainer's files, name to text
    processes: str = "auto"  # per node, as torchrun takes it
    run: str = ""

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
        """Replace TorchX's pods in its Volcano job by the cell's."""
        resource = getattr(dryrun_info.request, "resource", None)
        if resource is None or not str(resource.get("apiVersion", "")).startswith("batch.volcano.sh/"):
            raise ValueError("a cell's pods need the Kubernetes scheduler: torchx run -s kubernetes")
        job = resource["metadata"]["name"]
        for task in resource["spec"]["tasks"]:
            made = task["template"]
            task["template"] = {
                "metadata": {
                    "labels": dict(made.metadata.labels),
                    "annotations": {
                        **made.metadata.annotations,
                        **{_annotation(file): text for file, text in self.config.items()},
                    },
                },
                "spec": self._pod(job, made.spec.service_account_name),
            }
        return dryrun_info

    def _pod(self, job: str, service_account: str | None) -> Object:
        pod = copy.deepcopy(self.pod)
        pod["restartPolicy"] = "Never"  # the whole job is restarted, by Volcano
        pod.pop("serviceAccountName", None)
        if service_account:
            pod["serviceAccountName"] = service_account
        pod["volumes"] = [self._config_volume() if one["name"] == "config" else one for one in pod["volumes"]]
        container = pod["containers"][0]
        container["ports"] = [{"name": name, "containerPort": port} for name, port in self.port_map.items()]
        own = [entry for entry in container["env"] if entry["name"] != "JOB_NAME"]
        container["env"] = [*self._rendezvous(job), *own]
        return pod

    def _config_volume(self) -> Object:
        items = [
            {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{_annotation(file)}']"}}
            for file in self.config
        ]
        return {"name": "config", "downwardAPI": {"items": items}}

    def _rendezvous(self, job: str) -> list[Object]:
        """Return the variables that the training operator would inject. Volcano's svc plugin names the first
        pod.
        """
        host = f"{job}-{self.name}-0-0.{job}"
        values = {
            "JOB_NAME": self.run,  # Volcano's job has another name at each start
            "PYTHONUNBUFFERED": "1",
            "PET_NPROC_PER_NODE": self.processes,
            "PET_NNODES": str(self.num_replicas),
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{host}:{RENDEZVOUS_PORT}",
            "PET_RDZV_ID": job,
            "PET_MAX_RESTARTS": "3",
        }
        return [{"name": name, "value": value} for name, value in values.items()]


def _program(script: str, arguments: str) -> list[str]:
    """Return the words behind torchrun for a script, none without one."""
    if script.startswith("-") or (arguments and not script):
        raise ValueError("--script is the path of a program, and --script_args are its arguments")
    return [script, *shlex.split(arguments)] if script else []


def _cell(hardware: str, model: str) -> Manifests:
    path = repo.root() / "overlays" / hardware / model
    if not is_kustomization(path):
        known = ", ".join(one.parent.name for one in path.parent.glob("*/kustomization.yaml"))
        raise ValueError(f"overlays/{hardware} has no cell {model}; known: {known or 'none'}")
    return kustomize.rendered(path)


def _config(cell: Manifests, cacheset: str) -> dict[str, str]:
    """Return the trainer's configuration files, with the cacheset in the one that owns the device."""
    texts = {name: text for item in cell.of_kind("ConfigMap") for name, text in item["data"].items()}
    if cacheset != "auto":
        own = f"device:\n  cacheset: {cacheset}\n"
        texts["hardware.yaml"] = texts["hardware.yaml"].replace("device:\n", own, 1)
    return dict(sorted(texts.items()))


def _resource(limits: Object) -> specs.Resource:
    """Return the machine's devices in TorchX's terms. The pod itself keeps the cell's numbers."""
    devices = {name: int(amount) for name, amount in limits.items() if "/" in name}
    return specs.Resource(cpu=0, gpu=0, memMB=0, devices=devices)


def _annotation(file: str) -> str:
    return f"trainyard/{file}"
