"""Tests of a running image: imports, rights of its user, first process, training."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.core import Say, State, UserError, Verdict, secret_patterns, wait
from tools.image import trial_training
from tools.image.engine import Engine, Image
from training.remote import container_probe

LEVELS = ("quick", "standard", "full")
MODULES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "datasets", "peft", "training")
# The security context of a cell's containers: base/pytorchjob/pytorchjob.yaml.
RESTRICTED = (
    *("--read-only", "--tmpfs", "/tmp:mode=1777", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges"),
)
MAY_WRITE = ("/tmp", "/var/tmp", "/run/lock", "/dev/shm", "/var/lock")
STOP_SECONDS = 30
START_SECONDS = 300  # the launcher imports torch, on a slow and busy machine
RUN_SECONDS = 900  # the first import reads gigabytes
PROBE = Path(container_probe.__file__).read_text(encoding="utf-8")


def run(name: str, level: str, engine: Engine, say: Say, modules: tuple[str, ...] = ()) -> Iterator[Verdict]:
    """Yield a verdict for each test of the image `name` up to `level`.

    `say` gets the progress of long tests. Raises UserError without an engine or without the image.
    """
    engine.check()
    image = engine.image(name)
    if image is None:
        raise UserError(f"the engine has no image {name}", "build it with yard image build, or docker pull it")
    test = ImageTest(engine, image)
    yield test.imports(modules or MODULES)
    if level == "quick":
        return
    yield from (test.device(), test.entrypoint(), test.signal(), test.rights(), test.restricted())
    yield test.environment()
    if level == "full":
        yield from trial_training.run(engine, image, say)


def missing(name: str, engine: Engine, modules: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the modules that the image `name` does not have. Raises UserError if that is unknown."""
    verdict = next(run(name, "quick", engine, lambda _: None, modules))
    if verdict.state is not State.PASS and "failed" not in verdict.details:
        raise UserError(f"{name}: {verdict.summary}: {verdict.evidence[0]}", code=1)
    return absent(verdict)


def absent(imports: Verdict) -> tuple[str, ...]:
    """Return the missing modules, from the verdict on the imports."""
    failed: dict[str, str] = imports.details.get("failed", {})
    return tuple(name for name, error in failed.items() if error.startswith("ModuleNotFoundError"))


class ImageTest:
    def __init__(self, engine: Engine, image: Image) -> None:
        self.engine, self.image = engine, image

    def imports(self, modules: tuple[str, ...]) -> Verdict:
        """The modules can be imported."""
        found, problem = self.probe("versions", *modules)
        if found is None:
            return _fail("imports: the image's Python does not run", [problem], "is `python` on its PATH?")
        if found["failed"]:
            evidence = [f"{name}: {error}" for name, error in found["failed"].items()]
            summary = f"imports: {', '.join(found['failed'])} cannot be imported"
            return _fail(summary, evidence, "pin it in the image's requirements", failed=found["failed"])
        shown = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        return _pass(f"imports: {len(modules)} modules", [shown], versions=found["versions"])

    def device(self) -> Verdict:
        """torch multiplies on every device that it finds."""
        found, problem = self.probe("device")
        if found is None:
            return _fail("device: torch does not multiply", [problem], None)
        wrong = [place for place, value in found["devices"].items() if value != 64.0**3]
        if wrong:
            return _fail(f"device: wrong results on {', '.join(wrong)}", [json.dumps(found)], None)
        text = f"torch {found['torch']}, CUDA {found['cuda']}; multiplied on {', '.join(found['devices'])}"
        return _pass("device: torch multiplies", [text], **found)

    def entrypoint(self) -> Verdict:
        """The entrypoint starts as in a pod, and its launcher prints its help."""
        done = self._run([], "--help")
        if done.returncode != 0:
            text = f"entrypoint: ended with {done.returncode}"
            return _fail(text, [_last_line(done)], "an ENTRYPOINT that starts the trainer")
        return _pass("entrypoint: it starts", [" ".join(self.image.entrypoint)])

    def signal(self) -> Verdict:
        """When the container is stopped, the rank below its first process gets SIGTERM."""
        name = f"yard-test-{uuid.uuid4().hex[:8]}"
        words = ["run", "--detach", "--name", name, *RESTRICTED, self.image.id]
        words += ["--standalone", "--nproc-per-node=1", "--no-python", "python", "-c", PROBE, "rank"]
        done = self.engine.run(*words)
        if done.returncode != 0:
            return _fail("signal: the container does not start", [_last_line(done)], None)
        try:
            wait.until(lambda: "rank is up" in self._logs(name) or not self._runs(name), START_SECONDS, 0.25)
            if "rank is up" not in self._logs(name):
                return _fail("signal: no rank started", [self._logs(name)[-400:]], "let the ENTRYPOINT start torchrun")
            self.engine.run("stop", f"--time={STOP_SECONDS}", name, seconds=STOP_SECONDS + 30)
            logs = self._logs(name)
        finally:
            self.engine.run("rm", "--force", "--volumes", name)
        if "rank got SIGTERM" in logs:
            return _pass("signal: SIGTERM reaches the rank", ["docker stop, then: rank got SIGTERM"])
        remedy = "ENTRYPOINT in exec form, with a first process that forwards SIGTERM"
        return _fail("signal: SIGTERM does not reach the rank", [logs[-400:] or "no output"], remedy)

    def rights(self) -> Verdict:
        """The image's user is not root, and can write to temporary directories only."""
        found, problem = self.probe("rights")
        if found is None:
            return _fail("rights: the directories cannot be listed", [problem], None)
        if found["uid"] == 0:
            return _fail("rights: it runs as root", ["uid 0"], "USER 1000:1000, after the last RUN")
        evidence = [f"can write to {path}" for path in found["writable"] if not path.startswith(MAY_WRITE)][:8]
        evidence += [] if "/tmp" in found["writable"] else ["cannot write to /tmp"]
        if evidence:
            return _fail("rights: wrong directories are writable", evidence, "chown, chmod")
        text = f"uid {found['uid']} can write to {', '.join(found['writable'])} only"
        return _pass("rights: only temporary directories are writable", [text], **found)

    def restricted(self) -> Verdict:
        """torch can be imported, and a file written, in a cell's container: read-only, no capabilities."""
        code = "import torch, tempfile; tempfile.NamedTemporaryFile().write(b'x'); print(torch.__version__)"
        done = self._run([*RESTRICTED, "--entrypoint", "python"], "-c", code)
        if done.returncode != 0:
            text = "restricted: it does not run with the rights of a cell"
            return _fail(text, [_last_line(done)], "write below /tmp only")
        return _pass("restricted: read-only root, no capabilities", [f"torch {done.stdout.strip()}"])

    def environment(self) -> Verdict:
        """No variable holds a secret. Variables, packages and devices are the evidence."""
        found, problem = self.probe("environment")
        if found is None:
            return _fail("environment: the variables cannot be read", [problem], None)
        pairs = sorted(found["variables"].items())
        variables = [secret_patterns.mask(f"{name}={value}") for name, value in pairs]
        hidden = [line.partition("=")[0] for line in variables if line.endswith("=***")]
        evidence = [*variables, f"{len(found['packages'])} packages, devices: {found['devices'] or 'none'}"]
        if hidden:
            text = f"environment: everyone who pulls the image can read {', '.join(hidden)}"
            return _fail(text, evidence, "a Kubernetes Secret at run time")
        return _pass("environment: no secret", evidence, variables=variables, packages=found["packages"])

    def probe(self, *words: str, options: tuple[str, ...] = ()) -> tuple[dict[str, Any] | None, str]:
        """Return what container_probe.py prints in the image, or None and the error."""
        done = self._run([*options, "--entrypoint", "python"], "-c", PROBE, *words)
        try:
            if done.returncode == 0:
                return dict(json.loads(done.stdout.strip().splitlines()[-1])), ""
        except (ValueError, IndexError, TypeError):
            pass
        return None, _last_line(done)

    def _run(self, options: list[str], *words: str) -> subprocess.CompletedProcess[str]:
        return self.engine.run("run", "--rm", *options, self.image.id, *words, seconds=RUN_SECONDS)

    def _runs(self, name: str) -> bool:
        return self.engine.run("inspect", "--format", "{{.State.Running}}", name).stdout.strip() == "true"

    def _logs(self, name: str) -> str:
        done = self.engine.run("logs", name)
        return done.stdout + done.stderr


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    return secret_patterns.mask(lines[-1]) if lines else f"exit code {done.returncode} and no output"


def _pass(summary: str, evidence: list[str], **details: Any) -> Verdict:
    return Verdict(State.PASS, summary, evidence, None, details)


def _fail(summary: str, evidence: list[str], remedy: str | None, **details: Any) -> Verdict:
    return Verdict(State.FAIL, summary, evidence, remedy, details)
