"""Make every cell run one image by its digest, written into overlays/images/kustomization.yaml."""

from tools.cli.image._options import pushed
from tools.core import UserError, output
from tools.image import Engine, pin, registry


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
