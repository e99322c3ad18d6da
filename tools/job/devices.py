"""The accelerators of a job's pods: memory, use and errors, as nvidia-smi or neuron-monitor tell."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

from tools.core.errors import UserError
from tools.job import ranks as runners
from tools.job.diagnosis import node_health
from tools.job.diagnosis.resources import accelerators
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.pod_exec import in_pod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object

AT_ONCE = 6
MIB = 2**20
# `nvidia-smi --help-query-gpu` explains them; the last ones are not known to old drivers and cards.
BASIC = (
    *("index", "name", "uuid", "memory.total", "memory.used", "utilization.gpu"),
    *("temperature.gpu", "power.draw"),
)
ERRORS = (
    *("ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total"),
    *("remapped_rows.pending", "remapped_rows.failure", "mig.mode.current"),
)
# Prints which program answers, then its answer, which may be a complaint. neuron-monitor never ends:
# its first report is taken.
SCRIPT = """
ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits; }
if command -v nvidia-smi >/dev/null; then
  echo nvidia
  if answer=$(ask "$1,$2"); then echo "$answer"; else ask "$1" 2>&1 || :; fi
elif command -v neuron-monitor >/dev/null; then
  echo neuron
  timeout 20 neuron-monitor | head -n 1
else
  echo none
fi
"""


@dataclass(frozen=True)
class Device:
    """One accelerator: memory in MiB, use in per cent, degrees Celsius, watts; None where it is not told.

    `errors` are those that were not corrected, `problems` what is wrong with it in words.
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

    def as_dict(self) -> Object:
        """Return the device for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Found:
    """The devices of all pods, what is wrong beyond a single one, and what could not be seen."""

    devices: list[Device]
    problems: list[str]
    unseen: list[str]

    @property
    def wrong(self) -> list[str]:
        """Return everything that is wrong."""
        own = [f"{one.pod} device {one.index}: {text}" for one in self.devices for text in one.problems]
        return [*own, *self.problems]


def look(kubectl: Kubectl, seen: Snapshot) -> Found:
    """Ask every pod that runs; UserError where no pod of the job asks for an accelerator."""
    wanting = [pod for pod in seen.pods if accelerators(pod.spec)]
    if not wanting:
        raise UserError(f"no pod of {seen.name} asks for an accelerator: there is nothing to look at", code=3)
    held: dict[str, list[int]] = {}
    for rank, name in runners.ranks(seen).items():
        held.setdefault(name, []).append(rank)

    def ask(pod: JobPod) -> tuple[list[Device], list[str], list[str]]:
        if not pod.running:
            return [], [], [f"{pod.short}: its container does not run"]
        return _of_pod(kubectl, pod, sorted(held.get(pod.name, [])))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, wanting))
    return Found(
        [device for devices, _, _ in answers for device in devices],
        [text for _, texts, _ in answers for text in texts]
        + [f"{pod.short} on {pod.node}: {text}" for pod in wanting for text in _ill(seen, pod)],
        [text for _, _, texts in answers for text in texts],
    )


def _ill(seen: Snapshot, pod: JobPod) -> list[str]:
    """Return what is said of a pod's node when its accelerators are not well."""
    return [word.text for word in node_health.words(seen, pod.node) if word.kind == "device"]


def _of_pod(kubectl: Kubectl, pod: JobPod, ranks: list[int]) -> tuple[list[Device], list[str], list[str]]:
    words = ("sh", "-c", SCRIPT, "sh", ",".join(BASIC), ",".join(ERRORS))
    try:
        kind, _, answer = in_pod(kubectl, pod, *words).partition("\n")
    except UserError as problem:
        return [], [], [f"{pod.short}: {problem.message}"]
    if kind == "none":
        return [], [], [f"{pod.short}: neither nvidia-smi nor neuron-monitor is in its image"]
    said: list[str] = []
    if kind == "nvidia":  # beside the rows of the others it may complain of a card that is lost
        lines = [line for line in answer.splitlines() if line.strip()]
        said = [line for line in lines if not _is_row(line)]
        answer = "\n".join(line for line in lines if _is_row(line)) or answer
    try:
        found = list(nvidia(answer, pod) if kind == "nvidia" else neuron(answer, pod))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return [], [f"{pod.short}: {' '.join(answer.split())[:200] or 'it answers nothing'}"], []
    wanted = accelerators(pod.spec)
    sliced = kind == "nvidia" and any(line.endswith("Enabled") for line in answer.splitlines())
    few = [f"{pod.short} has {len(found)} devices of {wanted}"] if len(found) < wanted and not sliced else []
    told = [f"{pod.short}: {' '.join(line.split())[:200]}" for line in said]
    return list(_with_ranks(found, ranks)), [*told, *few], []


def _is_row(line: str) -> bool:
    return line.partition(",")[0].strip().isdigit()


def _with_ranks(devices: list[Device], ranks: list[int]) -> Iterator[Device]:
    """Give each device its ranks: as many for each, in order, which is how LOCAL_RANK chooses."""
    each = len(ranks) // len(devices) if devices else 0
    exact = devices and each * len(devices) == len(ranks)
    for place, device in enumerate(devices):
        own = ranks[place * each : (place + 1) * each] if exact else []
        yield Device(**{**asdict(device), "ranks": own})


def nvidia(answer: str, pod: JobPod) -> Iterator[Device]:
    """Yield the devices in nvidia-smi's comma-separated answer; ValueError where it is none."""
    for row in csv.reader(answer.splitlines(), skipinitialspace=True):
        value = dict(zip((*BASIC, *ERRORS), row, strict=False))
        errors = _count(value.get(ERRORS[0]))
        problems = [f"{name}: {text}" for name, text in value.items() if _is_broken(name, text)]
        problems += [f"{errors} ECC errors that were not corrected"] if errors else []
        problems += ["a memory row waits to be remapped: reset it"] if _yes(value.get(ERRORS[2])) else []
        problems += ["a memory row could not be remapped"] if _yes(value.get(ERRORS[3])) else []
        yield Device(
            pod.short, pod.node, int(value["index"]), value["name"],
            used_mib=_number(value["memory.used"]), total_mib=_number(value["memory.total"]),
            use=_number(value["utilization.gpu"]), celsius=_number(value["temperature.gpu"]),
            watts=_number(value["power.draw"]), errors=errors, corrected=_count(value.get(ERRORS[1])),
            problems=problems,
        )  # fmt: skip


# What stands for a value that this card or driver has not, or that this user may not see. Any other text in
# a number's place (`ERR!`, `[Unknown Error]`, `[GPU requires reset]`) is a complaint.
NOT_TOLD = (
    "[n/a]",
    "n/a",
    "[not supported]",
    "not supported",
    "[insufficient permissions]",
    "[not found]",
    "",
)


def _is_broken(name: str, text: str) -> bool:
    numbers = name in (*BASIC[3:], *ERRORS[:2])
    return numbers and text.strip().lower() not in NOT_TOLD and _number(text) is None


def _number(text: str) -> float | None:
    """Return a number, None for `[N/A]` and `[Not Supported]`."""
    try:
        return float(text)
    except ValueError:
        return None


def _count(text: str | None) -> int | None:
    value = _number(text or "")
    return None if value is None else int(value)


def _yes(text: str | None) -> bool:
    return (text or "").strip().lower() in ("yes", "1")


def neuron(answer: str, pod: JobPod) -> Iterator[Device]:
    """Yield the devices in a report of neuron-monitor (its user guide, Neuron 2.29); ValueError for none."""
    report = json.loads(answer)
    hardware = report.get("neuron_hardware_info") or {}
    cores = int(hardware.get("neuroncore_per_device_count") or 1)
    use, memory = _cores(report)
    total = hardware.get("neuron_device_memory_size")
    counters = (report["system_data"].get("neuron_hw_counters") or {}).get("neuron_devices") or []
    known = {int(one["neuron_device_index"]): one for one in counters}
    for index in sorted(known) or range(int(hardware.get("neuron_device_count") or 0)):
        own = range(index * cores, (index + 1) * cores)
        count = known.get(index, {})
        errors = _sum(count, "mem_ecc_uncorrected", "sram_ecc_uncorrected")
        yield Device(
            pod.short, pod.node, index, str(hardware.get("neuron_device_type") or "Neuron device"),
            used_mib=sum(memory.get(core, 0.0) for core in own) / MIB if memory is not None else None,
            total_mib=total / MIB if total else None,
            use=sum(use.get(core, 0.0) for core in own) / cores if use is not None else None,
            errors=errors, corrected=_sum(count, "mem_ecc_corrected", "sram_ecc_corrected"),
            problems=[f"{errors} ECC errors that were not corrected"] if errors else [],
        )  # fmt: skip


def _cores(report: Object) -> tuple[dict[int, float] | None, dict[int, float] | None]:
    """Return use (per cent) and memory (bytes) by core, over all processes; None where an error says less."""
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


def lines(found: Found) -> Iterator[str]:
    """Yield the devices as an aligned table."""
    head = ("ranks", "pod", "dev", "name", "memory GiB", "use", "temp", "power", "errors", "")
    rows = [head, *(_row(one) for one in found.devices)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(one: Device) -> tuple[str, ...]:
    from tools.job.status import spans

    used = "-" if one.used_mib is None else f"{one.used_mib / 1024:.1f}"
    total = "-" if one.total_mib is None else f"{one.total_mib / 1024:.1f}"
    return (
        spans(one.ranks), one.pod, str(one.index), one.name, f"{used} of {total}",
        _shown(one.use, "%"), _shown(one.celsius, " C"), _shown(one.watts, " W"),
        "-" if one.errors is None else str(one.errors), "; ".join(one.problems),
    )  # fmt: skip


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"
