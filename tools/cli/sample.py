"""Write text from a run's checkpoint.

RUN is the name of a run below local/runs, a run's directory, or a cell. It can be left out when only one run
exists. Without --prompt, the first of the configuration's sample.prompts is used.

\b
Exit codes: 0 text was written, 1 the checkpoint is damaged, 2 bad input or no checkpoint.
Examples:
  yard sample --prompt "def main("
  yard sample cpu-llama-tiny-train --prompt "import " --temperature 0 --max-new-tokens 80
  yard sample overlays/cpu/llama-tiny --prompt "class Queue" --step 200
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from tools.cells import locate
from tools.cells.kustomize_graph import is_kustomization
from tools.core import output, repo
from tools.core.errors import UserError
from tools.kube.manifests import name_of
from training.run.directory import read_json


@click.command(help=__doc__, short_help="write text from a run's checkpoint")
@click.argument("run", required=False)
@click.option("--prompt", metavar="TEXT", help="The text to continue.")
@click.option("--max-new-tokens", type=click.IntRange(1), metavar="N", help="Write at most N tokens.")
@click.option(
    "--temperature", type=click.FloatRange(0), metavar="X", help="0 always takes the most likely token."
)
@click.option("--seed", type=int, metavar="N", help="The same seed gives the same text.")
@click.option(
    "--step", type=click.IntRange(0), metavar="N", help="Use the checkpoint of step N instead of the newest."
)
def command(
    run: str | None,
    prompt: str | None,
    max_new_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    step: int | None,
) -> None:
    directory = run_directory(run)
    options = {"max-new-tokens": max_new_tokens, "temperature": temperature, "seed": seed, "step": step}
    prompt = _configured_prompt(directory) if prompt is None else prompt
    argv = [sys.executable, "-m", "training.sample", "--run", str(directory), f"--prompt={prompt}"]
    argv += [f"--{name}={value}" for name, value in options.items() if value is not None]
    done = subprocess.run(
        argv, cwd=repo.root(), check=False, capture_output=True, text=True, errors="replace"
    )
    output.block(done.stdout, raw=True)  # what the model writes
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    message = lines[-1].removeprefix("error: ") if lines else f"no text (exit code {done.returncode})"
    raise UserError(message, code=2 if done.returncode == 2 else 1)


def _configured_prompt(directory: Path) -> str:
    """Return the first of sample.prompts in the run's own configuration."""
    try:
        saved = read_json(directory / "run.json")
        return str(saved["config"]["sample"]["prompts"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        message = f"{repo.shown(directory)} has no sample.prompts in its configuration"
        raise UserError(message, 'give one with --prompt "TEXT"') from None


def run_directory(run: str | None) -> Path:
    """Return the directory of the run that the user means. Raises UserError with the nearest name."""
    runs = repo.local() / "runs"
    names = sorted(path.name for path in runs.glob("*") if path.is_dir() and not path.name.startswith("."))
    if run is None:
        return runs / _only(names)
    for candidate in (runs / run, Path(run).expanduser()):
        if candidate.is_dir() and not is_kustomization(candidate):
            return candidate.resolve()
    if "/" in run:
        manifests = locate.rendered(run)
        run = name_of(manifests.job())
        if (runs / run).is_dir():
            return runs / run
        raise UserError(
            f"{manifests.source} has not been trained here", f"make train, or yard run {manifests.source}"
        )
    known = f"runs: {', '.join(names) or 'none yet; make train makes one'}"
    raise UserError(f"no such run: {run}", repo.did_you_mean(run, names) or known)


def _only(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError("no run yet", "make train trains the first one")
    raise UserError("which run?", "runs: " + ", ".join(names))
