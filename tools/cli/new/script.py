"""Write overlays/model/NAME for a script in an image of yours, and its cells.

The script keeps its image and its command: torchrun, accelerate, deepspeed, or python with the Trainer of
transformers. The agent starts it in each pod (docs/own-job.md). There is no model.yaml. With --from-file,
image, command, variables, volumes and the number of pods come from a manifest of any kind; --image, --command
and --nodes replace what it says. After an error nothing has been written.

\b
Examples:
  yard new script mine --image registry.example.com/team/mine:1 --command "torchrun train.py --epochs 3"
  yard new script mine --image team/mine:1 --command "torchrun train.py" --nodes 2 --hardware g5 --hardware p5
  yard new script mine --from-file job.yaml --hardware p5

\b
Exit codes: 0 written, 2 bad input.
"""

import click

from tools.core import output
from tools.kube import manifests
from tools.new import component, start_command
from tools.new.script import Script, files_of, from_manifest


@click.command(help=__doc__)
@click.argument("name")
@click.option("--image", metavar="IMAGE", help="The image that has the script.")
@click.option("--command", "words", metavar="WORDS", help="The command, in one argument.")
@click.option("--nodes", type=click.IntRange(1, 1000), metavar="N", help="Pods of each cell.")
@click.option(
    "--hardware", multiple=True, default=("cpu",), show_default=True, metavar="NAME",
    help="Add a cell on this hardware. Repeatable.",
)  # fmt: skip
@click.option("--from-file", "file", metavar="FILE", help="A manifest of a job; - reads standard input.")
def command(
    name: str, image: str | None, words: str | None, nodes: int | None, hardware: tuple[str, ...], file: str | None
) -> None:
    script = from_manifest(manifests.read(file)) if file else Script()
    script.image = image or script.image
    given = start_command.words_of(words) if words is not None else script.command
    entry = {"nodes": nodes or script.nodes}
    script.command = start_command.for_pods(given, entry["nodes"], script.said)
    placed = component.write(component.project(), name, files_of(script), dict.fromkeys(hardware, lambda _: entry))
    output.line(f"written: overlays/model/{name}")
    for line in script.said:
        output.line(f"  {line}")
    for cell in placed:
        output.line(f"  cell overlays/{cell.name}: {output.count(cell.nodes, 'pod')}")
    output.line(f"next: yard wiring overlays/{placed[0].name}")
