"""A private Kubernetes cluster. Nothing of it is outside its namespaces.

    python -m tests.cluster up       start one and leave it running
    python -m tests.cluster status   print whether it runs, and how to use it
    python -m tests.cluster exec -- COMMAND...    run a command that can reach it
    python -m tests.cluster down     end it
    python -m tests.cluster build    only build its programs

Exit codes: 0 success, 1 not running, 2 wrong usage, 3 not possible on this machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster import build
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.sandbox import CannotStart, Sandbox, Unsupported
from tests.parts.gomodule import CannotBuild

STATE = Path(__file__).parents[2] / ".cache/cluster/up.json"
LOG = STATE.with_name("up.log")
UP_SECONDS = 1800
COMMANDS = ("up", "status", "exec", "down", "build")


def main(words: Sequence[str]) -> int:
    if not words or words[0] not in (*COMMANDS, "hold") or (len(words) > 1 and words[0] != "exec"):
        print(__doc__, file=sys.stderr)
        return 2
    actions = {"up": up, "status": status, "down": down, "build": make, "hold": hold}
    try:
        return execute(words[1:]) if words[0] == "exec" else actions[words[0]]()
    except (CannotBuild, Unsupported, CannotStart) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 3


def make() -> int:
    """Build the programs."""
    print(f"built: {build.ensure(note).path('kube-apiserver').parent}")
    return 0


def up() -> int:
    """Start a cluster that a background process holds. Of two calls at once, the second finds it running."""
    build.ensure(note)
    STATE.parent.mkdir(parents=True, exist_ok=True)
    with STATE.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _start() if running() is None else status()


def _start() -> int:
    STATE.unlink(missing_ok=True)
    with LOG.open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster", "hold"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + UP_SECONDS
    note("starting the control plane and the training operator")
    while running() is None:
        if holder.poll() is not None or time.monotonic() > deadline:
            holder.terminate()
            print(LOG.read_text(errors="replace").strip(), file=sys.stderr)
            return 3
        time.sleep(0.1)
    return status()


def hold() -> int:
    """Hold a running cluster until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    programs = build.ensure(note)
    sandbox = Sandbox()
    try:
        plane = ControlPlane(sandbox, programs)
        plane.start()
        state = {"pid": os.getpid(), "root": str(sandbox.root), "enter": sandbox.enter("net")}
        state |= {"kubectl": str(plane.kube.program), "kubeconfig": str(plane.kube.kubeconfig)}
        part = STATE.with_suffix(".part")
        part.write_text(json.dumps(state), encoding="utf-8")
        part.rename(STATE)
        while True:
            signal.pause()
    finally:
        if (running() or {}).get("pid") == os.getpid():
            STATE.unlink(missing_ok=True)
        sandbox.close()


def status() -> int:
    """Print whether a cluster is running and how to use it."""
    state = running()
    if state is None:
        print("not running: python -m tests.cluster up")
        return 1
    print(Kube(Path(state["kubectl"]), Path(state["kubeconfig"])).run("version"), end="")
    print(f"logs: {state['root']}/log")
    print("it can be reached only from inside its network; this kubectl goes there:")
    print(f"  export KUBECONFIG={state['kubeconfig']} PATH={Path(state['kubectl']).parent}:$PATH")
    print("any other command: python -m tests.cluster exec -- COMMAND")
    return 0


def execute(words: Sequence[str]) -> int:
    """Replace this process by a command in the cluster's network, with its KUBECONFIG."""
    state = running()
    command = [word for index, word in enumerate(words) if (index, word) != (0, "--")]
    if state is None or not command:
        print(__doc__ if not command else "not running: python -m tests.cluster up", file=sys.stderr)
        return 2 if not command else 1
    os.environ["KUBECONFIG"] = state["kubeconfig"]
    os.environ["PATH"] = f"{Path(state['kubectl']).parent}{os.pathsep}{os.environ['PATH']}"
    sys.stdout.flush()
    return os.execvp(state["enter"][0], [*state["enter"], *command])


def down() -> int:
    """End the cluster and wait until nothing of it is left."""
    state = running()
    if state is None:
        print("not running")
        return 0
    os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + 60
    while Path(state["root"]).exists() or STATE.exists():
        if time.monotonic() > deadline:
            print(f"error: {state['root']} is still there after 60 s", file=sys.stderr)
            return 3
        time.sleep(0.1)
    print("ended")
    return 0


def running() -> dict[str, Any] | None:
    """Return what the running cluster wrote about itself, or None."""
    try:
        state: dict[str, Any] = json.loads(STATE.read_text(encoding="utf-8"))
        command = Path(f"/proc/{state['pid']}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return state if b"tests.cluster" in command and Path(state["root"]).exists() else None


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
