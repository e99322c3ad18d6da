"""Calls a function right after the script imports a module."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

Callback = Callable[[Any], None]


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and calls back when its code has run."""

    def __init__(self) -> None:
        self.wanted: dict[str, list[Callback]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.wanted:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                self._follow(name, spec.loader)
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        """Replace `exec_module` of this loader only, so that the type of the loader stays what it is."""
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            for callback in self.wanted.pop(name, []):
                callback(module)

        loader.exec_module = exec_module


_finder = _Finder()


def on_import(name: str, callback: Callback) -> None:
    """Call `callback` with the module when its import ends; at once when that was before."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        callback(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.wanted.setdefault(name, []).append(callback)
