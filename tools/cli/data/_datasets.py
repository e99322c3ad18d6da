"""What the data commands share: which datasets are meant, and the data package's errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.core import UserError, repo


def chosen(datasets: tuple[Path, ...]) -> list[Path]:
    """Return the named datasets, or all under local/data. Raises UserError when there are none."""
    root = repo.local() / "data"
    known = sorted(path.parent for path in root.glob("[!.]*/index.json"))
    if not datasets:
        if not known:
            raise UserError(f"no dataset under {repo.shown(root)} yet", "yard data prepare python-stdlib")
        return known
    return [_find(path, root, known) for path in datasets]


def _find(path: Path, root: Path, known: list[Path]) -> Path:
    for candidate in (path, root / path):
        if candidate.is_dir():
            if not (candidate / "index.json").exists():
                raise UserError(f"{path} is not a dataset: it has no index.json")
            return candidate
    raise UserError(f"no such dataset: {path}", repo.did_you_mean(path.name, [dataset.name for dataset in known]))


@contextmanager
def data_errors() -> Iterator[None]:
    """Turn the data package's error into the one that yard prints."""
    from training.data.errors import DataError

    try:
        yield
    except DataError as error:
        raise UserError(str(error)) from error
