"""Prints what one container really has, as one JSON object: `python3 - SALT [PID]` with this text as its input.

With PID the environment, mounts and limits are those of that process.

`kubectl exec` sends this file to a pod, so it uses only the standard library of Python 3.8 or newer. Values of
variables whose names or values look like secrets are replaced before anything is printed, by a digest with a salt
that is new each time: it shows only whether two pods have the same one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SECRET = re.compile(
    r"(?i)token(?!iz)|secret|passw|credential|(api|access|private|signing)_?key|authorization|_(pwd|pat|key)$"
)
# A password in an address, and how the tokens of well-known services begin.
SECRET_VALUE = re.compile(
    r"://[^/@\s]+:[^/@\s]+@|^(hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|A[KS]IA[0-9A-Z]{12}|eyJ)"
)
PROGRAMS = {
    "nvidia-smi": ["--query-gpu=index,name,driver_version,memory.total,vbios_version", "--format=csv,noheader"],
    "neuron-ls": ["--json-output"],
    "fi_info": ["-p", "efa"],
}
LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "STACK", "CORE")
BUILD = re.compile(r"""^(__version__|cuda|hip|git_version)\b[^=\n]*= *['"]([^'"]+)""", re.MULTILINE)
SALT = "".join(sys.argv[1:2])
PID = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 0  # 0 is this process
PROCESS = Path("/proc", str(PID or "self"))
CGROUP = Path("/sys/fs/cgroup")


def environment() -> dict[str, str]:
    rows = (row.partition("=") for row in text(PROCESS / "environ").split("\0") if row)
    found = {name: value for name, _, value in rows} if PID else dict(os.environ)
    return {name: masked(name, value) for name, value in sorted(found.items())}


def masked(name: str, value: str) -> str:
    """Return the value, or a digest in place of a secret: equal ones stay equal."""
    if not SECRET.search(name) and not SECRET_VALUE.search(value):
        return value
    return f"*** (digest {hashlib.sha256(f'{SALT}{value}'.encode()).hexdigest()[:8]})"


def packages() -> dict[str, str]:
    from importlib import metadata

    found = ((one.metadata["Name"], one.version) for one in metadata.distributions())
    return {str(name): str(version) for name, version in sorted(found, key=str)}


def torch_build() -> dict[str, str]:
    """Return the versions that torch was built with, without importing it; NCCL is one of the packages."""
    found = importlib.util.find_spec("torch")
    versions = text(Path(found.origin).with_name("version.py")) if found and found.origin else ""
    return {f"torch {name.strip('_')}": value for name, value in BUILD.findall(versions)}


def devices() -> dict[str, Any]:
    """Return the lines that each program prints which the image has."""
    found: dict[str, Any] = {}
    for name, words in PROGRAMS.items():
        if shutil.which(name):
            found[name] = answer([name, *words])
    nodes = sorted(
        str(path) for pattern in ("nvidia*", "neuron*", "infiniband/*") for path in Path("/dev").glob(pattern)
    )
    return {**found, "nodes": " ".join(nodes)}


def answer(words: list[str]) -> str:
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"no answer: {problem}"
    return done.stdout.decode("utf-8", "replace")[:20000].strip()


def mounts() -> dict[str, str]:
    rows = (line.split() for line in text(PROCESS / "mounts").splitlines())
    return {
        row[1]: f"{row[0]} {row[2]} {row[3]}"
        for row in rows
        if len(row) > 3 and not row[1].startswith(("/proc", "/sys"))
    }


def limits() -> dict[str, str]:
    ulimits = {
        f"ulimit {name.lower()}": str(resource.prlimit(PID, getattr(resource, f"RLIMIT_{name}"))) for name in LIMITS
    }
    files = ("memory.max", "cpu.max", "pids.max", "memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us")
    return {**ulimits, **{name: value for name in files if (value := text(CGROUP / name).strip())}}


def text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def look() -> dict[str, dict[str, Any]]:
    return {
        "environment": environment(),
        "packages": packages(),
        "build": {"python": platform.python_version(), "executable": sys.executable, **torch_build()},
        "devices": devices(),
        "mounts": mounts(),
        "limits": limits(),
        "kernel": {"release": platform.release(), "machine": platform.machine(), "cpus": str(os.cpu_count())},
    }


if __name__ == "__main__":
    print(json.dumps(look()))
