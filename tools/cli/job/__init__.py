"""Submit a job to a cluster, watch it, and find out why it does not train.

\b
Examples:
  yard job why cpu-llama-tiny-train
  yard job why overlays/p5/llama-3-1-8b -n team-a --context staging

\b
JOB is a job's name, KIND/NAME such as jobset/x, or a cell.
It may be omitted if the namespace has only one job.
"""

import io
import sys

from tools.cli._lazy_group import group


def _replace_unknown_characters() -> None:
    for stream in (sys.stdout, sys.stderr):  # the terminal's encoding may lack characters of a log
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


command = group(__name__, __doc__, _replace_unknown_characters)
