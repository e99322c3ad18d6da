"""The accelerators of a job's pods: memory, utilization and errors, from nvidia-smi or neuron-monitor."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.core import UserError, output
from tools.job import ranks
from tools.job.diagnosis import node_health
from tools.job.diagnosis.resources import accelerators
from tools.job.snapshot import JobPod, Snapshot
from tools.job.snapshot.pod_exec import in_pod
from tools.kube import Kubectl, Object
from tools.kube.kubectl import each
from training import remote

MIB = 2**20
MOST_DEVICES = 1024  # of a pod, and cores of a device
# `nvidia-smi --help-query-gpu` explains them. Old drivers and cards do not have ERRORS.
BASIC = (
    *("index", "name", "uuid", "memory.total", "memory.used", "utilization.gpu"),
    *("temperature.gpu", "power.draw"),
)
ERRORS = (
    *("ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total"),
    *("remapped_rows.pending", "remapped_rows.failure", "mig.mode.current"),
)
PROGRAM = Path(remote.__file__).with_name("ask_devices.sh")


@dataclass(frozen=True)
class Accelerator:
    """One accelerator: memory in MiB, utilization in per cent, degrees Celsius, watts; None if unknown.

    `errors` counts uncorrected errors. `problems` are its faults in words.
    """

    pod: str
    node: str | None
    index: int
    name: str
    ranks: list[int] = field(default_factory=list)
    used_mib: float | None = None
    total_mib: float | None = None
    use: float | None = None
    celsius: float | None = None
    watts: float | None = None
    errors: int | None = None
    corrected: int | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The accelerators of some pods, faults that are not of a single one, and what could not be read."""

    devices: list[Accelerator] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """All faults."""
        own = [f"{one.pod} device {one.index}: {text}" for one in self.devices for text in one.problems]
        return [*own, *self.problems]


def report(kubectl: Kubectl, seen: Snapshot) -> Report:
    """Ask each running pod; UserError if no pod of the job requests an accelerator."""
    pods = [pod for pod in seen.pods if accelerators(pod.spec)]
    if not pods:
        raise UserError(f"no pod of {seen.name} requests an accelerator", code=3)
    held = ranks.by_pod(seen)
    reports = each(lambda pod: _of_pod(kubectl, pod, held[pod.name]), pods)
    of_nodes = [
        f"{pod.short} on {pod.node}: {problem.text}"
        for pod in pods
        for problem in node_health.problems(seen, pod.node)
        if problem.kind == "device"
    ]
    return Report(
        [device for one in reports for device in one.devices],
        [*(text for one in reports for text in one.problems), *of_nodes],
        [text for one in reports for text in one.unseen],
    )


def _of_pod(kubectl: Kubectl, pod: JobPod, held: list[int]) -> Report:
    if not pod.running:
        return Report(unseen=[f"{pod.short}: its container is not running"])
    words = ("sh", "-c", PROGRAM.read_text(encoding="utf-8"), "sh", ",".join(BASIC), ",".join(ERRORS))
    try:
        kind, _, answer = in_pod(kubectl, pod, *words).partition("\n")
    except UserError as problem:
        return Report(unseen=[f"{pod.short}: {problem.message}"])
    if kind == "none":
        return Report(unseen=[f"{pod.short}: neither nvidia-smi nor neuron-monitor is in its image"])
    complaints: list[str] = []
    if kind == "nvidia":  # between the rows it may print an error about a lost card
        lines = [line for line in answer.splitlines() if line.strip()]
        complaints = [line for line in lines if not _is_row(line)]
        answer = "\n".join(line for line in lines if _is_row(line)) or answer
    try:
        found = list(nvidia(answer, pod) if kind == "nvidia" else neuron(answer, pod))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return Report(problems=[f"{pod.short}: {output.short(answer, 200) or 'the answer is empty'}"])
    problems = [f"{pod.short}: {output.short(line, 200)}" for line in complaints]
    wanted = accelerators(pod.spec)
    sliced = kind == "nvidia" and any(line.endswith("Enabled") for line in answer.splitlines())
    if len(found) < wanted and not sliced:
        problems.append(f"{pod.short} has {len(found)} devices of {wanted}")
    return Report(_with_ranks(found, held), problems)


def _is_row(line: str) -> bool:
    return line.partition(",")[0].strip().isdigit()


def _with_ranks(devices: list[Accelerator], held: list[int]) -> list[Accelerator]:
    """Assign the pod's ranks to its devices in order, the same number to each, as LOCAL_RANK does."""
    each = len(held) // len(devices) if devices else 0
    if each * len(devices) != len(held):
        return devices
    return [replace(device, ranks=held[place * each : (place + 1) * each]) for place, device in enumerate(devices)]


def nvidia(answer: str, pod: JobPod) -> Iterator[Accelerator]:
    """Yield the devices in nvidia-smi's comma-separated answer; ValueError if it is something else."""
    for row in csv.reader(answer.splitlines(), skipinitialspace=True):
        value = dict(zip((*BASIC, *ERRORS), row, strict=False))
        errors = _count(value.get(ERRORS[0]))
        problems = [f"{name}: {text}" for name, text in value.items() if _is_broken(name, text)]
        problems += [f"{errors} uncorrected ECC errors"] if errors else []
        problems += ["a memory row waits to be remapped: reset it"] if _yes(value.get(ERRORS[2])) else []
        problems += ["a memory row could not be remapped"] if _yes(value.get(ERRORS[3])) else []
        total, used, use, celsius, watts = (_number(value[name]) for name in BASIC[3:])
        yield Accelerator(
            pod.short, pod.node, int(value["index"]), value["name"], used_mib=used, total_mib=total, use=use,
            celsius=celsius, watts=watts, errors=errors, corrected=_count(value.get(ERRORS[1])),
            problems=problems,
        )  # fmt: skip


# A value that this card or driver does not have, or that this user may not read. Any other text instead of a
# number (`ERR!`, `[Unknown Error]`, `[GPU requires reset]`) is a fault.
MISSING = ("n/a", "not supported", "insufficient permissions", "not found", "")


def _is_broken(name: str, text: str) -> bool:
    numbers = name in (*BASIC[3:], *ERRORS[:2])
    return numbers and text.strip().strip("[]").lower() not in MISSING and _number(text) is None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _count(text: str | None) -> int | None:
    value = _number(text or "")
    return None if value is None else int(value)


def _yes(text: str | None) -> bool:
    return (text or "").strip().lower() in ("yes", "1")


def neuron(answer: str, pod: JobPod) -> Iterator[Accelerator]:
    """Yield the devices in a report of neuron-monitor; ValueError if it is something else.

    Source: the user guide of neuron-monitor, Neuron 2.29.
    """
    report = json.loads(answer)
    hardware = report.get("neuron_hardware_info") or {}
    cores = int(hardware.get("neuroncore_per_device_count") or 1)
    devices = range(int(hardware.get("neuron_device_count") or 0))
    if max(cores, len(devices)) > MOST_DEVICES:
        raise ValueError(f"{len(devices)} devices with {cores} cores")
    use, memory = _cores(report)
    total = hardware.get("neuron_device_memory_size")
    counters = (report["system_data"].get("neuron_hw_counters") or {}).get("neuron_devices") or []
    known = {int(one["neuron_device_index"]): one for one in counters}
    for index in sorted(known) or devices:
        own = range(index * cores, (index + 1) * cores)
        count = known.get(index, {})
        errors = _sum(count, "mem_ecc_uncorrected", "sram_ecc_uncorrected")
        yield Accelerator(
            pod.short, pod.node, index, str(hardware.get("neuron_device_type") or "Neuron device"),
            used_mib=sum(memory.get(core, 0.0) for core in own) / MIB if memory is not None else None,
            total_mib=total / MIB if total else None,
            use=sum(use.get(core, 0.0) for core in own) / cores if use is not None else None,
            errors=errors, corrected=_sum(count, "mem_ecc_corrected", "sram_ecc_corrected"),
            problems=[f"{errors} uncorrected ECC errors"] if errors else [],
        )  # fmt: skip


def _cores(report: Object) -> tuple[dict[int, float] | None, dict[int, float] | None]:
    """Return utilization (per cent) and memory (bytes) by core, over all processes; None after an error."""
    use: dict[int, float] = {}
    memory: dict[int, float] = {}
    errors: set[str] = set()
    for process in report.get("neuron_runtime_data") or []:
        found = process.get("report") or {}
        errors |= {name for name, one in found.items() if isinstance(one, dict) and one.get("error")}
        for core, one in ((found.get("neuroncore_counters") or {}).get("neuroncores_in_use") or {}).items():
            use[int(core)] = max(use.get(int(core), 0.0), float(one["neuroncore_utilization"]))
        used = (found.get("memory_used") or {}).get("neuron_runtime_used_bytes") or {}
        by_core = (used.get("usage_breakdown") or {}).get("neuroncore_memory_usage") or {}
        for core, parts in by_core.items():
            memory[int(core)] = memory.get(int(core), 0.0) + sum(parts.values())
    return None if "neuroncore_counters" in errors else use, None if "memory_used" in errors else memory


def _sum(values: Object, *names: str) -> int | None:
    return sum(int(values.get(name) or 0) for name in names) if values else None


def rows(found: Report) -> list[tuple[str, ...]]:
    """Return the devices as the rows of a table."""
    head = ("ranks", "pod", "dev", "name", "memory GiB", "use", "temp", "power", "errors", "")
    return [head, *map(_row, found.devices)]


def _row(one: Accelerator) -> tuple[str, ...]:
    used = "-" if one.used_mib is None else f"{one.used_mib / 1024:.1f}"
    total = "-" if one.total_mib is None else f"{one.total_mib / 1024:.1f}"
    return (
        ranks.spans(one.ranks), one.pod, str(one.index), one.name, f"{used} of {total}",
        _with_unit(one.use, "%"), _with_unit(one.celsius, " C"), _with_unit(one.watts, " W"),
        "-" if one.errors is None else str(one.errors), "; ".join(one.problems),
    )  # fmt: skip


def _with_unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"
