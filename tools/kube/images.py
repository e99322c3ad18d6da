"""Names of images that only the machine with the image can resolve."""

import re

# Loopback names are another machine on each node. kind and ko give the names below to images that exist only
# in a cluster's own store (ko: docs/reference/ko_apply.md, `--local`; kind: `kind load docker-image`).
LOCAL = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]|kind\.local|ko\.local)(?::\d{1,5})?/")


def is_local(image: str) -> bool:
    """Return whether an image's name has a registry that no other machine reaches."""
    return LOCAL.match(image) is not None
