"""The engine as a fixture. `make test-images` runs these tests; `make test` passes them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.sandbox import CannotStart as SandboxCannotStart
from tests.cluster.sandbox import Unsupported
from tests.docker.engine import REGISTRY, Harness
from tests.docker.packages import CannotStart

HERE = Path(__file__).parent
SECONDS = 3600


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect these tests only when they are asked for by path: they start an engine and build images."""
    asked = (Path(str(word).split("::")[0]).resolve() for word in config.args)
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give time to whatever test comes first, which fetches the engine and makes the base image."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A private engine with a registry; skipped, with the reason, where none can be had."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", end="", flush=True)

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
    """Writes a directory with a small image: Python and one file. `tail` ends its Dockerfile."""

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
    """Where the registry is, as images are named for it."""
    return REGISTRY
