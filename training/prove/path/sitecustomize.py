"""Loads the probe of a proof into this Python process, and then the `sitecustomize` that this one hides.

Nothing here can be imported by the script: the probe has a private name.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_NAME = "_trainyard_prove"


def _load_probe() -> None:
    package = os.path.dirname(_HERE)
    spec = importlib.util.spec_from_file_location(
        _NAME, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    roots = os.environ.get("TRAINYARD_PROVE_ROOTS")
    if roots:
        importlib.import_module(_NAME + ".view.guard").install(roots)
    importlib.import_module(_NAME + ".probe").start(os.environ["TRAINYARD_PROVE"])


def _load_hidden() -> None:
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("TRAINYARD_PROVE"):
    try:
        _load_probe()
    except Exception as _problem:  # noqa: BLE001 - the script runs whatever happens to the probe
        sys.stderr.write("trainyard: the probe was not loaded: %r\n" % (_problem,))  # noqa: UP031 - any Python
_load_hidden()
