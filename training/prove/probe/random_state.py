"""Seeds for scripts that set none, and digests of the random state."""

from __future__ import annotations

import random
import sys
from typing import Any

from .digest import content, hashed
from .state import Probe, number

SEED = 740_100_003
_STRIDE = 1_000_003


def seed_of(rank: int) -> int:
    """Return the seed that the probe gives a rank."""
    return SEED + rank * _STRIDE


def early_rank() -> int:
    """Return the rank as launchers tell it, before torch.distributed exists."""
    return number("RANK", number("SLURM_PROCID", number("OMPI_COMM_WORLD_RANK", 0)))


def seed_python() -> None:
    random.seed(seed_of(early_rank()))


def seed_numpy(module: Any, rank: int | None = None) -> None:
    """Seed NumPy, whose seeds have 32 bits."""
    module.random.seed(seed_of(early_rank() if rank is None else rank) % (1 << 32))


def seed_torch(torch: Any, rank: int) -> None:
    torch.manual_seed(seed_of(rank))


def seed_late(probe: Probe, rank: int) -> None:
    """Seed a process that learns its rank from its process group, unless the script did so or has trained."""
    if early_rank() != rank and probe.step == 0 and seeded_by_us(probe.torch):
        random.seed(seed_of(rank))
        seed_torch(probe.torch, rank)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            seed_numpy(numpy, rank)


def seeded_by_us(torch: Any) -> bool:
    """Return whether torch still runs on a seed of the probe."""
    offset = int(torch.initial_seed()) - SEED
    return 0 <= offset < _STRIDE * 65536 and offset % _STRIDE == 0


def digest(torch: Any) -> dict[str, str]:
    """Return a digest of each source of random numbers. Nothing is drawn."""
    version, words, gauss = random.getstate()
    found = {"python": hashed(version, hash(words), gauss), "torch": torch_state(torch, "cpu")}
    numpy = sys.modules.get("numpy")
    legacy = getattr(getattr(numpy, "random", None), "get_state", None)
    if legacy is not None:
        name, keys, position, has_gauss, cached = legacy()
        found["numpy"] = hashed(name, keys.tobytes(), position, has_gauss, cached)
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        found["cuda"] = torch_state(torch, "cuda")
    return found


def torch_state(torch: Any, kind: str) -> str:
    """Return a digest of torch's random state of this kind of device."""
    state = torch.cuda.get_rng_state() if kind == "cuda" else torch.get_rng_state()
    return hashed(content(state))
