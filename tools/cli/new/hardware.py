"""Add a hardware: an EC2 instance type, or a node of your own. Cells then run on it.

With --instance the machine comes from the table of instance types. With --node it is read from a node of the
cluster: what the kubelet leaves to pods, and the card's name and memory if NVIDIA's GPU feature discovery
labels the node. The other options describe a node, or replace what --node has read. A pod takes a node whole.
After an error nothing has been written.

\b
Examples:
  yard new hardware p5-small --instance p5.4xlarge --model llama-3-1-8b-lora
  yard new hardware lab --node gpu-17 --select example.com/pool=a100
  yard new hardware lab --cpus 62 --memory 500Gi --devices nvidia.com/gpu=4 --device A100 \\
    --device-memory 80Gi --select example.com/pool=a100

\b
Exit codes: 0 written, 2 bad input, 3 the cluster does not answer.
"""

from typing import Any

import click

from tools.cells import memory
from tools.core import output
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl
from tools.new import component, hardware


@click.command(help=__doc__, short_help="add a hardware: an instance type, or a node of your own")
@click.argument("name")
@click.option("--instance", metavar="TYPE", help="The machine: an EC2 instance type.")
@click.option("--node", metavar="NODE", help="Read the machine from this node.")
@click.option("--context", metavar="NAME", help="The cluster of --node. Default: kubectl's current context.")
@click.option("--select", "labels", multiple=True, metavar="KEY=VALUE", help="A label of such nodes.")
@click.option("--cpus", metavar="N", help="Allocatable processors.")
@click.option("--memory", "size", metavar="SIZE", help="Allocatable memory without huge pages: 500Gi.")
@click.option("--devices", metavar="RESOURCE=N", help="Accelerators: nvidia.com/gpu=8.")
@click.option("--device", metavar="CARD", help="The accelerator's name, such as A100.")
@click.option("--device-memory", metavar="SIZE", help="The memory of one accelerator, such as 80Gi.")
@click.option("--efa", type=click.IntRange(0, 64), metavar="N", help="EFA interfaces.")
@click.option("--hugepages", metavar="SIZE", help="Allocatable memory in pages of 2 MiB.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Also add a cell. Repeatable.")
def command(
    name: str,
    instance: str | None,
    node: str | None,
    context: str | None,
    labels: tuple[str, ...],
    size: str | None,
    devices: str | None,
    models: tuple[str, ...],
    **amounts: Any,
) -> None:
    said = {key: value for key, value in {**amounts, "memory": size}.items() if value is not None}
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
