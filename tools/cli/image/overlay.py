"""Add the working tree to an image as one layer, without a full build.

The files of DIR that .dockerignore does not exclude are copied into the image's working directory. The tag
is a digest of the content, so that an equal tree is not built or pushed twice. A deleted file is still in
the image below, and so in the overlay. Standard output is one line: the image's name (with --push: its
digest at the registry), as `yard job submit --image` takes it.

\b
Examples:
  yard image overlay . --on localhost/trainyard/trainer-cpu:0.1.0
  yard image overlay . --on registry.example.com/team/trainer-cuda:0.1.0 --push
  make image-overlay ON=registry.example.com/team/trainer-cuda:0.1.0

\b
Exit codes: 0 the image exists, 1 not built or not pushed, 2 bad input, 3 the engine does not answer.
"""

from pathlib import Path

import click

from tools.cli.image.build import failed
from tools.core import output
from tools.image import build, overlay, push, registry
from tools.image.dockerfile import context
from tools.image.engine import Engine


@click.command(help=__doc__, short_help="add the working tree to an image as one layer")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--on", "image", required=True, metavar="IMAGE", help="The image below, which the engine has.")
@click.option("--push", "pushes", is_flag=True, help="Push it to the registry that IMAGE names.")
@click.option("--json", "as_json", is_flag=True, help="Print name, id and digest as JSON.")
def command(directory: Path, image: str, pushes: bool, as_json: bool) -> None:
    if pushes and registry.host(image) == "localhost":
        raise click.UsageError("--push needs an IMAGE with a registry in its name")
    try:
        made = overlay.add(directory.resolve(), image, Engine(), output.note)
    except build.BuildFailed as problem:
        failed(problem, as_json)
        raise click.exceptions.Exit(1) from None
    output.note(f"{made.name} {'exists' if made.old else 'is built'}: {context.shown(made.image.size)}")
    digest = push.push(made.name, made.name, Engine(), output.note) if pushes else None
    shown = f"{registry.split(made.name)[0]}@{digest}" if digest else made.name
    if as_json:
        data = {"name": made.name, "id": made.image.id, "built": not made.old, "digest": digest}
        output.data({**data, "image": shown})
    else:
        output.line(shown)
