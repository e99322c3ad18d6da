"""Runs inside of an image, by its own Python, and prints one JSON object: what `yard image test` asks for.

    python - versions NAME ...     imports each module, and says its version or why it is not there
    python - rights                 the user, and which directories it can write to
    python - device                 a multiplication on each device that torch finds
    python - environment            variables, packages, devices

Standard library only until a module is asked for; sent as text, so the image needs nothing of ours.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
from typing import Any

OFF = ("/proc", "/sys", "/dev")


def versions(names: list[str]) -> dict[str, Any]:
    """Import every module of `names`."""
    found, failed = {"python": platform.python_version()}, {}
    for name in names:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as problem:  # noqa: BLE001  whatever a library does, it is not there
            failed[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
        else:
            found[name] = str(getattr(module, "__version__", "")) or "there"
    return {"versions": found, "failed": failed}


def rights(_: list[str]) -> dict[str, Any]:
    """Say who runs, and list the directories that this user can write to."""
    writable = []
    for directory, names, _files in os.walk("/"):
        names[:] = [name for name in names if os.path.join(directory, name) not in OFF]
        if os.access(directory, os.W_OK):
            writable.append(directory)
            names[:] = []
    return {"uid": os.getuid(), "gid": os.getgid(), "writable": writable, "cwd": os.getcwd()}


def device(_: list[str]) -> dict[str, Any]:
    """Multiply matrices wherever torch can."""
    import torch

    places = ["cpu"] + [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    values = {}
    for place in places:
        ones = torch.ones(64, 64, device=place)
        values[place] = float((ones @ ones).sum())
    here = torch.cuda.is_available()
    version = torch.cuda.nccl.version() if here else ()  # type: ignore[no-untyped-call]
    return {
        "torch": torch.__version__,
        "cuda": getattr(torch.version, "cuda", None),
        "nccl": ".".join(map(str, version)) or None,
        "built_for": torch.cuda.get_arch_list() if here else [],
        "devices": values,
    }


def environment(_: list[str]) -> dict[str, Any]:
    """Return variables, packages and devices."""
    packages = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    return {
        "variables": dict(os.environ),
        "packages": dict(sorted(packages.items())),
        "devices": sorted(
            name for name in os.listdir("/dev") if name.startswith(("nvidia", "neuron", "infini"))
        ),
    }


if __name__ == "__main__":
    ask: dict[str, Any] = {
        "versions": versions,
        "rights": rights,
        "device": device,
        "environment": environment,
    }
    print("\n" + json.dumps(ask[sys.argv[1]](sys.argv[2:])))
