"""The options that say what the containers of a manifest start, where the manifest does not."""

from collections.abc import Callable
from typing import Any

import click


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --command and --image-config; the command gets `words` and `image_config`."""
    words = click.option(
        "--command", "words", metavar="TEXT", help="What the containers start, in place of the manifest's."
    )
    config = click.option(
        "--image-config", is_flag=True, help="Ask docker and the registry what an image without command starts."
    )
    return words(config(command))
