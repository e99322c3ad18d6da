"""Write text from a run's checkpoint."""

import subprocess
import sys
from pathlib import Path

from tools.cli._runs import run_directory
from tools.core import UserError, output, repo
from training.run.directory import read_json


def command(
    run: str | None,
    name: str | None,
    prompt: str | None,
    max_new_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    step: int | None,
) -> None:
    directory = run_directory(run, name)
    options = {"max-new-tokens": max_new_tokens, "temperature": temperature, "seed": seed, "step": step}
    prompt = _configured_prompt(directory) if prompt is None else prompt
    argv = [sys.executable, "-m", "training.sample", "--run", str(directory), f"--prompt={prompt}"]
    argv += [f"--{name}={value}" for name, value in options.items() if value is not None]
    done = subprocess.run(argv, cwd=repo.root(), check=False, capture_output=True, text=True, errors="replace")
    output.block(done.stdout, raw=True)  # what the model writes
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode == 0:
        for line in lines:  # of all that libraries print there, what the trainer's sampler says
            if line.startswith("note: "):
                output.note(line.removeprefix("note: "))
        return
    message = lines[-1].removeprefix("error: ") if lines else f"no text (exit code {done.returncode})"
    raise UserError(message, code=2 if done.returncode == 2 else 1)


def _configured_prompt(directory: Path) -> str:
    """Return the first of sample.prompts in the run's own configuration."""
    try:
        return str(read_json(directory / "run.json")["config"]["sample"]["prompts"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        message = f"{repo.shown(directory)} has no sample.prompts in its configuration"
        raise UserError(message, 'give one with --prompt "TEXT"') from None
