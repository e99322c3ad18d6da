"""For every test run: bounded threads, Ctrl-C as at a terminal, torch on loopback only, uncaptured output, a closing
count, suites on request.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

# These suites are collected only when their path is given. The first ones start a browser, clusters or servers.
STARTING = ("browser", "cluster", "docker", "flux", "monitoring")
ON_REQUEST = tuple(Path(__file__).parent / "tests" / name for name in (*STARTING, "audit", "security"))
SECONDS = 3600
OUTCOMES = ("passed", "failed", "error", "rerun", "skipped")
GUARD = str(Path(__file__).parent / "training" / "guard")  # read with every `import torch` of a test


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of pytest-xdist its share of the cores, before torch or tokenizers start threads.

    A shell lets what it starts in the background ignore Ctrl-C, which programs inherit: tests that send it would wait.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the workers inherit this process's environment
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TRAINYARD_CPUS"):
        os.environ.setdefault(name, str(share))
    sys.path.append(GUARD)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [GUARD, os.environ.get("PYTHONPATH")]))
    os.environ.update(TRAINYARD_LOOPBACK="1", GLOO_SOCKET_IFNAME="lo0" if sys.platform == "darwin" else "lo")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the suites whose path was not given."""
    home = _on_request(collection_path)
    asked = (Path(str(word).split("::")[0]).resolve() for word in config.args)
    return None if home is None or home in map(_on_request, asked) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of a cluster or an engine more time: the first one starts everything, and may build it.

    The longest tests start first, so that no worker waits for another one at the end.
    """
    items.sort(key=lambda item: item.path.parent.name != "e2e")
    for item in items:
        home = _on_request(item.path)
        starts = home is not None and home.name in STARTING
        if starts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


def _on_request(path: Path) -> Path | None:
    return next((home for home in ON_REQUEST if path == home or home in path.parents), None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Print the counts after pytest's closing lines, which give the reason of each skip."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.collectonly:
        return
    count = {outcome: len(reporter.stats.get(outcome, [])) for outcome in OUTCOMES}
    failed = count["failed"] + count["error"]
    again = f"{count['rerun']} run again, " if count["rerun"] else ""
    reporter.write_line(f"{count['passed']} passed, {failed} failed, {again}{count['skipped']} skipped")


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that prints a line immediately, past pytest's capture, also in a pytest-xdist worker."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", end="", file=sys.stderr, flush=True)

    return line
