"""Write text from a run's checkpoint."""

import subprocess
import sys
from pathlib import Path

from tools.cells import locate
from tools.cells.kustomize_graph import is_kustomization
from tools.core import UserError, output, repo
from tools.workload import kinds
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
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    message = lines[-1].removeprefix("error: ") if lines else f"no text (exit code {done.returncode})"
    raise UserError(message, code=2 if done.returncode == 2 else 1)


def _configured_prompt(directory: Path) -> str:
    """Return the first of sample.prompts in the run's own configuration."""
    try:
        return str(read_json(directory / "run.json")["config"]["sample"]["prompts"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        message = f"{repo.shown(directory)} has no sample.prompts in its configuration"
        raise UserError(message, 'give one with --prompt "TEXT"') from None


def run_directory(run: str | None, name: str | None = None) -> Path:
    """Return the directory of the run that the user means. Raises UserError with the nearest name.

    `name` is the end of the run's name that `yard run --name` has given it.
    """
    runs = repo.local() / "runs"
    end = "" if name is None else f"-{name}"
    names = sorted(path.name for path in runs.glob("*") if path.is_dir() and not path.name.startswith("."))
    if run is None:
        return runs / _only([one for one in names if one.endswith(end)], end)
    for candidate in (runs / f"{run}{end}", Path(run).expanduser()):
        if candidate.is_dir() and not is_kustomization(candidate) and candidate.name.endswith(end):
            return candidate.resolve()
    if "/" in run or is_kustomization(Path(run)):
        manifests = locate.rendered(run)
        run = kinds.job_of(manifests).name
        if (runs / f"{run}{end}").is_dir():
            return runs / f"{run}{end}"
        words = [] if name is None else ["--name", name]
        message = f"{manifests.source} has not been trained here" + (f" with --name {name}" if name else "")
        raise UserError(message, f"make train, or yard run {' '.join([manifests.source, *words])}")
    known = f"runs: {', '.join(names) or 'none yet; make train makes one'}"
    raise UserError(f"no such run: {run}{end}", repo.did_you_mean(f"{run}{end}", names) or known)


def _only(names: list[str], end: str) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        what = f"no run with --name {end[1:]}" if end else "no run yet"
        raise UserError(what, "make train trains the first one" if not end else "yard checkpoint list")
    raise UserError("which run?", "runs: " + ", ".join(names))
