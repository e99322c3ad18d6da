"""A real, tiny training in two containers of one image: killed, and resumed from its checkpoint."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ruamel.yaml import YAML

from tools import repo
from tools.image.engine import Engine, Image, Say
from tools.verdict import State, Verdict

RANKS = 2
STEPS, EVERY, KILL_AFTER = 60, 10, 15
STEP_SECONDS, END_SECONDS = 400, 600
FILES = {
    "model.yaml": "overlays/model/llama-tiny/model.yaml",
    "hardware.yaml": "overlays/hardware/cpu/hardware.yaml",
    "cell.yaml": "overlays/cpu/llama-tiny/cell.yaml",
}
# The first cell's configuration, as small as it still is one.
CHANGES: dict[str, dict[str, object]] = {
    "model": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    },
    "train": {
        "steps": STEPS, "global_batch_size": 8, "warmup_steps": 5, "eval_every": STEPS, "eval_sequences": 8,
    },
    "device": {"compile": "off", "precision": "fp32"},
    "parallel": {"micro_batch_size": 4},
    "checkpoint": {"every": EVERY, "keep": 3},
    "sample": {"max_new_tokens": 4},
}  # fmt: skip


def wait_for(done: Callable[[], bool], seconds: float) -> bool:
    """Poll until `done`; return whether it was within `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def rehearse(engine: Engine, image: Image, say: Say) -> Iterator[Verdict]:
    """Train, kill one of two containers, and train on; yield what was seen. Leaves nothing behind."""
    stage = Stage(engine, image, say)
    try:
        stage.prepare()
        yield from stage.act()
    finally:
        stage.clear()


class Stage:
    """The network, the volume and the containers of one rehearsal."""

    def __init__(self, engine: Engine, image: Image, say: Say) -> None:
        self.engine, self.image, self.say = engine, image, say
        self.name = f"yard-test-{uuid.uuid4().hex[:8]}"
        self.nodes = [f"{self.name}-worker-{rank}" for rank in range(RANKS)]

    def prepare(self) -> None:
        """Make the network and the volume, with the configuration in it, owned by the image's user."""
        self.engine.text("network", "create", self.name)
        self.engine.text("volume", "create", self.name)
        holder = f"{self.name}-holder"
        user = self.image.user or "0"
        give = f"mkdir -p /shared/config && chown -R {user} /shared"
        mount = ["--volume", f"{self.name}:/shared"]
        with TemporaryDirectory() as scratch:
            _configuration(Path(scratch))
            self.engine.text("create", "--name", holder, *mount, self.image.id)
            self.engine.text("cp", f"{scratch}/.", f"{holder}:/shared/config")
        self.engine.text("rm", holder)
        command = ["run", "--rm", "--user", "0", *mount, "--entrypoint", "/bin/sh", self.image.id, "-c", give]
        self.engine.text(*command)

    def act(self) -> Iterator[Verdict]:
        """Yield the verdicts, one after the other; stop at the first that is not PASS."""
        self._start()
        self.say(f"two containers on the network {self.name} train {STEPS} steps")
        if not wait_for(lambda: self._step() >= KILL_AFTER or not self._running(), STEP_SECONDS):
            yield self._fail(f"training: no step {KILL_AFTER} after {STEP_SECONDS} s")
            return
        reached = self._step()
        if reached < KILL_AFTER:
            yield self._fail(f"training: it ended at step {reached}")
            return
        yield _pass(f"training: {RANKS} containers found each other by name", [self._line(reached)])
        self.engine.text("kill", self.nodes[1])
        self.say(f"killed {self.nodes[1]} after step {reached}")
        survived = wait_for(lambda: self.nodes[0] not in self._running(), STEP_SECONDS)
        committed = self._checkpoints()
        self._remove()
        if not survived or not committed:
            text = (
                "killed: the other container did not end"
                if not survived
                else "killed: no checkpoint is there"
            )
            yield self._fail(text)
            return
        yield _pass("checkpoint: on the volume after the kill", [", ".join(committed)])
        self._start()
        ended = wait_for(lambda: not self._running(), END_SECONDS)
        codes = [self._code(node) for node in self.nodes]
        if not ended or any(codes):
            yield self._fail(f"resume: it ended with {codes}" if ended else "resume: it did not end")
            return
        yield self._resumed(int(committed[-1].removeprefix("step-")))

    def clear(self) -> None:
        """Remove what was made."""
        self._remove()
        self.engine.run("rm", "--force", f"{self.name}-holder")
        self.engine.run("network", "rm", self.name)
        self.engine.run("volume", "rm", "--force", self.name)

    def _start(self) -> None:
        for node in self.nodes:
            variables = {
                "PET_NNODES": f"{RANKS}:{RANKS}", "PET_NPROC_PER_NODE": "1", "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"{self.nodes[0]}:23456", "PET_RDZV_ID": self.name,
                "PET_MAX_RESTARTS": "0",
                "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "TRAINYARD_CPUS": "1", "HOME": "/tmp",
                "TRAINYARD_RUN": "/shared/runs/test", "TRAINYARD_DATA": "/shared/data",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            }  # fmt: skip
            words = ["run", "--detach", "--name", node, "--hostname", node, "--network", self.name]
            words += ["--volume", f"{self.name}:/shared", "--read-only", "--tmpfs", "/tmp:mode=1777,exec"]
            words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--shm-size", "256m"]
            for key, value in variables.items():
                words += ["--env", f"{key}={value}"]
            self.engine.text(*words, self.image.id, "-m", "training.pretrain", "--config", "/shared/config")

    def _remove(self) -> None:
        for node in self.nodes:
            self.engine.run("rm", "--force", "--volumes", node)

    def _running(self) -> list[str]:
        said = self.engine.text("ps", "--filter", f"name={self.name}-worker", "--format", "{{.Names}}")
        return said.split()

    def _code(self, node: str) -> int:
        return int(self.engine.text("inspect", "--format", "{{.State.ExitCode}}", node).strip())

    def _look(self, script: str) -> str:
        """Return what a shell says that sees the volume."""
        mount = ["--volume", f"{self.name}:/shared:ro", "--network", "none"]
        words = ["run", "--rm", *mount, "--entrypoint", "/bin/sh", self.image.id, "-c", script]
        return self.engine.run(*words).stdout

    def _metrics(self) -> list[dict[str, float]]:
        said = self._look("cat /shared/runs/test/metrics.jsonl 2>/dev/null")
        return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]

    def _step(self) -> int:
        return max((int(line["step"]) for line in self._metrics() if "loss" in line), default=0)

    def _checkpoints(self) -> list[str]:
        said = self._look("ls -d /shared/runs/test/checkpoints/step-*/MANIFEST.json 2>/dev/null")
        names = [line.split("/")[-2] for line in said.split()]
        whole = [name for name in names if name.removeprefix("step-").isdigit()]
        return sorted(whole, key=lambda name: int(name.removeprefix("step-")))

    def _line(self, step: int) -> str:
        losses = {int(line["step"]): line["loss"] for line in self._metrics() if "loss" in line}
        first = min(losses)
        return f"loss {losses[first]:.3f} at step {first}, {losses[max(losses)]:.3f} at step {step}"

    def _resumed(self, committed: int) -> Verdict:
        """Judge the whole curve: it went on behind the checkpoint, ended where it should, and has fallen."""
        losses = {int(line["step"]): float(line["loss"]) for line in self._metrics() if "loss" in line}
        logs = "".join(self.engine.run("logs", node).stdout for node in self.nodes)
        again = [step for step in range(1, STEPS + 1) if step not in losses]
        first, last = losses.get(1, 0.0), losses.get(STEPS, float("inf"))
        if again or last >= first or "resum" not in logs.lower():
            return self._fail(f"resume: steps missing {again[:5]}, loss {first:.3f} to {last:.3f}")
        told = next((line for line in logs.splitlines() if "resum" in line.lower()), "")
        evidence = [
            told.strip(),
            f"{STEPS} steps, loss {first:.3f} to {last:.3f}, both containers ended with 0",
        ]
        return _pass(f"resume: from step {committed}", evidence)

    def _fail(self, summary: str) -> Verdict:
        evidence = []
        for node in self.nodes:
            done = self.engine.run("logs", "--tail", "6", node)
            evidence += [f"{node}: {line}" for line in (done.stdout + done.stderr).splitlines()]
        return Verdict(State.FAIL, summary, evidence)


def _configuration(directory: Path) -> None:
    """Write the first cell's three files, made small."""
    yaml = YAML(typ="rt")
    for name, source in FILES.items():
        data = yaml.load((repo.root() / source).read_text(encoding="utf-8"))
        for section, values in CHANGES.items():
            if section in data:
                data[section].update(values)
        if "sequence_length" in data:
            data["sequence_length"] = 64
        out = io.StringIO()
        yaml.dump(data, out)
        (directory / name).write_text(out.getvalue(), encoding="utf-8")
        (directory / name).chmod(0o644)
    directory.chmod(0o755)


def _pass(summary: str, evidence: list[str]) -> Verdict:
    return Verdict(State.PASS, summary, evidence)
