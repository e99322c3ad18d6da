"""Write the cells of overlays/matrix.yaml, check them, or print the memory that they need.

The file says which cells overlays/<hardware>/<model> exist.

\b
Examples:
  yard matrix sync
  yard matrix check
  yard matrix memory p5/llama-3-1-8b
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)
