"""The knobs of a job: one set of changes with the same meaning for every command.

Each knob changes rendered objects, of any kind of job that tools/workload models, as far as it has a meaning
there. What has none is one clear error, never a knob without effect.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tools.cells import kustomize, locate, renaming
from tools.cells.instance_patch import fit, wanted_types
from tools.cells.kustomize_graph import is_kustomization
from tools.core import UserError, repo
from tools.facts.instances import INSTANCE_LABEL, INSTANCES, NEURON, Instance, instance
from tools.kube.manifests import MOST_PODS, Manifests, Object, parse, read
from tools.workload import Workload, kinds
from tools.workload.pytorchjob import RESTARTS_PER_NODE

FEATURES = "overlays/feature"
CHANGE_KIND = ("hyperpod-job", "trainjob")  # features that come last: the others are for a PyTorchJob
# The nested places in a message of kustomize.
ROUTE = re.compile(r"accumulating components: accumulateDirectory: \\*\"|recursed accumulation of path '[^']*': ")
ELASTIC = "trainyard/nodes"  # annotation of an elastic cell's objects: its bounds, 2:4
# Options of launchers that hold a number of nodes or of processes of a node, and the variables that do.
NODES = ("--nnodes", "--num_machines", "--num_nodes"), ("PET_NNODES", "NNODES", "NUM_NODES")
# accelerate counts the processes of all nodes.
WORLD = ("--num_processes", "--num-processes"), ()
PROCESSES = (
    ("--nproc-per-node", "--nproc_per_node", "--num_gpus", "--gpus_per_node"),
    ("PET_NPROC_PER_NODE", "NPROC_PER_NODE"),
)
# Of a Neuron device: NEURON counts devices, the other resource cores.
NEURON_CORE = "aws.amazon.com/neuroncore"
# In the name of a resource: GPUs of any maker, parts of them, Neuron devices and cores, Gaudi, TPU.
DEVICE = re.compile(r"/gpu$|/gpu\.|/mig-|/neuron(?:core)?$|/gaudi$|/tpu$|^gpu\.intel\.com/(?:i915|xe)$")


@dataclass(frozen=True)
class Knobs:
    """The user's changes. None and empty leave the job as it is.

    `nodes` are the pods that train together, `nproc` the processes of each. `settings` are `key=value` of the
    trainer's configuration. `name` becomes the end of the job's name. `features` name Components below
    overlays/feature.
    """

    nodes: int | None = None
    nproc: int | None = None
    settings: tuple[str, ...] = ()
    name: str | None = None
    image: str | None = None
    instance: str | None = None
    features: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Knobs()

    def arguments(self, without: str | None = None) -> list[str]:
        """Return the knobs as words of a command line, without the setting of the key `without`."""
        kept = [one for one in self.settings if one.partition("=")[0].strip() != without]
        pairs = [
            *(("--nodes", self.nodes), ("--nproc", self.nproc), *(("--set", one) for one in kept)),
            *(("--name", self.name), ("--image", self.image), ("--instance", self.instance)),
            *(("--feature", one) for one in self.features),
        ]
        return [word for name, value in pairs if value is not None for word in (name, str(value))]


def rendered(cell: str | None, file: str | None, knobs: Knobs) -> Manifests:
    """Return the objects of a cell or a file (`-`: standard input) with the knobs. Raises UserError, ConfigError."""
    if (cell is None) == (file is None):
        raise UserError("give a cell, or a file with -f", "cells: yard matrix check")
    manifests = locate.rendered(cell) if cell is not None else read(str(file))
    if not manifests.objects:
        raise UserError(f"{manifests.source}: contains no object")
    return applied(manifests, knobs)


def applied(manifests: Manifests, knobs: Knobs) -> Manifests:
    """Return a copy of `manifests` with the knobs applied to its one job. Raises UserError, ConfigError."""
    if not knobs:
        return manifests
    result = Manifests(manifests.source, copy.deepcopy(manifests.objects))
    job = kinds.job_of(result)
    job.check_shape()
    if job.wrapper.startswith("Experiment/"):
        raise UserError(f"{job.wrapper} makes its trials from a template", "change the template itself")
    if knobs.instance is not None:
        _set_instance(job, knobs.instance)
    if knobs.nodes is not None:
        _set_nodes(job, knobs.nodes)
        job = kinds.job_of(result)  # a job remembers its roles
    if knobs.nproc is not None:
        _set_processes(job, knobs.nproc)
    if knobs.image is not None:
        _set_image(job, knobs.image)
    result = _with_features(result, knobs.features)  # one may own a section of the configuration
    generated = renaming.generated(result)
    settings = (*(("nodes=null",) if _was_elastic(job, knobs) else ()), *knobs.settings)
    if settings:
        from tools.cells.trainer_config import write_settings  # imported here: it would slow a plain render

        write_settings(result, settings)
    if knobs.instance is not None:
        _check_memory(result, instance(knobs.instance))
    renaming.rename(result, generated, knobs.name)
    return result


def name_after(settings: Iterable[str], room: int) -> str:
    """Return a name of at most `room` characters that tells the settings: `learning-rate-1e-4`."""
    pairs = (one.partition("=") for one in settings)
    text = "-".join(f"{key.strip().rpartition('.')[2]}-{value.strip()}" for key, _, value in pairs)
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:room].strip("-")


def features() -> list[str]:
    """Return the names of the Components below overlays/feature."""
    top = repo.root() / FEATURES
    return sorted(
        path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_dir() and is_kustomization(path)
    )


def _was_elastic(job: Workload, knobs: Knobs) -> bool:
    """Return whether --nodes gives an elastic cell one size; the annotation goes."""
    annotations = job.item["metadata"].get("annotations") or {}
    return knobs.nodes is not None and annotations.pop(ELASTIC, None) is not None


def _set_nodes(job: Workload, nodes: int) -> None:
    if nodes > MOST_PODS:
        raise UserError(f"--nodes {nodes}: more than {MOST_PODS}, the most that is read")
    before, policy = job.nodes, job.backoff
    try:
        job.resize(nodes)
    except UserError as problem:
        raise UserError(f"--nodes {nodes}: {problem.message}", problem.hint) from None
    for restarts in {RESTARTS_PER_NODE, _most_restarts(job)}:
        if policy.get("backoffLimit") == restarts * before:  # as `yard matrix sync` writes it
            policy["backoffLimit"] = restarts * nodes
            break
    for container in job.training_containers():
        _write_number(container, *NODES, lambda _: nodes)
        _write_number(container, *WORLD, lambda world: world * nodes // before)


def _most_restarts(job: Workload) -> int:
    """Return how often torchrun restarts the processes of a pod. The cell's key `retry` sets it."""
    holders = [*job.training_containers(), job.section("trainer")]
    variables = (one for holder in holders for one in holder.get("env") or ())
    found = next((one.get("value") for one in variables if one.get("name") == "PET_MAX_RESTARTS"), None)
    text = str(job.section("elasticPolicy").get("maxRestarts", found))
    return int(text) if text.isdecimal() else RESTARTS_PER_NODE


def _set_processes(job: Workload, count: int) -> None:
    """Set the processes of each pod, and with them the devices that a pod asks for."""
    nodes, containers = job.nodes, job.training_containers()
    written = [_write_number(one, *PROCESSES, lambda _: count) for one in containers]
    written += [_write_number(one, *WORLD, lambda _: count * nodes) for one in containers]
    if not any([*written, job.write_processes(count)]):
        raise UserError(
            f"--nproc {count}: {job.title} does not say how many processes a pod starts",
            "write --nproc-per-node into its command",
        )
    for container in containers:
        resources = container.get("resources") or container.get("resourcesPerNode") or {}
        for amounts in (resources.get("limits"), resources.get("requests")):
            if isinstance(amounts, dict):
                _write_devices(job, amounts, count)


def _write_devices(job: Workload, amounts: Object, count: int) -> None:
    """Write the devices for `count` processes: a GPU, a part of one or a Neuron core each."""
    if NEURON in amounts:
        found = machine(job)
        cores = found.cores_per_accelerator if found else 2
        if count % cores:
            near = max(cores, count // cores * cores)
            raise UserError(
                f"--nproc {count}: a Neuron device has {cores} cores, one for each process", f"--nproc {near}"
            )
        amounts[NEURON] = str(count // cores)
    for resource in [name for name in amounts if name != NEURON and DEVICE.search(str(name))]:
        amounts[resource] = str(count)


def _write_number(
    container: Object, options: Sequence[str], variables: Sequence[str], change: Callable[[int], int]
) -> bool:
    """Change the number in a container's words or variables; return whether there is one. `auto` counts as 0."""

    def changed(text: str) -> str:
        return str(change(int(text) if text.isdecimal() and len(text) < 7 else 0))

    found = 0
    inline = re.compile(rf"((?:{'|'.join(map(re.escape, options))})(?:=|\s+))([\w:]+)")
    for key in ("command", "args"):
        words = container.get(key) or []
        for place, word in enumerate(words):
            if place and words[place - 1] in options:
                words[place], found = changed(word), found + 1
                continue
            words[place], count = inline.subn(lambda match: match[1] + changed(match[2]), word)
            found += count
    for entry in container.get("env") or []:
        if entry.get("name") in variables and isinstance(entry.get("value"), str):
            entry["value"], found = changed(entry["value"]), found + 1
    return found > 0


def _set_image(job: Workload, image: str) -> None:
    if not re.fullmatch(r"[\w][\w.:/@-]{0,1023}", image):
        raise UserError(f"--image {image[:80]!r}: not the name of an image", "registry/name:tag or @sha256:...")
    for container in job.training_containers():
        container["image"] = image


def _set_instance(job: Workload, name: str) -> None:
    """Fit the job's pods to whole machines of another type of the same family."""
    new, old = instance(name), machine(job)
    if old is None:
        raise UserError(
            f"--instance {name}: the pods of {job.title} ask for no type of machine",
            f"a nodeSelector or a node affinity names it: {INSTANCE_LABEL}",
        )
    family = _family(old)
    if new not in family:
        near = min(family, key=lambda one: abs(one.processes - new.processes))
        listed = ", ".join(one.name for one in family)
        raise UserError(
            f"--instance {name}: {job.title} takes {old.name}, whose family has {listed}",
            f"--instance {near.name}; another kind of machine is another hardware: choose its cell",
        )
    for spec, container in zip(job.training_specs(), job.training_containers(), strict=True):
        fit(spec, container, old, new)
    _set_processes(job, new.processes)


def _check_memory(manifests: Manifests, new: Instance) -> None:
    """Raise UserError if the trainer's configuration needs more memory than machines of type `new` have."""
    from tools.cells import memory  # imported here: they would slow a plain render
    from tools.cells.trainer_config import load_config
    from tools.plan.memory import estimate
    from training.config import ConfigError

    config, nodes = load_config(manifests, repo.root()), kinds.job_of(manifests).nodes
    if config is None:
        return
    need = estimate(config, nodes, memory.room_on(new))
    if need.fits:
        return
    fitting = []
    for one in _family(new):
        with contextlib.suppress(ConfigError):  # the ranks of this type could not share the batch
            fitting += [one] if estimate(config, nodes, memory.room_on(one)).fits else []
    near = min(fitting, key=lambda one: abs(one.processes - new.processes), default=None)
    raise UserError(
        f"--instance {new.name}: {need.summary()}, on {nodes} x {new.name}",
        f"--instance {near.name}" if near else f"none of its family fits on {nodes} nodes: give more --nodes",
    )


def _family(one: Instance) -> list[Instance]:
    """Return the instance types of the same EC2 family and with the same accelerator."""
    wanted = (one.name.partition(".")[0], one.accelerator)
    return [each for each in INSTANCES.values() if (each.name.partition(".")[0], each.accelerator) == wanted]


def machine(job: Workload) -> Instance | None:
    """Return the type of machine that the job's pods ask for, None if they ask for none or for several."""
    found = {value for spec in job.training_specs() for value in wanted_types(spec)}
    types = [one for one in INSTANCES.values() if found & set(one.node_names)]
    return types[0] if len(types) == 1 else None


def _with_features(manifests: Manifests, names: Sequence[str]) -> Manifests:
    for name in names:
        if name not in features():
            hint = repo.did_you_mean(name, features()) or f"known: {', '.join(features())}"
            raise UserError(f"--feature {name}: {FEATURES}/{name} does not exist", hint)
    added: list[str] = []
    for name in sorted(dict.fromkeys(names), key=CHANGE_KIND.__contains__):
        try:
            text = kustomize.with_component(manifests.objects, f"{FEATURES}/{name}")
        except UserError as problem:
            _, found, why = problem.message.partition(" does not render: ")
            if not found:
                raise
            place = f"together with {', '.join(added)}" if added else f"to {manifests.source}"
            why = ROUTE.sub("", why).rstrip('\\"')
            hint = f"{FEATURES}/README.md says which go together (kustomize: {why})"
            raise UserError(f"--feature {name} cannot be added {place}", hint) from None
        added.append(name)
        result = kustomize.in_order(parse(text, manifests.source))
        if all(one in manifests.objects for one in result.objects):  # kustomize may order them
            kind = kinds.job_of(manifests).kind
            raise UserError(f"--feature {name} changes nothing here: it is not for this {kind}")
        manifests = result
    return manifests
