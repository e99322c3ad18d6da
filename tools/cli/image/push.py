"""Push an image to a registry, and read its digest back."""

import click

from tools.cli.image._options import TAG_FROM, local_name
from tools.core import output, repo
from tools.image import Engine, pin, push, registry, tags


@TAG_FROM
def command(name: str, target: str, tag_from: str | None, pins: bool, as_json: bool) -> None:
    local = local_name(name)
    repository, tag = registry.split(target)
    if tag and tag_from:
        raise click.UsageError("give a tag, or --tag-from")
    tag = tags.tag(tag_from, repo.root()) if tag_from else tag or registry.split(local)[1]
    with output.activity(f"pushing {local}", every=0.0) as now:
        digest = push.push(local, f"{repository}:{tag}", Engine(), now.at)
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
