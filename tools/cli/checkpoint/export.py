"""Write the model as transformers reads it, or the adapter as peft does, with its tokenizer.

DIR appears as a whole or not at all. It must not exist or must be empty.

\b
Example: yard checkpoint export cpu-llama-tiny-train --to exported/llama-tiny
Exit codes: 0 exported, 1 the export failed, 2 bad input or no checkpoint.
"""

from pathlib import Path

import click

from tools.cli.sample import run_directory, which
from tools.core import output
from tools.core.own_module import answer


@click.command(name="export", help=__doc__)
@which
@click.option("--to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The directory to create.")
@click.option("--merge", is_flag=True, help="Merge the adapters into their base: one whole model.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Export step N instead of the newest.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="The type of the weights. Training is in float32; bfloat16 rounds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    run: str | None, name: str | None, to: Path, merge: bool, step: int | None, dtype: str, as_json: bool
) -> None:
    directory = run_directory(run, name)
    options = [f"--to={to.expanduser().absolute()}", f"--dtype={dtype}", *(["--merge"] if merge else [])]
    options += [] if step is None else [f"--step={step}"]
    written = answer(["training.export", f"--run={directory}", *options])
    if as_json:
        output.data(written)
        return
    size = f"{written['tensors']} tensors, {written['nbytes'] / 1e6:,.1f} MB"
    output.line(f"{written['directory']}: {written['kind']} of step {written['step']}, {size}")
    output.line(f"  digest  {written['digest']}")
    adapter = written["kind"] == "adapter"
    loads = "PeftModel.from_pretrained(base, " if adapter else "AutoModelForCausalLM.from_pretrained("
    output.line(f'  load it with {loads}"{written["directory"]}")')
    if adapter:
        output.line(f"  merged with its base: yard checkpoint export {directory.name} --merge --to DIR")
