"""A tiny model, a tiny corpus, and real runs of the trainer on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.training.jobs import Job, Jobs, tiny_texts, write_corpus
from training.config import Config, load_texts


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """A second thread gains nothing on matrices this small, and waits for its turn on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_CPUS", "1")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def texts(corpus: Path) -> dict[str, tuple[str, str]]:
    return tiny_texts(corpus)


@pytest.fixture
def start(texts: dict[str, tuple[str, str]], data_root: Path, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start the trainer: `start(name, nproc=2, overrides=(...))`. Every job is ended afterwards."""
    jobs = Jobs(texts, data_root, tmp_path)
    yield jobs.start
    jobs.close()


@pytest.fixture(scope="session")
def config(texts: dict[str, tuple[str, str]]) -> Config:
    return load_texts(texts)
