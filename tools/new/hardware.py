"""Adds a hardware to overlays/matrix.yaml: an instance type of the fact table, or a node of your own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.cells import matrix, memory
from tools.cells.hardware import DEVICES, machine
from tools.cells.matrix_file import Cell, text_of
from tools.core import UserError, repo
from tools.core.tables import load
from tools.facts.instances import EFA
from tools.kube import Kubectl
from tools.new import component

# Labels of NVIDIA's GPU feature discovery. The product is what tells such nodes from others.
PRODUCT, GPU_MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
REPLICAS = "nvidia.com/gpu.replicas"  # pods that share a card
OTHERS: list[str] = load("preflight/words.yaml")["other accelerators"]
PARTS = ("nvidia.com/mig-", "nvidia.com/gpu.")
HUGEPAGES = "hugepages-2Mi"


def of_node(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return what a node of the cluster shows of itself, with the keys of the matrix's `node`.

    The card's name, its memory and the label that finds such nodes come from NVIDIA's GPU feature discovery.
    Without it they are missing. Raises UserError.
    """
    node = kubectl.json("get", "nodes", names=[name])
    found = (node.get("status") or {}).get("allocatable") or {}
    labels = (node.get("metadata") or {}).get("labels") or {}
    shares = str(labels.get(REPLICAS, "1"))
    if shares.isdecimal() and int(shares) > 1:
        raise UserError(
            f"the node {name} gives each GPU to {shares} pods ({REPLICAS}), and a cell takes whole cards",
            "choose a node without time slicing, or describe this one by --cpus, --memory, --devices and --select",
        )
    # Accelerators and parts of them, also those that no cell can take.
    devices = [one for one in found if one in (*DEVICES, *OTHERS) or one.startswith(PARTS)]
    known = sorted(devices, key=[*DEVICES].__contains__, reverse=True)
    resource = next((one for one in known if str(found[one]) != "0"), None)
    entry: dict[str, Any] = {"cpus": str(found.get("cpu", "")), "memory": str(found.get("memory", ""))}
    if resource is not None:
        entry["devices"] = {resource: int(found[resource])}
    if PRODUCT in labels:
        entry |= {"labels": {PRODUCT: labels[PRODUCT]}, "device": labels[PRODUCT]}
    if str(labels.get(GPU_MEMORY, "")).isdigit():
        entry["device_memory"] = f"{labels[GPU_MEMORY]}Mi"
    if found.get(EFA, "0") != "0":
        entry["efa"] = int(found[EFA])
    if found.get(HUGEPAGES, "0") != "0":
        entry["hugepages"] = str(found[HUGEPAGES])
    return entry


def write(root: Path, name: str, entry: Mapping[str, Any], models: tuple[str, ...]) -> list[Cell]:
    """Add the hardware and a cell for each of `models`, on the fewest nodes whose memory fits.

    Return the cells. Raises UserError, after which all is as before.
    """
    component.check_name(name, "hardware")
    machine(name, entry)  # an error in it has no line in the matrix yet
    path = root / matrix.MATRIX
    before = text_of(path, root)
    known = matrix.read(root)
    if name in known.machines:
        raise UserError(f"the hardware {name} exists", "choose another name, or change overlays/matrix.yaml")
    for model in models:
        if model not in known.models:
            hint = repo.did_you_mean(model, known.models) or f"known: {', '.join(known.models)}"
            raise UserError(f"no such model: {model}", hint)
    try:
        repo.write(path, _with_hardware(before, name, entry))
        matrix.sync(root)
        for model in models:
            cell = memory.fitting(root, matrix.read(root), name, model)
            component.add_cell(path, name, model, component.entry_of(cell, matrix.read(root)), root)
        matrix.sync(root)
        return [cell for cell in matrix.load(root) if cell.hardware == name]
    except BaseException:
        repo.write(path, before)
        matrix.sync(root)
        raise


def _with_hardware(text: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the matrix with one more line at the end of its section `hardware`."""
    flow = yaml.safe_dump(dict(entry), default_flow_style=True, sort_keys=False, width=100_000)
    line = f"  {name}: {flow.strip()}"
    lines = text.split("\n")
    there = component.line_of(lines, "hardware:")
    if there is None:
        return "\n".join(["hardware:", line, "", *lines])
    start = there + 1
    end = next((at for at in range(start, len(lines)) if lines[at][:1] not in (" ", "#")), len(lines))
    return "\n".join([*lines[:end], line, *lines[end:]])
