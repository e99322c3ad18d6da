"""Make every cell run one image by its digest, written into overlays/images/kustomization.yaml.

NAME is an image that cells run. The default is the digest of its last push from here. IMAGE is
REPOSITORY:TAG or REPOSITORY@DIGEST; its registry must have it. The change is printed as a diff, to be
committed.

\b
Examples:
  yard image pin trainer-cpu
  yard image pin trainer-cuda registry.example.com/team/trainer-cuda:1.2.0

\b
Exit codes: 0 pinned, 1 the registry does not have the image, 2 bad name, 3 the registry does not answer.
"""

import click

from tools.cli.image._options import pushed
from tools.core import output
from tools.core.errors import UserError
from tools.image import pin, registry
from tools.image.engine import Engine


@click.command(help=__doc__, short_help="make every cell run an image by its digest")
@click.argument("name", metavar="NAME")
@click.argument("image", required=False, metavar="[IMAGE]")
@click.option("--json", "as_json", is_flag=True, help="Print what was pinned as JSON.")
def command(name: str, image: str | None, as_json: bool) -> None:
    pin.require(name)
    repository, digest = _look_up(image) if image else registry.split(pushed(name)[1])
    diff = pin.pin(name, repository, digest)
    if as_json:
        output.data({"name": name, "repository": repository, "digest": digest, "diff": diff or None})
    elif diff:
        output.block(diff)
        output.line("next: git add overlays/images && git commit")
    else:
        output.line(f"{name} is already pinned to {repository}@{digest}")


def _look_up(image: str) -> tuple[str, str]:
    """Return the repository and digest of an image in its registry."""
    repository, tag = registry.split(image)
    if not tag:
        raise UserError(f"{image}: not <repository>:<tag> or <repository>@sha256:<digest>")
    digest = registry.digest(Engine(), image)
    if digest is None:
        raise UserError(f"{registry.host(repository)} does not have {image}; nothing was pinned", code=1)
    return repository, digest
