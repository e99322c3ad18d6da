"""Write overlays/model/NAME from a published config.json: the architecture, and a recipe for its size.

SOURCE is a file, a directory or a pinned revision of the Hugging Face hub. A model that cannot be trained is
refused with the key of config.json that says so. With --lora its weights are the frozen base. With --hardware
the model gets a cell, on the fewest nodes whose memory fits. After an error nothing has been written.

\b
Examples:
  yard new model qwen3-0-6b --from Qwen/Qwen3-0.6B@COMMIT
  yard new model mistral-7b --from models/mistral/config.json --hardware p5
  yard new model mistral-7b-lora --from /shared/models/mistral --lora

\b
Exit codes: 0 written, 2 bad input.
"""

import click

from tools.cells import published
from tools.core import output
from tools.new import component, model


@click.command(help=__doc__)
@click.argument("name")
@click.option(
    "--from", "source", required=True, metavar="SOURCE",
    help="A config.json, its directory, or <organisation>/<name>@<revision>.",
)  # fmt: skip
@click.option("--lora", is_flag=True, help="Train adapters on the weights of SOURCE.")
@click.option("--hardware", metavar="NAME", help="Also add a cell on this hardware.")
def command(name: str, source: str, lora: bool, hardware: str | None) -> None:
    made = model.make(name, published.read(source), lora)
    placed = model.write(component.project(), made, hardware)
    output.line(f"written: overlays/model/{name}")
    for line in (*made.said, *placed):
        output.line(f"  {line}")
