"""The cells with their machines, memory and price."""

from __future__ import annotations

from pathlib import Path

from docs.generated.markdown import head
from tools.cells import matrix, memory


def table(root: Path) -> str:
    """Return the models that each hardware has."""
    rows: dict[str, list[str]] = {}
    machines: dict[str, list[str]] = {}
    for cell in matrix.load(root):
        rows.setdefault(cell.hardware, []).append(cell.model)
        device = cell.instance and f"{cell.instance.accelerator}"
        machines.setdefault(cell.hardware, []).append(device or "any CPU")
    lines = ["| hardware | devices | models |", "|---|---|---|"]
    for name, models in rows.items():
        lines.append(f"| {name} | {', '.join(dict.fromkeys(machines[name]))} | {', '.join(models)} |")
    return "\n".join(lines) + "\n"


def page(root: Path) -> str:
    """Return every cell with its machines, the memory that it needs, and what an hour costs."""
    return head("cells") + "\n".join(_cell(root, cell) for cell in matrix.load(root)) + "\n"


def _cell(root: Path, cell: matrix.Cell) -> str:
    machine = cell.instance
    columns = [cell.name, memory.where(cell)]
    columns.append(f"{cell.nodes * machine.accelerators} {machine.accelerator}" if machine else "any CPU")
    columns.append(memory.of_cell(root, cell).summary())
    return f"| {' | '.join([*columns, price(cell) if machine else ''])} |"


def price(cell: matrix.Cell) -> str:
    """Return what an hour of a cell's machines costs."""
    each = None if cell.instance is None else cell.instance.price_usd_per_hour
    return "price unknown" if each is None else f"{cell.nodes * each:,.2f} $/h"
