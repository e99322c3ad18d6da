"""Push an image to a registry, and read its digest back.

NAME is an image under images/ (the last build), or any image of the engine with its tag. A missing
repository of Amazon ECR is created, and docker is logged in with the current AWS identity; every other
registry is used with docker's own login. A tag of another image is never overwritten.

\b
Examples:
  yard image push trainer-cpu --to 123456789012.dkr.ecr.us-east-1.amazonaws.com/team/trainer-cpu:1.2.0
  yard image push trainer-cpu --to registry.example.com/team/trainer-cpu --tag-from describe --pin

\b
Exit codes: 0 pushed, 1 not pushed, 2 bad name, 3 the engine, registry or AWS does not answer.
"""

import click

from tools.cli.image._options import TAG_FROM, local_name
from tools.core import output, repo
from tools.image import pin, push, registry, tags
from tools.image.engine import Engine


@click.command(help=__doc__, short_help="push an image and read its digest back")
@click.argument("name", metavar="NAME")
@click.option("--to", "target", required=True, metavar="REPOSITORY[:TAG]", help="Where to push the image.")
@TAG_FROM
@click.option("--pin", "pins", is_flag=True, help="Then write the digest into overlays/images.")
@click.option("--json", "as_json", is_flag=True, help="Print repository, tag and digest as JSON.")
def command(name: str, target: str, tag_from: str | None, pins: bool, as_json: bool) -> None:
    local = local_name(name)
    repository, tag = registry.split(target)
    if tag and tag_from:
        raise click.UsageError("give a tag, or --tag-from")
    tag = tags.tag(tag_from, repo.root()) if tag_from else tag or registry.split(local)[1]
    digest = push.push(local, f"{repository}:{tag}", Engine(), output.note)
    short = registry.split(local)[0].rpartition("/")[2] if ":" in name else name
    push.remember(short, repository, digest, Engine())
    diff = pin.pin(short, repository, digest) if pins else ""
    if as_json:
        output.data({"repository": repository, "tag": tag, "digest": digest, "pinned": diff or None})
        return
    output.line(f"pushed {repository}:{tag}")
    output.line(f"digest {digest}, read back from {registry.host(repository)}")
    if diff:
        output.block(diff)
    if not pins and short in pin.known():
        output.line(f"next: yard image pin {short}")
