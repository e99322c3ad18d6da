"""The probe inside each process of the command: observes it, interrupts it, and changes nothing else.

It uses the standard library, and torch only when the script has imported it.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from . import random_state, state
from .batches import Forwards
from .ends import Ends
from .imports import on_import
from .loaders import Loaders
from .parts import Parts
from .saves import Saves
from .state import Probe
from .steps import Steps
from .world import World


def start(path: str) -> None:
    """Begin to observe this process, with the instructions in a file."""
    probe = state.read(path)
    probe.ends = Ends(probe)
    probe.ends.install()
    os.register_at_fork(after_in_child=probe.forked)
    random_state.seed_python()
    on_import("numpy", probe.safe("random")(random_state.seed_numpy))
    saves = Saves(probe)
    probe.safe("saves")(saves.install)()
    on_import("torch", probe.safe("optimizer")(lambda torch: _on_torch(probe, saves, torch)))


def _on_torch(probe: Probe, saves: Saves, torch: Any) -> None:
    """Register everything that needs torch, right after its import."""
    probe.torch = torch
    if probe.stand_in:
        importlib.import_module(f"{__package__}.stand_in").install(torch)
    random_state.seed_torch(torch, random_state.early_rank())
    world = World(probe)
    loaders = Loaders(probe)
    parts = Parts(probe)
    forwards = Forwards(probe, world, loaders, parts)
    steps = Steps(probe, forwards, world, saves)
    probe.safe("saves")(saves.install_torch)(torch)
    probe.safe("batches")(loaders.install)()
    probe.safe("collectives")(world.install)(torch.distributed)
    probe.safe("batches")(parts.install)()
    probe.safe("batches")(forwards.install)()
    probe.safe("optimizer")(steps.install)()
    probe.ends.final = probe.safe("optimizer")(steps.last_parameters)
