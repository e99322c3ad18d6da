"""A real dataset from the tiny corpus, for its tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.config import load_texts
from training.prepare import prepare_for


@pytest.fixture(scope="session")
def dataset(texts: dict[str, tuple[str, str]], data_root: Path) -> Path:
    return prepare_for(load_texts(texts), data_root, lambda line: None)
