"""Submit a job to a cluster, watch it, and find out why it does not train."""

import io
import sys

from tools.cli._lazy_group import group


def _replace_unknown_characters() -> None:
    for stream in (sys.stdout, sys.stderr):  # the terminal's encoding may lack characters of a log
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


command = group(__name__, _replace_unknown_characters)
