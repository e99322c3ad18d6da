"""Names of images that only the machine with the image can resolve."""

import re

from tools.kube.manifests import Object

# Loopback names are another machine on each node. kind and ko give the names below to images that exist only
# in a cluster's own store (ko: docs/reference/ko_apply.md, `--local`; kind: `kind load docker-image`).
LOCAL = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]|kind\.local|ko\.local)(?::\d{1,5})?/")


def is_local(image: str) -> bool:
    """Return whether an image's name has a registry that no other machine reaches."""
    return LOCAL.match(image) is not None


def last_word(image: str) -> tuple[str, str]:
    """Return the name of an image without its registry and path, and its tag, which may be empty."""
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    return name, tag


def lists(node: Object, image: str) -> bool:
    """Return whether a node's status lists an image. A kubelet lists at most 50 (nodeStatusMaxImages)."""
    images = (node.get("status") or {}).get("images") or []
    return any(image in (one.get("names") or []) for one in images)
