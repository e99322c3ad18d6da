"""What an image does once it runs: imports, its user's rights, its first process, a training."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.core import secret_patterns
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.image.engine import Engine, Image, Say
from tools.image.trial_training import rehearse, wait_for

LEVELS = ("quick", "standard", "full")
MODULES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "datasets", "peft", "training")
# What the cell's containers get: base/pytorchjob/pytorchjob.yaml.
RESTRICTED = (
    *("--read-only", "--tmpfs", "/tmp:mode=1777", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges"),
)
MAY_WRITE = ("/tmp", "/var/tmp", "/run/lock", "/dev/shm", "/var/lock")
STOP_SECONDS = 30
START_SECONDS = 300  # the launcher imports torch, on a slow machine with other work
RUN_SECONDS = 900  # the first import reads gigabytes
# A rank that says when it is ready, and when SIGTERM has reached it.
RANK = (
    "import signal, sys, time\n"
    "def stop(*_):\n    print('rank got SIGTERM', flush=True)\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "print('rank is up', flush=True)\n"
    "time.sleep(600)\n"
)


def trial(
    name: str, level: str, engine: Engine, say: Say, modules: tuple[str, ...] = ()
) -> Iterator[Verdict]:
    """Yield a verdict for each thing that is tried in the image `name`, up to `level`, as it is known.

    `say` is told what takes long. Raises UserError where there is no engine, or no such image.
    """
    engine.check()
    image = engine.image(name)
    if image is None:
        raise UserError(
            f"the engine has no image {name}", "yard image build makes one, docker pull fetches one"
        )
    bench = Bench(engine, image)
    yield bench.imports(modules or MODULES)
    if level == "quick":
        return
    yield from (bench.device(), bench.entrypoint(), bench.signal(), bench.rights(), bench.restricted())
    yield bench.environment()
    if level == "full":
        yield from rehearse(engine, image, say)


def missing(name: str, engine: Engine, modules: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the modules that are not in the image `name`. Raises UserError where that stays unknown."""
    verdict = next(trial(name, "quick", engine, lambda _: None, modules))
    if verdict.state is not State.PASS and "failed" not in verdict.details:
        raise UserError(f"{name}: {verdict.summary}: {verdict.evidence[0]}", code=1)
    return absent(verdict)


def absent(imports: Verdict) -> tuple[str, ...]:
    """Return the modules that are not there, out of the verdict on the imports."""
    failed: dict[str, str] = imports.details.get("failed", {})
    return tuple(name for name, why in failed.items() if why.startswith("ModuleNotFoundError"))


class Bench:
    """One image on the bench."""

    def __init__(self, engine: Engine, image: Image) -> None:
        self.engine, self.image = engine, image

    def imports(self, modules: tuple[str, ...]) -> Verdict:
        """Import what the trainer needs."""
        found, problem = self._ask("versions", *modules)
        if found is None:
            return _fail(
                "imports: the image's Python does not run", [problem], "is there a `python` on its PATH?"
            )
        if found["failed"]:
            evidence = [f"{name}: {why}" for name, why in found["failed"].items()]
            summary = f"imports: {', '.join(found['failed'])} cannot be imported"
            return _fail(summary, evidence, "pin it in the image's requirements", failed=found["failed"])
        shown = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        return _pass(f"imports: {len(modules)} modules", [shown], versions=found["versions"])

    def device(self) -> Verdict:
        """Multiply on every device that torch finds."""
        found, problem = self._ask("device")
        if found is None:
            return _fail("device: torch does not multiply", [problem], None)
        wrong = [place for place, value in found["devices"].items() if value != 64.0**3]
        if wrong:
            return _fail(f"device: wrong results on {', '.join(wrong)}", [json.dumps(found)], None)
        evidence = [
            f"torch {found['torch']}, CUDA {found['cuda']}; multiplied on {', '.join(found['devices'])}"
        ]
        return _pass("device: torch multiplies", evidence, **found)

    def entrypoint(self) -> Verdict:
        """Start the image as a pod does, and ask its launcher for help."""
        done = self._run([], "--help")
        if done.returncode != 0:
            return _fail(
                f"entrypoint: ended with {done.returncode}", [_last(done)], "ENTRYPOINT starts the trainer"
            )
        return _pass("entrypoint: it starts", [" ".join(self.image.entrypoint)])

    def signal(self) -> Verdict:
        """Stop a running container, and look whether the rank below its first process was told."""
        name = f"yard-test-{uuid.uuid4().hex[:8]}"
        words = ["run", "--detach", "--name", name, *RESTRICTED, self.image.id]
        words += ["--standalone", "--nproc-per-node=1", "--no-python", "python", "-c", RANK]
        done = self.engine.run(*words)
        if done.returncode != 0:
            return _fail("signal: the container does not start", [_last(done)], None)
        try:
            wait_for(lambda: "rank is up" in self._logs(name) or not self._runs(name), START_SECONDS)
            if "rank is up" not in self._logs(name):
                return _fail(
                    "signal: no rank came up", [self._logs(name)[-400:]], "is its ENTRYPOINT a torchrun?"
                )
            self.engine.run("stop", f"--time={STOP_SECONDS}", name, seconds=STOP_SECONDS + 30)
            logs = self._logs(name)
        finally:
            self.engine.run("rm", "--force", "--volumes", name)
        if "rank got SIGTERM" in logs:
            return _pass("signal: SIGTERM reaches the rank", ["docker stop, then: rank got SIGTERM"])
        remedy = "ENTRYPOINT in exec form, with a first process that passes SIGTERM on"
        return _fail("signal: SIGTERM does not reach the rank", [logs[-400:] or "it said nothing"], remedy)

    def rights(self) -> Verdict:
        """List where the image's user can write."""
        found, problem = self._ask("rights")
        if found is None:
            return _fail("rights: cannot be listed", [problem], None)
        if found["uid"] == 0:
            return _fail("rights: it runs as root", ["uid 0"], "USER 1000:1000, after the last RUN")
        beyond = [path for path in found["writable"] if not path.startswith(MAY_WRITE)]
        missing = [path for path in ("/tmp",) if path not in found["writable"]]
        if beyond or missing:
            evidence = [f"can write to {path}" for path in beyond[:8]] + [
                f"cannot write to {one}" for one in missing
            ]
            return _fail(
                "rights: it writes where it should not, or not where it should", evidence, "chown, chmod"
            )
        evidence = [f"uid {found['uid']}, writes to {', '.join(found['writable'])} and nowhere else"]
        return _pass("rights: it writes where it should", evidence, **found)

    def restricted(self) -> Verdict:
        """Import torch and write, in what a cell's container is: read-only, without capabilities."""
        code = "import torch, tempfile; tempfile.NamedTemporaryFile().write(b'x'); print(torch.__version__)"
        done = self._run([*RESTRICTED, "--entrypoint", "python"], "-c", code)
        if done.returncode != 0:
            return _fail(
                "restricted: it does not run as a cell runs it", [_last(done)], "write below /tmp only"
            )
        return _pass("restricted: read-only root, no capabilities", [f"torch {done.stdout.strip()}"])

    def environment(self) -> Verdict:
        """Dump variables, packages and devices, with every secret masked."""
        found, problem = self._ask("environment")
        if found is None:
            return _fail("environment: cannot be read", [problem], None)
        variables = [
            secret_patterns.mask(f"{name}={value}") for name, value in sorted(found["variables"].items())
        ]
        hidden = [line.partition("=")[0] for line in variables if line.endswith("=***")]
        evidence = [*variables, f"{len(found['packages'])} packages, devices: {found['devices'] or 'none'}"]
        if hidden:
            text = f"environment: {', '.join(hidden)} is in the image for whoever pulls it"
            return _fail(text, evidence, "a Secret of the cluster, at run time")
        details = {"variables": variables, "packages": found["packages"]}
        return _pass("environment: no secret", evidence, **details)

    def _ask(self, *words: str) -> tuple[dict[str, Any] | None, str]:
        """Return what tools/image/container_probe.py says in the image, or None and why not."""
        text = (Path(__file__).parent / "container_probe.py").read_text(encoding="utf-8")
        done = self._run(["--entrypoint", "python"], "-c", text, *words)
        try:
            if done.returncode == 0:
                return dict(json.loads(done.stdout.strip().splitlines()[-1])), ""
        except (ValueError, IndexError):
            pass
        return None, _last(done)

    def _run(self, options: list[str], *words: str) -> subprocess.CompletedProcess[str]:
        return self.engine.run("run", "--rm", *options, self.image.id, *words, seconds=RUN_SECONDS)

    def _runs(self, name: str) -> bool:
        done = self.engine.run("inspect", "--format", "{{.State.Running}}", name)
        return done.stdout.strip() == "true"

    def _logs(self, name: str) -> str:
        done = self.engine.run("logs", name)
        return done.stdout + done.stderr


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    return secret_patterns.mask(lines[-1]) if lines else f"it ended with {done.returncode} and said nothing"


def _pass(summary: str, evidence: list[str], **details: Any) -> Verdict:
    return Verdict(State.PASS, summary, evidence, None, details)


def _fail(summary: str, evidence: list[str], remedy: str | None, **details: Any) -> Verdict:
    return Verdict(State.FAIL, summary, evidence, remedy, details)
