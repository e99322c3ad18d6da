"""Write the cells of overlays/matrix.yaml, check them, or print the memory that they need."""

from tools.cli._lazy_group import group

command = group(__name__)
