"""Push an image to a registry, and read its digest back from there.

NAME is an image of this engine: one under images/ (the last build's), or any name with its tag. A
repository of Amazon ECR is made when it is missing, and docker is logged in by the current AWS identity; for
every other registry docker's own login counts. A tag that names another image is never overwritten.

\b
Examples:
  yard image push trainer-cpu --to 123456789012.dkr.ecr.us-east-1.amazonaws.com/team/trainer-cpu:1.2.0
  yard image push trainer-cpu --to registry.example.com/team/trainer-cpu --tag-from describe --pin
"""

from __future__ import annotations

import click

from tools import __version__
from tools.core import output, repo
from tools.image import pin, push, registry, tags
from tools.image.build import NAMESPACE, load_record
from tools.image.engine import Engine


@click.command(help=__doc__, short_help="push an image and read its digest back")
@click.argument("name", metavar="NAME")
@click.option("--to", "target", required=True, metavar="REPOSITORY[:TAG]", help="Where it is pushed to.")
@click.option("--tag-from", type=click.Choice(tags.POLICIES), help="Where the tag comes from.")
@click.option("--pin", "pinned", is_flag=True, help="Then write the digest into overlays/images.")
@click.option("--json", "as_json", is_flag=True, help="Print repository, tag and digest as JSON.")
def command(name: str, target: str, tag_from: str | None, pinned: bool, as_json: bool) -> None:
    record = load_record(name) if ":" not in name else None
    local = record.tags[0] if record else name if ":" in name else f"{NAMESPACE}/{name}:{__version__}"
    repository, tag = registry.split(target)
    if tag and tag_from:
        raise click.UsageError("give a tag, or --tag-from")
    tag = tags.tag(tag_from, repo.root()) if tag_from else tag or registry.split(local)[1]
    digest = push.push(local, f"{repository}:{tag}", Engine(), output.note)
    short = name if record else registry.split(local)[0].rpartition("/")[2]
    push.remember(short, repository, digest)
    diff = pin.pin(short, repository, digest) if pinned else ""
    if as_json:
        output.data({"repository": repository, "tag": tag, "digest": digest, "pinned": diff or None})
        return
    output.line(f"pushed {repository}:{tag}")
    output.line(f"digest {digest}, read back from {registry.host(repository)}")
    if diff:
        output.line(diff.rstrip("\n"))
    if not pinned and short in pin.known():
        output.line(f"next: yard image pin {short}")
