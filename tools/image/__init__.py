"""Container images: checked before they are built, tested before they are pushed, pinned by digest."""

from tools.image.engine import Engine

__all__ = ["Engine"]
