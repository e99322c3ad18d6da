"""A cell prepared to run on this machine: rendered, changed as the user asked, checked, as local pods."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.facts.instances import NVIDIA
from tools.kube.manifests import Manifests, Object, name_of
from tools.simulator import wiring
from tools.simulator.local_pod import LocalPod, local_pods
from tools.simulator.supervisor import Success
from tools.workload import operator_pods
from tools.workload.operator_admission import MASTER, WORKER
from tools.workload.pod import Pod
from tools.workload.pytorchjob import PyTorchJob

if TYPE_CHECKING:
    from training.config import Config

Texts = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Change:
    """The user's changes: pods, processes in a pod, rendezvous port, and `key=value` settings."""

    pods: int | None = None
    nproc: int | None = None
    port: int | None = None
    settings: tuple[str, ...] = ()

    def arguments(self, without: str | None = None) -> list[str]:
        """Return the change as arguments of `yard run`, without the setting of the key `without`."""
        numbers = (("--pods", self.pods), ("--nproc", self.nproc), ("--port", self.port))
        words = [word for name, number in numbers if number is not None for word in (name, str(number))]
        kept = [setting for setting in self.settings if setting.partition("=")[0].strip() != without]
        return words + [word for setting in kept for word in ("--set", setting)]


@dataclass(frozen=True)
class LocalJob:
    """One job that is ready to start. `config` is None when its pods hold no trainer configuration."""

    source: str
    name: str
    manifests: Manifests
    pods: list[Pod]
    local: list[LocalPod]
    directory: Path
    backoff_limit: int | None
    config: Config | None
    wiring: Verdict
    change: Change

    @property
    def success(self) -> Success:
        """The operator's rule for this job's success."""
        if self.pods[0].role == MASTER.lower():
            return Success.MASTER
        return Success.ANY if self.manifests.job()["spec"].get("elasticPolicy") is not None else Success.ALL

    @property
    def config_directory(self) -> Path | None:
        """The directory that will hold the first pod's configuration."""
        return _directory_with(self.local[0], "model.yaml", self.manifests, self.pods[0])


def changed(manifests: Manifests, change: Change) -> Manifests:
    """Return a copy of `manifests` with `change` applied to its PyTorchJob and its configuration."""
    result = Manifests(manifests.source, copy.deepcopy(manifests.objects))
    job = result.job()
    replicas = (job.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    if change.pods is not None:
        _set_pods(job, replicas, change.pods)
    if change.nproc is not None:
        _set_processes(job, replicas, change.nproc)
    if change.port is not None:
        _set_port(job, replicas, change.port)
    if change.settings:
        _set_config(result, change.settings)
    return result


def ready(
    manifests: Manifests, change: Change, shared: Path, checkout: Path, plan_only: bool = False
) -> LocalJob:
    """Apply `change`, check the one job of `manifests`, and return it ready to start. Writes nothing.

    `shared` stands for the claim `trainyard`. With `plan_only`, missing GPUs are not an error. Raises
    UserError and the trainer's ConfigError.
    """
    manifests = changed(manifests, change)
    job = manifests.job()
    verdict = wiring.analyse(PyTorchJob(job, manifests=manifests)).verdict
    if verdict.state is State.FAIL:
        raise UserError(f"{manifests.source}: {verdict.summary}", verdict.remedy, code=1)
    pods = operator_pods.pods(job)
    local = local_pods(pods, manifests, shared, checkout, plan_only=plan_only)
    name = name_of(job)
    config = load_config(manifests, checkout)
    if config is not None:
        _check_world(config, job, len(pods))
    return LocalJob(
        source=manifests.source,
        name=name,
        manifests=manifests,
        pods=pods,
        local=local,
        directory=run_directory(local[0], shared, name),
        backoff_limit=(job["spec"].get("runPolicy") or {}).get("backoffLimit"),
        config=config,
        wiring=verdict,
        change=change,
    )


def at_port(job: LocalJob, port: int) -> LocalJob:
    """Return the job with its pods meeting at another port. The user's `change` stays as it was."""
    moved = ready(job.manifests, Change(port=port), repo.local(), repo.root())
    return replace(moved, change=job.change)


def run_directory(pod: LocalPod, shared: Path, name: str) -> Path:
    """Return a job's run directory: the trainer's TRAINYARD_RUN, or `runs/<job>` without it."""
    return Path(pod.environment.get("TRAINYARD_RUN") or shared / "runs" / name)


def load_config(manifests: Manifests, checkout: Path) -> Config | None:
    """Return the trainer's configuration that the ConfigMaps hold, or None when they hold none.

    Raises ConfigError.
    """
    texts = config_texts(manifests, checkout)
    if not texts:
        return None
    from training.config import load_texts

    return load_texts(texts)


def config_texts(manifests: Manifests, checkout: Path) -> Texts:
    """Return `{layer: (file name for messages, text)}` of the three files, or nothing when none is there.

    A text that stands unchanged in a file below overlays/ has that file's name, so that lines match.
    """
    from training.config import FILES

    found: Texts = {}
    for layer in FILES:
        for item in manifests.of_kind("ConfigMap"):
            text = (item.get("data") or {}).get(f"{layer}.yaml")
            if text is not None:
                found[layer] = (_origin(layer, text, checkout) or f"{name_of(item)}/{layer}.yaml", text)
    if found and len(found) < len(FILES):
        missing = next(layer for layer in FILES if layer not in found)
        raise UserError(
            f"{manifests.source}: no ConfigMap holds {missing}.yaml, but one holds {next(iter(found))}.yaml"
        )
    return found


def _origin(layer: str, text: str, checkout: Path) -> str | None:
    for path in sorted((checkout / "overlays").glob(f"*/*/{layer}.yaml")):
        if path.read_text(encoding="utf-8", errors="replace") == text:
            return repo.shown(path)
    return None


def _set_config(manifests: Manifests, settings: Iterable[str]) -> None:
    from training.config import apply_override, load_texts

    texts = config_texts(manifests, repo.root())
    if not texts:
        raise UserError(f"{manifests.source}: holds no trainer configuration for --set to change")
    for setting in settings:
        texts = apply_override(texts, setting)
    load_texts(texts)
    for item in manifests.of_kind("ConfigMap"):
        data = item.get("data") or {}
        data.update({f"{layer}.yaml": text for layer, (_, text) in texts.items() if f"{layer}.yaml" in data})


def _set_pods(job: Object, replicas: Object, count: int) -> None:
    if WORKER not in replicas:
        raise UserError(f"{name_of(job)}: has no Worker replicas for --pods to set")
    workers = count - 1 if MASTER in replicas else count
    if workers < 1:
        raise UserError(f"--pods {count}: {name_of(job)} has a Master, so it needs two pods or more")
    replicas[WORKER]["replicas"] = workers
    elastic = job["spec"].get("elasticPolicy")
    if elastic is not None:
        elastic["minReplicas"] = elastic["maxReplicas"] = workers


def _set_processes(job: Object, replicas: Object, count: int) -> None:
    """Set processes a pod, and with them the GPUs that a pod asks for: one each."""
    elastic = job["spec"].get("elasticPolicy") or {}
    if elastic.get("nProcPerNode") is not None:
        elastic["nProcPerNode"] = count
    else:
        job["spec"]["nprocPerNode"] = str(count)
    for container in _containers(replicas):
        for amounts in (container.get("resources") or {}).values():
            if isinstance(amounts, dict) and NVIDIA in amounts:
                amounts[NVIDIA] = str(count)


def _set_port(job: Object, replicas: Object, port: int) -> None:
    elastic = job["spec"].get("elasticPolicy") or {}
    if elastic.get("rdzvPort") is not None:
        elastic["rdzvPort"] = port
    for container in _containers(replicas):
        others = [
            item
            for item in container.get("ports") or []
            if item.get("name") != operator_pods.DEFAULT_PORT_NAME
        ]
        container["ports"] = [*others, {"name": operator_pods.DEFAULT_PORT_NAME, "containerPort": port}]


def _containers(replicas: Object) -> Iterable[Object]:
    for replica in replicas.values():
        yield from ((replica.get("template") or {}).get("spec") or {}).get("containers") or []


def _check_world(config: Config, job: Object, pods: int) -> None:
    """Raise ConfigError when the job's ranks cannot share the batch, if the number of ranks is known."""
    text = job["spec"].get("nprocPerNode") or str(
        (job["spec"].get("elasticPolicy") or {}).get("nProcPerNode")
    )
    if text.isdigit():
        config.accumulation(pods * int(text))


def _directory_with(pod: LocalPod, file: str, manifests: Manifests, origin: Pod) -> Path | None:
    """Return the directory of the mount of `pod` that will hold `file`."""
    volumes = {volume["name"]: volume for volume in origin.spec.get("volumes") or []}
    for mount in origin.container.get("volumeMounts") or []:
        volume = volumes.get(mount["name"]) or {}
        sources = (volume.get("projected") or {}).get("sources") or [volume]
        names = [source["configMap"]["name"] for source in sources if source.get("configMap")]
        if any(file in (manifests.config_map(name, origin.namespace) or {}) for name in names):
            return next(item.local for item in pod.mounts if item.path == "/" + mount["mountPath"].strip("/"))
    return None
