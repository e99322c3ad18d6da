"""The engine as a fixture. `make test-images` runs these tests, `make test` does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.sandbox import CannotStart as SandboxCannotStart
from tests.cluster.sandbox import Unsupported
from tests.docker.engine import REGISTRY, Harness
from tests.docker.packages import CannotStart
from tests.parts.gomodule import Progress


@pytest.fixture(scope="session")
def engine(say: Progress) -> Iterator[Harness]:
    """A private engine with a registry, or a skip with the reason."""
    try:
        harness = Harness(say)
    except (CannotStart, Unsupported) as problem:
        pytest.skip(f"no private Docker engine: {problem}")
    except SandboxCannotStart as problem:
        pytest.fail(str(problem))
    yield harness
    harness.close()


@pytest.fixture
def small(engine: Harness, tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a directory with a small image. `tail` ends its Dockerfile."""

    def make(tail: str = "", text: str = "print('step 1')\n", name: str = "small") -> Path:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        (directory / "app.py").write_text(text)
        (directory / "Dockerfile").write_text(
            f"FROM {engine.base()}\nRUN ln -s python3 /usr/bin/python && mkdir /app\nCOPY app.py /app/\n"
            f'USER 1000:1000\nENTRYPOINT ["python3", "/app/app.py"]\n{tail}'
        )
        return directory

    return make


@pytest.fixture(scope="session")
def registry() -> str:
    """The registry in the names of images."""
    return REGISTRY
