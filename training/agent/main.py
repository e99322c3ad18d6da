"""The agent: process 1 of a pod that runs a user's own script, in the user's own image.

`agent.pyz -- COMMAND ...` (or `python3 agent.pyz -- COMMAND ...`)

It starts the command, passes SIGTERM on, reads steps and losses from the output, detects hangs, records the
cause of the end in the run directory, and exits with the code of the cause's class. The command can
`import trainyard`.

Variables: TRAINYARD_RUN (the run directory; otherwise /shared/run or /trainyard-run, whichever is mounted),
TRAINYARD_HANG_SECONDS and TRAINYARD_LONG_SECONDS (limits of the hang guard).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from training.agent import forking
from training.agent.script_pod import ScriptPod
from training.pod import development, metrics_server
from training.pod.development import Code
from training.prove import pod
from training.run.directory import RunDir
from training.run.failure import CODES
from training.run.hang_limits import Limits

RUN = "TRAINYARD_RUN"
# With 1, torchrun gives each restart of the ranks a store of its own. Otherwise the next ranks read what
# the last ones left in it, and may wait for each other without end.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
MOUNTED = (Path("/shared/run"), Path("/trainyard-run"))
_WITH_THE_POD = ("overlay", "tmpfs")  # file systems of a container, which end with it


def main(archive: str) -> None:
    """Command line; `archive` is the file that the script's processes import `trainyard` from.

    Exit codes: `training.run.failure.CODES`; 2 without a command, 126 and 127 if it does not start.
    """
    words = sys.argv[1:]
    if words[:1] == ["--"]:
        del words[0]
    if words in (["--help"], ["-h"]):
        print(__doc__)
        sys.exit(0)
    if words[:1] == ["--prove"]:
        sys.exit(pod.main(words[1:], archive))
    if words[:1] == [forking.FORK]:
        forking.main(words[1:])
        sys.exit(0)
    if not words or words[0].startswith("-"):
        _say("no command; for example: agent.pyz -- torchrun train.py")
        sys.exit(2)
    try:
        limits, restarts = Limits.of(os.environ), development.restarts(os.environ)
        metrics_server.address(os.environ)
    except ValueError as problem:
        _say(str(problem))
        sys.exit(CODES["config"])
    run = usable(directory(os.environ))
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), archive]
    environment = {"PYTHONPATH": os.pathsep.join(path), **({RUN: str(run.path)} if run else {})}
    environment[OWN_STORE] = os.environ.get(OWN_STORE, "1")

    def make(code: Code | None) -> ScriptPod:
        return ScriptPod(forking.command(words, archive) if code else words, limits, run, environment, code)

    sys.exit(development.run(make, restarts))


def directory(environment: Mapping[str, str]) -> Path:
    """Return the run directory: the given one, a mounted one, or one in the temporary directory."""
    given = environment.get(RUN)
    if given:
        return Path(given)
    mounted = (path for path in MOUNTED if path.is_dir() and os.access(str(path), os.W_OK))
    return next(mounted, Path(tempfile.gettempdir()) / "trainyard-run")


def usable(path: Path) -> RunDir | None:
    """Return the run directory, None if it cannot be written; say what that means."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=str(path)):
            pass
    except OSError as problem:
        _say(f"{path} cannot be written ({problem.strerror}): no records, and no detection of hangs")
        return None
    if ends_with_the_pod(path):
        _say(f"{path} ends with this pod, and so do its records and checkpoints; mount a volume to keep them")
    return RunDir(path)


def ends_with_the_pod(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a directory is in the container's own file system or in an emptyDir.

    `mounts` has the format of proc_pid_mountinfo(5).
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    rows = [line.split() for line in lines if " - " in line]
    real = os.path.realpath(str(path))
    below = [row for row in rows if real == row[4] or real.startswith(row[4].rstrip("/") + "/")]
    if not below:
        return False
    row = max(below, key=lambda row: len(row[4]))
    return "kubernetes.io~empty-dir" in row[3] or row[row.index("-") + 1] in _WITH_THE_POD


def _say(text: str) -> None:
    print(f"{ScriptPod.name}: {text}", file=sys.stderr, flush=True)
