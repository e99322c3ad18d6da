"""The options that change a job, and those that name it: the same for every command that takes a cell."""

import functools
from collections.abc import Callable
from typing import Any

import click

from tools.cells.knobs import Knobs

Command = Callable[..., Any]
COUNT = click.IntRange(1)


def options(command: Command) -> Command:
    """Add the knobs; the command gets `knobs`."""

    @click.option("--nodes", type=COUNT, metavar="N", help="Train on N pods (every field that counts them).")
    @click.option("--nproc", type=COUNT, metavar="N", help="N processes in each pod, and devices for them.")
    @click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the configuration.")
    @click.option("--name", metavar="NAME", help="Put NAME at the end of the job's name: a run of its own.")
    @click.option("--image", metavar="IMAGE", help="Train in this image.")
    @click.option("--instance", metavar="TYPE", help="Take whole machines of this type, of the same family.")
    @click.option("--feature", "features", multiple=True, metavar="NAME", help="Add overlays/feature/NAME.")
    @functools.wraps(command)
    def with_knobs(
        nodes: int | None,
        nproc: int | None,
        settings: tuple[str, ...],
        name: str | None,
        image: str | None,
        instance: str | None,
        features: tuple[str, ...],
        **others: Any,
    ) -> Any:
        return command(knobs=Knobs(nodes, nproc, settings, name, image, instance, features), **others)

    return with_knobs


def target(command: Command) -> Command:
    """Add CELL and -f for `tools.cells.knobs.rendered`; the command gets `cell` and `file`."""
    name = click.argument("cell", required=False)
    file = click.option("-f", "--file", metavar="FILE", help="Read manifests from FILE (- for standard input).")
    return name(file(command))
