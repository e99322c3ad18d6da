"""Write overlays/model/NAME from a published config.json: the architecture, and a recipe for its size."""

import click

from tools.cells import published
from tools.core import output, repo
from tools.new import model


@click.command()
@click.argument("name")
@click.option(
    "--from", "source", required=True, metavar="SOURCE",
    help="A config.json, its directory, or <organisation>/<name>@<revision>.",
)  # fmt: skip
@click.option("--lora", is_flag=True, help="Train adapters on the weights of SOURCE.")
@click.option("--hardware", metavar="NAME", help="Also add a cell on this hardware.")
def command(name: str, source: str, lora: bool, hardware: str | None) -> None:
    made = model.make(name, published.read(source), lora)
    placed = model.write(repo.project(), made, hardware)
    output.line(f"written: overlays/model/{name}")
    for line in (*made.said, *placed):
        output.line(f"  {line}")
