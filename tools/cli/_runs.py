"""The directory of the run that a user names."""

from pathlib import Path

from tools.cells.kustomize_graph import is_kustomization
from tools.core import UserError, repo


def run_directory(run: str | None, name: str | None = None) -> Path:
    """Return the directory of the run that is meant, also of `yard run --name`. UserError names the nearest one."""
    runs = repo.local() / "runs"
    end = "" if name is None else f"-{name}"
    if run is None:
        return runs / _only([one for one in _names(runs) if one.endswith(end)], end)
    for candidate in (runs / f"{run}{end}", Path(run).expanduser()):
        if candidate.is_dir() and not is_kustomization(candidate) and candidate.name.endswith(end):
            return candidate.resolve()
    names = _names(runs)
    known = f"runs: {', '.join(names) or 'none yet; make train makes one'}"
    if run.startswith(("/", ".", "~")) and not Path(run).expanduser().exists():
        raise UserError(f"{run}: no such directory", known)
    if Path(run).is_file():
        raise UserError(f"{run}: is a file, not the directory of a run", known)
    if "/" in run or is_kustomization(Path(run)):
        from tools.cells import locate  # of little use to the name of a run, and slow to import
        from tools.workload import kinds

        manifests = locate.rendered(run)
        run = kinds.job_of(manifests).name
        if (runs / f"{run}{end}").is_dir():
            return runs / f"{run}{end}"
        words = [] if name is None else ["--name", name]
        message = f"{manifests.source} has not been trained here" + (f" with --name {name}" if name else "")
        raise UserError(message, f"make train, or yard run {' '.join([manifests.source, *words])}")
    raise UserError(f"no such run: {run}{end}", repo.did_you_mean(f"{run}{end}", names) or known)


def _names(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.glob("*") if path.is_dir() and not path.name.startswith("."))


def _only(names: list[str], end: str) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        what = f"no run with --name {end[1:]}" if end else "no run yet"
        raise UserError(what, "make train trains the first one" if not end else "yard checkpoint list")
    raise UserError("which run?", "runs: " + ", ".join(names))
