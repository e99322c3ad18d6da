"""Imported by a pod's fork server (`training.pod.launcher`) before it serves: the task, and what it needs.

It ends with the launcher, and its ranks with it: they hold its pipe to the launcher open, by which it would
know.
"""

from __future__ import annotations

import contextlib
import importlib
import os

from training.distributed.process import die_with_parent
from training.pod.launcher import TASK

die_with_parent()
with contextlib.suppress(Exception):  # a rank that imports for itself meets it again, and says it
    importlib.import_module(os.environ[TASK])
