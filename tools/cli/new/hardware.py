"""Add a hardware: an EC2 instance type, or a node of your own. Cells then run on it."""

from typing import Any

import click

from tools.cells import memory
from tools.core import UserError, output
from tools.kube.kubectl import Kubectl
from tools.new import component, hardware


def command(
    name: str,
    instance: str | None,
    node: str | None,
    context: str | None,
    labels: tuple[str, ...],
    cpus: str | None,
    size: str | None,
    devices: str | None,
    device: str | None,
    device_memory: str | None,
    efa: int | None,
    hugepages: str | None,
    models: tuple[str, ...],
) -> None:
    amounts = {"cpus": cpus, "memory": size, "device": device, "device_memory": device_memory}
    amounts |= {"hugepages": hugepages}
    said: dict[str, Any] = {key: value for key, value in {**amounts, "efa": efa}.items() if value is not None}
    said |= {"labels": dict(map(_pair, labels))} if labels else {}
    if devices is not None:
        resource, count = _pair(devices)
        said["devices"] = {resource: int(count) if count.isdigit() else count}
    if instance is not None and (node is not None or said):
        raise click.UsageError("--instance stands alone: the table of instance types has all the rest")
    if instance is None and node is None and not {"cpus", "memory", "labels"} <= set(said):
        raise click.UsageError("give --instance, or --node, or at least --cpus, --memory and --select")
    read = hardware.of_node(Kubectl(context), node) if node is not None else {}
    entry = {"instance": instance} if instance is not None else {"node": {**read, **said}}
    root = component.project()
    cells = hardware.write(root, name, entry, models)
    output.line(f"written: overlays/matrix.yaml and overlays/hardware/{name}")
    for cell in cells:
        need = memory.of_cell(root, cell).summary()
        output.line(f"  cell overlays/{cell.name}: {memory.where(cell)}, {need}")
    if not cells:
        output.line("  it has no cell yet: add one to overlays/matrix.yaml, then run yard matrix sync")


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key or not value:
        raise UserError(f"{text!r} is not KEY=VALUE", "nvidia.com/gpu=8, example.com/pool=a100")
    return key, value
