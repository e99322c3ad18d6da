"""Runs in a container with the image's own Python, and prints one JSON object for `yard image test`.

    python - versions NAME ...     imports each module: its version, or the error
    python - rights                the user, and the directories that it can write to
    python - device                a multiplication on each device that torch finds
    python - environment           variables, packages, devices
    python - contents              packages of Python, and of the system where it has dpkg
    python - rank                  waits for SIGTERM as a rank, and says that it is up and that it got it

It is passed as text and only needs the standard library, so that the image needs nothing of ours.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
import time
from typing import Any

OFF = ("/proc", "/sys", "/dev")


def versions(names: list[str]) -> dict[str, Any]:
    found, failed = {"python": platform.python_version()}, {}
    for name in names:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as problem:  # noqa: BLE001  an import may raise anything
            failed[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
        else:
            found[name] = str(getattr(module, "__version__", "")) or "there"
    return {"versions": found, "failed": failed}


def rights(_: list[str]) -> dict[str, Any]:
    writable = []
    for directory, names, _files in os.walk("/"):
        names[:] = [name for name in names if os.path.join(directory, name) not in OFF]
        if os.access(directory, os.W_OK):
            writable.append(directory)
            names[:] = []
    return {"uid": os.getuid(), "gid": os.getgid(), "writable": writable, "cwd": os.getcwd()}


def device(_: list[str]) -> dict[str, Any]:
    import torch

    places = ["cpu"] + [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    values = {}
    for place in places:
        ones = torch.ones(64, 64, device=place)
        values[place] = float((ones @ ones).sum())
    here = torch.cuda.is_available()
    version = torch.cuda.nccl.version() if here else ()
    return {
        "torch": torch.__version__,
        "cuda": getattr(torch.version, "cuda", None),
        "nccl": ".".join(map(str, version)) or None,
        "built_for": torch.cuda.get_arch_list() if here else [],
        "devices": values,
    }


def environment(_: list[str]) -> dict[str, Any]:
    packages = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    devices = sorted(name for name in os.listdir("/dev") if name.startswith(("nvidia", "neuron", "infini")))
    return {"variables": dict(os.environ), "packages": dict(sorted(packages.items())), "devices": devices}


def contents(_: list[str]) -> dict[str, Any]:
    found = [
        {"type": "pypi", "name": one.metadata["Name"], "version": one.version}
        for one in importlib.metadata.distributions()
    ]
    try:
        with open("/var/lib/dpkg/status", encoding="utf-8") as file:
            entries = file.read().split("\n\n")
        with open("/etc/os-release", encoding="utf-8") as file:
            system = dict(line.strip().split("=", 1) for line in file if "=" in line).get("ID", "debian")
    except OSError:
        entries, system = [], ""
    for entry in entries:
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line)
        if fields.get("Status", "").endswith(" installed"):
            name, version, arch = (fields[key] for key in ("Package", "Version", "Architecture"))
            found.append({"type": "deb", "name": name, "version": version, "arch": arch})
    return {"packages": found, "system": system.strip('"')}


def rank(_: list[str]) -> dict[str, Any]:
    def stop(*_: object) -> None:
        print("rank got SIGTERM", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    print("rank is up", flush=True)
    time.sleep(600)
    return {}


if __name__ == "__main__":
    known = (versions, rights, device, environment, contents, rank)
    probes: dict[str, Any] = {one.__name__: one for one in known}
    print("\n" + json.dumps(probes[sys.argv[1]](sys.argv[2:])))
