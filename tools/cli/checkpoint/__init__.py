"""List, show, verify and export a run's checkpoints.

A checkpoint is a directory that is committed as a whole, with a digest of every file.

\b
Examples:
  yard checkpoint list
  yard checkpoint show cpu-llama-tiny-train
  yard checkpoint verify cpu-llama-tiny-train
  yard checkpoint export cpu-llama-tiny-train --to exported/llama-tiny
  yard checkpoint export cpu-llama-tiny-lora-train --merge --to exported/llama-tiny-tuned

\b
RUN is a run's name, its directory, or a cell, with --name one of its runs.
It can be left out when only one run exists.
"""

from tools.cli._lazy_group import group

command = group(__name__, __doc__)
