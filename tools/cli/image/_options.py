"""Options that several commands of `yard image` share."""

from collections.abc import Sequence

import click

from tools import __version__
from tools.core import UserError, Verdict, output, worst
from tools.image import Engine, registry, smoke, tags
from tools.image.build import NAMESPACE, load_record

TAG_FROM = click.option("--tag-from", type=click.Choice(tags.POLICIES), help="Where the tag comes from.")


def arguments(given: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE options as a dictionary. Raises UserError if one has no `=`."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--build-arg {text}: not NAME=VALUE")
        found[name] = value
    return found


def local_name(name: str) -> str:
    """Return the engine's name of an image; a short name means the image of the last build."""
    if ":" in name:
        return name
    record = load_record(name) if "/" not in name else None
    if record is not None:
        return record.tags[0]
    return name if "/" in name else f"{NAMESPACE}/{name}:{__version__}"


def pushed(image: str) -> tuple[str, str]:
    """Return the name of an image under images/, and REPOSITORY@DIGEST of its last push or of `image` itself.

    Raises UserError if it was not pushed from here.
    """
    if "@" in image or "/" in image:
        return registry.split(image)[0].rpartition("/")[2], image
    record = load_record(image)
    if record is None or not record.digests:
        hint = f"yard image push {image} --to <repository>, or name the image with its registry"
        raise UserError(f"{image} was not pushed from here", hint)
    repository, digest = list(record.digests.items())[-1]
    return image, f"{repository}@{digest}"


def run_tests(image: str, level: str, modules: tuple[str, ...], quiet: bool) -> list[Verdict]:
    """Test an image and print each verdict when it is known, unless `quiet`."""
    found = []
    for verdict in smoke.run(image, level, Engine(), output.note, modules):
        found.append(verdict)
        if not quiet:
            output.verdict(verdict)
    return found


def exit_code(verdicts: list[Verdict]) -> int:
    """Return the exit code of the worst verdict."""
    return worst(verdict.state for verdict in verdicts).exit_code
