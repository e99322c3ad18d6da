"""Rules on what a pod requests, and whether the machine that it selects can provide it."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tools.core import UserError, output
from tools.core.repo import nearest
from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good
from tools.facts.instances import EFA, NEURON, NVIDIA, Instance
from tools.kube.json_patch import value_at
from tools.kube.manifests import Object, name_of
from tools.kube.quantity import amount, amounts, extended, plain, quota_keys, requests
from tools.preflight.rule import Place, rule
from tools.preflight.subject import ACCELERATORS, NEURON_CORE, NEURON_DEVICE, Job, Subject, Template
from tools.simulator.command_line import option, words
from tools.simulator.node import Node
from tools.simulator.volumes import texts

MIB = Decimal(2**20)
SMALLEST_MEMORY = MIB
MOST_PROCESSORS = 1000
HUGEPAGES = "hugepages-2Mi"
OTHERS: list[str] = load("preflight/words.yaml")["other accelerators"]
SINGLE = {*OTHERS} - {"google.com/tpu"}  # of which each process has one
PROCESSES = {"torchrun": "nproc-per-node", "accelerate": "num_processes", "deepspeed": "num_gpus"}


@rule("quantities", each="templates")
def quantities(subject: Subject, template: Template) -> Iterator[Verdict]:
    for path, container in template.containers():
        resources = container.get("resources") or {}
        for kind in ("requests", "limits"):
            for name, value in (resources.get(kind) or {}).items():
                if "$" in str(value):
                    continue  # the rule `template-left` reports it
                place = Place(template.object, f"{path}.resources.{kind}.{name}", value)
                fault = _quantity_fault(name, value)
                yield bad(place, *fault) if fault else good(place, "a plausible amount")
        yield from _above_limit(template, path, resources)


def _quantity_fault(name: str, value: object) -> tuple[str, str] | None:
    number = amount(value)
    if number is None:
        return f"{value!r} is not a quantity", "such as 500m, 2, 3Gi"
    if number < 0:
        return f"{name} is negative", "use 0 or more"
    if name == "memory" and 0 < number < SMALLEST_MEMORY:
        unit, fault = ("Mi", "m is for thousandths") if str(value).endswith("m") else ("Gi", "the unit is missing")
        return f"memory {value} is {plain(number)} bytes", f"{fault}: {str(value).removesuffix('m')}{unit}?"
    if name == "cpu" and number > MOST_PROCESSORS:
        return f"cpu {value} is {plain(number)} processors", f"for thousandths add an m: {value}m"
    return None


def _above_limit(template: Template, path: str, resources: dict[str, dict[str, object]]) -> Iterator[Verdict]:
    limits = resources.get("limits") or {}
    for name, value in (resources.get("requests") or {}).items():
        low, high = amount(value), amount(limits.get(name))
        if low is not None and high is not None and low > high:
            place = Place(template.object, f"{path}.resources.requests.{name}", value)
            yield bad(place, f"{name}: the request {value} is above the limit {limits[name]}", "raise the limit")


@rule("devices-whole", each="templates")
def devices_whole(subject: Subject, template: Template) -> Iterator[Verdict]:
    for path, container in template.containers():
        resources = container.get("resources") or {}
        limits, wanted = resources.get("limits") or {}, resources.get("requests") or {}
        for name in (name for name in dict.fromkeys([*limits, *wanted]) if extended(name)):
            place = Place(template.object, f"{path}.resources", f"{name}: {limits.get(name, wanted.get(name))}")
            fault = _device_fault(name, limits, wanted)
            yield bad(place, *fault) if fault else good(place, "an integer limit")


def _device_fault(name: str, limits: dict[str, object], wanted: dict[str, object]) -> tuple[str, str] | None:
    numbers = [number for given in (limits, wanted) if (number := amount(given.get(name))) is not None]
    if any(number != number.to_integral_value() for number in numbers):
        return f"{name} is not an integer", "a device cannot be divided: use 1"
    if name not in limits:
        return f"{name} has a request and no limit", "set it under limits"
    if len(set(numbers)) > 1:
        return f"{name}: request {wanted.get(name)}, limit {limits[name]}", "make both equal"
    if name.startswith("hugepages-") and not {"cpu", "memory"} & {*limits, *wanted}:
        return f"{name} without memory or cpu", "request memory or cpu too"
    return None


Capacity = Callable[[Template, Instance], Decimal]


def _fits(subject: Subject, resource: str, unit: str, capacity: Capacity) -> Iterator[Verdict]:
    """Check each pod that requests `resource` against the instance types that it selects.

    FAIL if none of them can provide it. Instance types that are not in the table are reported by the rule
    `instance-types` only.
    """
    for template in subject.templates:
        need, selected = template.asks(resource), template.selected
        if need <= 0 or not selected.known:
            continue
        offers = {one.name: capacity(template, one) for one in selected.known}
        listed = ", ".join(f"{name} has {_with_unit(offer, unit)}" for name, offer in offers.items())
        place = Place(template.object, f"{template.spec_path} {resource}", _with_unit(need, unit))
        if any(need <= offer for offer in offers.values()):
            yield good(place, f"fits: {listed}")
        elif not selected.unknown:
            most = _with_unit(max(offers.values()), unit)
            summary = f"{resource} {_with_unit(need, unit)} per pod, but {listed}"
            none = not any(offers.values())
            remedy = (
                f"select a type that has {resource}" if none else f"request {most} or less, or select a larger type"
            )
            yield bad(place, summary, remedy)


def _with_unit(number: Decimal, unit: str) -> str:
    if unit == "Mi":
        return f"{plain((number / MIB).quantize(Decimal(1)))}Mi"
    return f"{plain(number * 1000)}m" if unit == "m" else plain(number)


@rule("memory-fits")
def memory_fits(subject: Subject) -> Iterator[Verdict]:

    def capacity(template: Template, one: Instance) -> Decimal:
        driver = template.asks(HUGEPAGES) > 0 or template.efa > 0
        return (Decimal(one.allocatable_memory_mib) - (one.hugepages_2mi_mib if driver else 0)) * MIB

    yield from _fits(subject, "memory", "Mi", capacity)


# The rules whose capacity is a column of the table.
rule("cpu-fits")(lambda subject: _fits(subject, "cpu", "m", lambda _, one: Decimal(one.allocatable_cpu_m) / 1000))
rule("hugepages-fit")(lambda subject: _fits(subject, HUGEPAGES, "Mi", lambda _, one: one.hugepages_2mi_mib * MIB))
rule("efa-fits")(lambda subject: _fits(subject, EFA, "", lambda _, one: Decimal(one.efa)))


@rule("devices-fit")
def devices_fit(subject: Subject) -> Iterator[Verdict]:
    for template in subject.templates:
        for name in template.requests:
            meant = nearest(name, (*ACCELERATORS, *OTHERS, EFA), cutoff=0.92)
            if meant not in (None, name):
                place = Place(template.object, f"{template.spec_path} {name}", plain(template.asks(name)))
                yield bad(place, f"no node has the resource {name}", f"did you mean {meant}?")
        known = template.selected.known if template.training and not template.selected.unknown else []
        if known and all(one.accelerators for one in known) and not _device_names(template):
            place = Place(template.object, template.selected.path, ", ".join(one.name for one in known))
            remedy = f"resources.limits: {known[0].device_resource}"
            yield doubtful(place, "each of these machines has accelerators, and the pod requests none", remedy)
    for resource in (*ACCELERATORS, *OTHERS):
        yield from _fits(subject, resource, "", lambda _, one, name=resource: _devices(one, name))  # type: ignore[misc]


def _devices(one: Instance, resource: str) -> Decimal:
    if one.device_resource == NEURON and resource == NEURON_CORE:
        return Decimal(one.accelerators * one.cores_per_accelerator)
    same = one.device_resource == (NEURON if resource == NEURON_DEVICE else resource)
    return Decimal(one.accelerators if same else 0)


@rule("quota")
def quota(subject: Subject) -> Iterator[Verdict]:
    yield from _within_queues(subject)
    every = [item for item in subject.objects if item["kind"] == "LimitRange"]
    native = [one for one in subject.templates if not one.foreign]
    for item in subject.objects:
        here: dict[str, list[Template]] = {}
        for template in (one for one in native if _namespace(one.item) == _namespace(item)):
            here.setdefault(template.object, []).append(template)
        ranges = [one for other in every if _namespace(other) == _namespace(item) for one in _entries(other)]
        if item["kind"] == "ResourceQuota":
            yield from _within_quota(here, item, ranges)
        for entry in _entries(item) if item["kind"] == "LimitRange" else ():
            check = {"Container": _within_range, "Pod": _within_range_of_pods}.get(str(entry.get("type")))
            if check:
                for template in itertools.chain(*here.values()):
                    yield from check(template, entry, ranges, f"LimitRange {name_of(item)}")


def _within_queues(subject: Subject) -> Iterator[Verdict]:
    """Judge what a job requests by its ClusterQueue of Kueue, if that is in the manifest, too."""
    for job in subject.workloads:
        local = subject.named("LocalQueue", job.item["metadata"].get("namespace") or "").get(job.queue)
        item = subject.named("ClusterQueue", "").get(str(value_at(local, ("spec", "clusterQueue")))) or {}
        most: dict[str, Decimal] = {}
        for group in value_at(item, ("spec", "resourceGroups")) or []:
            for one in itertools.chain(*(flavor["resources"] for flavor in group["flavors"])):
                most[one["name"]] = most.get(one["name"], Decimal(0)) + (amount(one["nominalQuota"]) or 0)
        borrows = any((item.get("spec") or {}).get(key) for key in ("cohort", "cohortName"))
        taken = _taken(subject.templates_of(job.item), []) if most else {}
        for key, need in ((key.removeprefix("requests."), need) for key, need in taken.items() if "requests." in key):
            place = Place(job.title, f"spec: {key} of all pods", _shown(key, need))
            if need > 0 and key not in most:
                summary = f"ClusterQueue {name_of(item)} does not cover {key}: Kueue admits no job that requests it"
                yield bad(place, summary, "add it to coveredResources, with a quota")
            elif need > most.get(key, need) and not borrows:
                has = f"ClusterQueue {name_of(item)} has {_shown(key, most[key])}"
                yield bad(
                    place, f"all pods request {key} {_shown(key, need)}, and {has}", "fewer pods, or a larger quota"
                )


def _entries(item: Object) -> list[Object]:
    """Return the limits of a LimitRange."""
    found = (item.get("spec") or {}).get("limits")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _of(entry: Object, *keys: str) -> dict[str, Decimal]:
    """Return amounts of a limit of a LimitRange; a later key replaces an earlier one."""
    found = [entry.get(key) for key in keys]
    return {name: value for one in found if isinstance(one, dict) for name, value in amounts(one).items()}


def _admitted(container: Object, ranges: Sequence[Object]) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    """Return requests and limits of a container, with the defaults that LimitRanges add.

    Source: k8s.io/kubernetes, pkg/apis/core/v1/defaults.go, SetDefaults_LimitRangeItem.
    """
    limits = amounts((container.get("resources") or {}).get("limits") or {})
    wanted = amounts(requests(container))
    for entry in (one for one in ranges if one.get("type") == "Container"):
        limits = {**_of(entry, "max", "default"), **limits}
        wanted = {**_of(entry, "min", "max", "default", "defaultRequest"), **wanted}
    return wanted, limits


def _namespace(item: Object) -> Any:
    return item["metadata"].get("namespace")


def _within_quota(here: Mapping[str, list[Template]], item: Object, ranges: Sequence[Object]) -> Iterator[Verdict]:
    """Judge what the pods of each object take, and what those take together that start at once."""
    spec = item.get("spec") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return  # it counts some of the pods only
    for template in itertools.chain(*here.values()):
        yield from _without_amount(template, set(spec.get("hard") or {}), ranges, f"ResourceQuota {name_of(item)}")
    jobs = {name: one.workload for name, (one, *_) in here.items() if one.item["kind"] != "CronJob"}
    starting = [name for name, job in jobs.items() if job is None or not (job.suspended or job.queue)]
    taken = {name: _taken(templates, ranges) for name, templates in here.items()}
    for key, most in amounts(spec.get("hard") or {}).items():
        groups = [[name] for name, wanted in taken.items() if key in wanted]
        together = [name for name in starting if taken[name].get(key, most + 1) <= most]
        for names in [*groups, *([together] if len(together) > 1 else [])]:
            need = sum((taken[name][key] for name in names), Decimal(0))
            shown, allowed = (_with_unit(number, "Mi" if "memory" in key else "") for number in (need, most))
            place = Place(names[0], f"spec: {key} of all pods", shown)
            whose = "all pods take" if len(names) == 1 else f"it and {', '.join(names[1:])} together take"
            summary = f"{whose} {key} {shown}, and ResourceQuota {name_of(item)} allows {allowed}"
            yield good(place, summary) if need <= most else bad(place, summary, "fewer pods, or a larger quota")


def _taken(templates: Sequence[Template], ranges: Sequence[Object]) -> dict[str, Decimal]:
    """Return what all pods of some templates count in a quota, with the defaults that LimitRanges add."""
    taken: dict[str, Decimal] = {}
    for template in templates:
        made = dict(template.spec)
        for kind in ("containers", "initContainers"):
            admitted = ((one, _admitted(one, ranges)) for one in template.spec.get(kind) or [])
            made[kind] = [{**one, "resources": {"requests": low, "limits": high}} for one, (low, high) in admitted]
        for key, value in quota_keys(made).items():
            taken[key] = taken.get(key, Decimal(0)) + value * template.replicas
    return taken


def _without_amount(template: Template, keys: set[str], ranges: Sequence[Object], name: str) -> Iterator[Verdict]:
    """Yield the amounts that a quota counts and a container does not state: the API server refuses its pods."""
    whole = template.spec.get("resources") or {}  # of the pod
    for path, container in template.containers():
        for kind, there in zip(("requests", "limits"), _admitted(container, ranges), strict=True):
            for resource in ("cpu", "memory"):
                short = resource if kind == "requests" and resource in keys else f"{kind}.{resource}"
                if short in keys and resource not in there and resource not in (whole.get(kind) or {}):
                    place = Place(template.object, f"{path}.resources.{kind}", f"no {resource}")
                    summary = f"{name} counts {short}, and container {container['name']} does not state it"
                    yield bad(place, summary, f"set {kind}.{resource} in each container, or a default by a LimitRange")


def _within_range(template: Template, entry: Object, ranges: Sequence[Object], name: str) -> Iterator[Verdict]:
    """Judge each container by a limit of a LimitRange, as the API server does after it has added the defaults."""
    most, least = _of(entry, "max"), _of(entry, "min")
    for path, container in template.containers():
        wanted, limits = _admitted(container, ranges)
        own = amounts((container.get("resources") or {}).get("limits") or {})
        given = [("requests", *one) for one in wanted.items() if limits.get(one[0]) != one[1]]
        given += [("limits", *one) for one in limits.items()]
        for kind, resource, value in given:
            top = min(most.get(resource, value), value if resource in own else limits.get(resource, value))
            low = least.get(resource, value)
            place = Place(template.object, f"{path}.resources.{kind}.{resource}", _shown(resource, value))
            if value > top:
                summary = f"{name} allows {resource} {_shown(resource, top)} in a container"
                yield bad(place, summary, "request less, set a limit, or raise the maximum")
            elif value < low:
                summary = f"{name} wants {resource} {_shown(resource, low)} or more in a container"
                yield bad(place, summary, "request more, or lower the minimum")


def _within_range_of_pods(template: Template, entry: Object, ranges: Sequence[Object], name: str) -> Iterator[Verdict]:
    limits = [_admitted(one, ranges)[1] for _, one in template.containers(init=False)]
    for resource, most in _of(entry, "max").items():
        place = Place(template.object, f"{template.spec_path} {resource} of all containers")
        value = sum((one[resource] for one in limits if resource in one), Decimal(0))
        if value > most or not all(resource in one for one in limits):
            said = _shown(resource, value) if value > most else "a container without a limit"
            summary = f"{name} allows {resource} {_shown(resource, most)} in a pod, not {said}"
            yield bad(place, summary, "a lower limit in each container, or a higher maximum")


def _shown(resource: str, value: Decimal) -> str:
    return _with_unit(value, "Mi" if resource == "memory" else "")


@rule("efa-even", each="jobs")
def efa_even(subject: Subject, job: Job) -> Iterator[Verdict]:
    counts = {template.role: template.efa for template in job.templates if template.training}
    if len(counts) < 2 or not any(counts.values()):
        return
    listed = ", ".join(f"{role} {plain(count)}" for role, count in counts.items())
    place = Place(job.object, "spec", listed)
    if len(set(counts.values())) == 1:
        yield good(place, "all pods have the same number of interfaces")
    else:
        yield bad(place, f"EFA interfaces differ between the job's pods: {listed}", "request the same number in each")


@rule("efa-all-or-none", each="training")
def efa_all_or_none(subject: Subject, template: Template) -> Iterator[Verdict]:
    count, selected = template.efa, template.selected
    name, devices = template.accelerators()
    if template.nodes < 2 or not name or selected.unknown or count != count.to_integral_value():
        return
    whole = [one for one in selected.known if one.efa > 0 and _devices(one, name) == devices]
    if not whole:
        return
    place = Place(template.object, f"{template.spec_path} {EFA}", plain(count))
    if count == 0 or any(count >= one.efa for one in whole):
        yield good(place, "all interfaces of the node, or none")
    else:
        listed = ", ".join(f"{one.name} has {one.efa}" for one in whole)
        summary = f"{plain(count)} EFA interfaces of a node that the pod uses alone: {listed}"
        yield bad(place, summary, "request all of them")


@rule("efa-huge-pages", each="training")
def efa_huge_pages(subject: Subject, template: Template) -> Iterator[Verdict]:
    if template.efa <= 0:
        return
    pages = template.asks(HUGEPAGES)
    place = Place(template.object, f"{template.spec_path} {HUGEPAGES}", plain(pages))
    if pages > 0:
        yield good(place, "the pod has huge pages for EFA")
    else:
        yield bad(place, "EFA interfaces without huge pages", f"{HUGEPAGES}: 5120Mi")


@rule("backend", each="jobs")
def backend(subject: Subject, job: Job) -> Iterator[Verdict]:
    roles = {role.name for role in job.workload.roles if role.trains}
    ranks = [one for one in job.templates if one.role in roles]
    devices = {one.role: _device_names(one) for one in ranks}
    named = {(option(words(one.trainer()[1]), BACKEND) or ("", ""))[1].lower() for one in ranks} - {""}
    named = named or _initialised(subject, job)
    listed = ", ".join(f"{role or 'pods'} {'+'.join(sorted(names)) or 'none'}" for role, names in devices.items())
    place = Place(job.object, "spec", listed)
    if len({frozenset(names) for names in devices.values()}) > 1:
        if named == {"nccl"}:
            yield bad(place, f"the backend nccl, and devices differ: {listed}", "the same devices in each")
        elif not named & {"gloo", "mpi"}:
            yield doubtful(place, f"devices differ between the pods: {listed}", "the same devices in each")
    elif named == {"nccl"} and not any(devices.values()):
        yield bad(place, "the backend nccl, and no pod requests a device", "request GPUs, or use gloo")
    elif named or any(devices.values()):
        yield good(place, "the devices fit the backend")


BACKEND: list[str] = load("preflight/words.yaml")["backend"]
INITIALISED = re.compile(r"init_process_group\(\s{0,40}(?:backend\s{0,4}=\s{0,4})?[\"'](\w{1,20})[\"']\s{0,40}[,)]")


def _initialised(subject: Subject, job: Job) -> set[str]:
    """Return the backends that the scripts of a job's first pods name in plain words."""
    firsts = [pod for pod in job.pods if pod.index == 0]
    files: list[str] = []
    for pod in firsts:
        with contextlib.suppress(UserError):  # the rule `types` reports a Secret that is not base64
            files += texts(pod, pod.container, subject.manifests).values()
    return {name.lower() for text in files for name in INITIALISED.findall(text)}


def _device_names(template: Template) -> set[str]:
    """Return the names of the devices that a pod requests; network interfaces and huge pages are none."""
    names = {name for name, count in template.requests.items() if count > 0 and extended(name)}
    names = {name for name in names if not name.startswith(("hugepages-", EFA)) and "rdma" not in name}
    return names | ({"resource claims"} if template.spec.get("resourceClaims") else set())


@rule("processes", each="jobs")
def processes(subject: Subject, job: Job) -> Iterator[Verdict]:
    for template in job.templates:
        node = subject.node_of(template)
        devices = _devices_for_processes(template)
        if node is None or node.processes is None or devices is None:
            continue
        if node.launch.torchrun is None and (template.nodes < 2 or devices < 2):
            continue
        place, remedy = _where_processes(job, template, node, devices)
        if node.processes == devices:
            yield good(place, f"one process for each of {plain(devices)}")
        else:
            started = output.count(node.processes, "process", "processes")
            summary = f"{started} per pod for {plain(devices)} accelerators"
            verdict = bad if node.processes > devices else doubtful
            yield verdict(place, summary, remedy)


def _where_processes(job: Job, template: Template, node: Node, devices: Decimal) -> tuple[Place, str]:
    """Return the place that decides the number of processes, and the remedy. An option wins over the field."""
    launcher, given = ("torchrun", []) if (found := node.launch.torchrun) is None else (found.launcher, found.words)
    if found is None:
        return Place(job.object, f"{template.trainer()[0]}.command", node.launch.launcher), "start it with torchrun"
    name = PROCESSES.get(launcher, PROCESSES["torchrun"])
    asked = option(given, [name])
    if asked is None and job.workload.kind in ("PyTorchJob", "HyperPodPyTorchJob"):
        return Place(job.object, "spec.nprocPerNode", node.processes), f'nprocPerNode: "{plain(devices)}"'
    pods = node.nodes[1] if launcher == "accelerate" else 1  # its option counts those of all pods
    value = node.processes if asked is None else f"--{name}={asked[1]}"
    return Place(job.object, f"{template.trainer()[0]}.command", value), f"--{name}={plain(devices * pods)}"


def _devices_for_processes(template: Template) -> Decimal | None:
    """Return how many processes the pod's accelerators serve, or None if that is unknown."""
    name, count = template.accelerators()
    if not name:
        others = [one for one in template.requests if one.startswith("nvidia.com/mig-") or one in SINGLE]
        return sum(map(template.asks, others), Decimal(0)) or None
    if name in (NVIDIA, NEURON_CORE):
        return count
    cores = {one.cores_per_accelerator for one in template.selected.known}
    return count * cores.pop() if len(cores) == 1 and not template.selected.unknown else None


@rule("shm", each="training")
def shm(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, container = template.trainer()
    mounts = {mount["mountPath"].rstrip("/"): mount["name"] for mount in container.get("volumeMounts") or []}
    volume = template.volumes().get(mounts.get("/dev/shm", ""))
    if volume is None:
        if "/dev/shm" not in mounts and template.accelerators()[1] >= 2:
            place = Place(template.object, f"{path}.volumeMounts", "nothing at /dev/shm")
            yield bad(place, "several accelerators and no shared memory", "emptyDir: {medium: Memory}")
        return
    empty = volume.get("emptyDir")
    if empty is None:
        return
    place = Place(template.object, f"{template.spec_path}.volumes[{volume['name']}].emptyDir", empty)
    limit = amount((container.get("resources") or {}).get("limits", {}).get("memory", ""))
    size = amount(empty.get("sizeLimit", ""))
    if empty.get("medium") != "Memory":
        yield bad(place, "/dev/shm is on a disk", "medium: Memory")
    elif limit is not None and size is not None and size > limit:
        memory = requests(container).get("memory")
        yield bad(place, f"sizeLimit is above the container's memory ({memory})", "lower sizeLimit")
    else:
        yield good(place, "shared memory within the memory limit")
