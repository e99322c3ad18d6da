"""The fork server of a pod (`training.pod.fork_server`) imports this module first: it imports the task.

The fork server dies with the launcher, and its ranks die with it. It needs this because the ranks hold the
pipe open by which it would otherwise notice the launcher's end. It blocks SIGTERM: where all processes of a pod
get it, the ranks must live until they have saved. A rank that gets it before `fork_server.set_up` gets it there.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal

from training.distributed.process import die_with_parent
from training.pod.fork_server import TASK

die_with_parent()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with contextlib.suppress(Exception):  # a rank that imports the task itself reports the same error
    importlib.import_module(os.environ[TASK])
