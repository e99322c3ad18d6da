"""Container images: checked before they are built, tested before they are pushed, pinned by digest."""
