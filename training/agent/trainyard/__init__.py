"""What a training script can say to trainyard, and its checkpoints: see docs/own-job.md.

    import trainyard

    found = trainyard.latest()
    trainyard.report(step, loss=loss)
    if trainyard.stopping():
        trainyard.save(state, step)

The agent brings this package into the pod of any image. Nothing is loaded before the first use.
"""

import importlib
import sys
from pathlib import Path

_API = "training.agent.api"
__all__ = ["Drained", "during", "latest", "report", "save", "stopping"]


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name not in __all__:
        raise AttributeError("module 'trainyard' has no attribute {!r}".format(name))  # noqa: UP032
    return getattr(_api(), name)


def _api():  # type: ignore[no-untyped-def]
    """Return the module of the functions.

    In an installed wheel the package `training` is in this directory. It is put at the end of the path, where
    it hides no package of the user.
    """
    here = Path(__file__).resolve().parent
    if (here / "tools").is_dir() and str(here) not in sys.path:
        sys.path.append(str(here))
    return importlib.import_module(_API)
