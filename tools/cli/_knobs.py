"""The options that change a job: the same for every command that takes a cell."""

from typing import Any

from tools.cells.knobs import Knobs
from tools.cli._parameters import shared


@shared
def knobs(
    nodes: int | None,
    nproc: int | None,
    settings: tuple[str, ...],
    name: str | None,
    image: str | None,
    instance: str | None,
    features: tuple[str, ...],
) -> dict[str, Any]:
    return {"knobs": Knobs(nodes, nproc, settings, name, image, instance, features)}
