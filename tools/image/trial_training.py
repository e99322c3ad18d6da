"""A tiny training in two containers of one image: one is killed, and the run continues from its checkpoint.

The same run is made first without a kill. The continued run must have exactly its losses, which needs the
same data and the same state of the optimizer.
"""

import io
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML

from tools.core import Say, State, Verdict, repo, tables, wait
from tools.image.engine import Engine, Image

RANKS = 2
_TRIAL: dict[str, Any] = tables.load("image/trial.yaml")
STEPS, KILL_AFTER = _TRIAL["changes"]["train"]["steps"], 8
SECONDS, POLL = 600, 0.25  # for each of the three starts, on a slow machine
CONTINUES = re.compile(r"continuing from step (\d+)")


def run(engine: Engine, image: Image, say: Say) -> Iterator[Verdict]:
    """Train, kill one of two containers, and continue; yield a verdict for each part. Removes everything.

    Ends at the first verdict that is not PASS. Raises UserError if the engine fails.
    """
    training = TrialTraining(engine, image, say)
    try:
        training.prepare()
        for part in (training.control, training.kill, training.resume):
            verdict = part()
            yield verdict
            if verdict.state is not State.PASS:
                return
    finally:
        training.clear()


class TrialTraining:
    """The network, the volume and the containers of one trial."""

    def __init__(self, engine: Engine, image: Image, say: Say) -> None:
        self.engine, self.image, self.say = engine, image, say
        self.name = f"yard-test-{uuid.uuid4().hex[:8]}"
        self.nodes = [f"{self.name}-worker-{rank}" for rank in range(RANKS)]
        self.expected: dict[int, float] = {}  # step -> loss of the run without a kill
        self.committed: list[str] = []  # complete checkpoints after the kill

    def prepare(self) -> None:
        """Create the network, and the volume with configuration and text, owned by the image's user."""
        self.engine.text("network", "create", self.name)
        self.engine.text("volume", "create", self.name)
        mount = ["--volume", f"{self.name}:/shared"]
        holder = f"{self.name}-holder"
        with TemporaryDirectory() as scratch:
            _configuration(Path(scratch))
            self.engine.text("create", "--name", holder, *mount, self.image.id)
            self.engine.text("cp", f"{scratch}/.", f"{holder}:/shared/config")
        self.engine.text("rm", holder)
        words = ["run", "--rm", "--user", "0", *mount, "--entrypoint", "/bin/sh", self.image.id, "-c"]
        self.engine.text(*words, f"chown -R {self.image.user or '0'} /shared")

    def control(self) -> Verdict:
        """Train to the end without a kill."""
        self.say(f"two containers on the network {self.name} train {STEPS} steps")
        problem = self._to_the_end("control")
        self.expected = self._losses("control")
        if problem is None and sorted(self.expected) != list(range(1, STEPS + 1)):
            problem = f"it logged {len(self.expected)} of {STEPS} steps"
        first, last = self.expected.get(1, 0.0), self.expected.get(STEPS, float("inf"))
        if problem is None and last >= first:
            problem = f"the loss did not fall: {first:.3f} to {last:.3f}"
        if problem is not None:
            return self._fail(f"training: {problem}")
        self._remove()
        evidence = [f"{STEPS} steps, loss {first:.3f} to {last:.3f}, both ended with 0"]
        return Verdict(State.PASS, f"training: {RANKS} containers found each other by name", evidence)

    def kill(self) -> Verdict:
        """Train again, kill one container, and look for checkpoints on the volume."""
        self._start("killed")
        wait.until(lambda: self._step() >= KILL_AFTER or len(self._running()) < RANKS, SECONDS, POLL)
        reached = self._step()
        self.engine.text("kill", self.nodes[1])
        self.say(f"killed {self.nodes[1]} at step {reached}")
        ended = wait.until(lambda: not self._running(), SECONDS, POLL)
        code = self._code(self.nodes[0])
        if reached < KILL_AFTER or not ended or code == 0:
            other = f"ended with {code}" if ended else "is still running"
            return self._fail(f"kill: step {reached}; the other container {other}")
        self.committed = self._checkpoints()
        if not self.committed:
            return self._fail("checkpoint: the volume has no complete checkpoint")
        if _step_of(self.committed[-1]) == STEPS:
            return Verdict(State.CANNOT_TELL, "kill: it came after the last step", self.committed)
        self._remove()
        evidence = [f"killed at step {reached}; the other ended with {code}; {', '.join(self.committed)}"]
        return Verdict(State.PASS, "checkpoint: on the volume after the kill", evidence)

    def resume(self) -> Verdict:
        """Start both again, and compare every loss with the run without a kill."""
        problem = self._to_the_end("killed")
        match = CONTINUES.search(self._logs())
        step = _step_of(self.committed[-1])
        if problem is None and (match is None or int(match[1]) != step):
            problem = f"it did not continue from step {step}"
        if problem is not None:
            return self._fail(f"resume: {problem}")
        losses = self._losses("killed")
        differ = [number for number in self.expected if losses.get(number) != self.expected[number]]
        if differ:
            here, there = losses.get(differ[0]), self.expected[differ[0]]
            return self._fail(f"resume: the loss of step {differ[0]} is {here}, and {there} without the kill")
        text = f"steps {step} to {STEPS}: every loss equals that of the run without a kill, the last is"
        return Verdict(State.PASS, "resume: the same losses as without a kill", [f"{text} {losses[STEPS]!r}"])

    def clear(self) -> None:
        self._remove()
        self.engine.run("rm", "--force", f"{self.name}-holder")
        self.engine.run("network", "rm", self.name)
        self.engine.run("volume", "rm", "--force", self.name)

    def _to_the_end(self, run: str) -> str | None:
        """Train to the end; return the problem, or None."""
        self._start(run)
        if not wait.until(lambda: not self._running(), SECONDS, POLL):
            return f"it did not end within {SECONDS} s"
        codes = [self._code(node) for node in self.nodes]
        return f"the containers ended with {codes}" if any(codes) else None

    def _start(self, run: str) -> None:
        variables = {
            **_TRIAL["variables"], "PET_NNODES": f"{RANKS}:{RANKS}", "PET_RDZV_ID": self.name,
            "PET_RDZV_ENDPOINT": f"{self.nodes[0]}:23456", "TRAINYARD_RUN": f"/shared/runs/{run}",
        }  # fmt: skip
        for node in self.nodes:
            words = ["run", "--detach", "--name", node, "--hostname", node, "--network", self.name]
            words += ["--volume", f"{self.name}:/shared", "--read-only", "--tmpfs", "/tmp:mode=1777,exec"]
            words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--shm-size", "256m"]
            for key, value in variables.items():
                words += ["--env", f"{key}={value}"]
            self.engine.text(*words, self.image.id, "-m", "training.pretrain", "--config", "/shared/config")

    def _remove(self) -> None:
        self.engine.run("rm", "--force", "--volumes", *self.nodes)

    def _running(self) -> list[str]:
        return self.engine.text("ps", "--filter", f"name={self.name}-worker", "--format", "{{.Names}}").split()

    def _code(self, node: str) -> int:
        return int(self.engine.text("inspect", "--format", "{{.State.ExitCode}}", node).strip())

    def _step(self) -> int:
        said = self.engine.run("exec", self.nodes[0], "cat", "/shared/runs/killed/metrics.jsonl").stdout
        return max(_parsed(said), default=0)

    def _losses(self, run: str) -> dict[int, float]:
        return _parsed(self._look(f"cat /shared/runs/{run}/metrics.jsonl"))

    def _checkpoints(self) -> list[str]:
        """Return the checkpoints with a manifest, oldest first."""
        said = self._look("ls -d /shared/runs/killed/checkpoints/step-*/MANIFEST.json")
        names = [line.split("/")[-2] for line in said.split()]
        return sorted([name for name in names if name.removeprefix("step-").isdigit()], key=_step_of)

    def _look(self, script: str) -> str:
        """Return the output of a shell script that sees only the volume."""
        mount = ["--volume", f"{self.name}:/shared:ro", "--network", "none"]
        words = ["run", "--rm", *mount, "--entrypoint", "/bin/sh", self.image.id, "-c", script]
        return self.engine.run(*words).stdout

    def _logs(self, *options: str) -> str:
        done = [self.engine.run("logs", *options, node) for node in self.nodes]
        return "".join(one.stdout + one.stderr for one in done)

    def _fail(self, summary: str) -> Verdict:
        return Verdict(State.FAIL, summary, self._logs("--tail", "6").splitlines())


def _step_of(checkpoint: str) -> int:
    return int(checkpoint.removeprefix("step-"))


def _parsed(lines: str) -> dict[int, float]:
    """Return loss by step from the lines of metrics.jsonl. The last line may be incomplete."""
    whole = [json.loads(line) for line in lines.splitlines() if line.startswith("{") and line.endswith("}")]
    return {int(one["step"]): float(one["loss"]) for one in whole if "loss" in one}


def _configuration(directory: Path) -> None:
    """Write the files of cpu/llama-tiny with the changes, and a text: the sections of our documentation."""
    yaml = YAML(typ="rt")
    for name, source in _TRIAL["files"].items():
        data = yaml.load((repo.root() / source).read_text(encoding="utf-8"))
        for section, values in _TRIAL["changes"].items():
            if section in data:
                data[section].update(values)
        out = io.StringIO()
        yaml.dump(data, out)
        (directory / name).write_text(out.getvalue(), encoding="utf-8")
    sources = sorted((repo.root() / "training/data").rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in sources]
    sections = [part for text in texts for part in text.split("\n\n\n")]
    lines = "".join(json.dumps({"text": part}) + "\n" for part in sections)
    (directory / "text.jsonl").write_text(lines, encoding="utf-8")
