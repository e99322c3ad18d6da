"""For every test run: a voice past the capture, and a last line that counts passed, failed and skipped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Prints the count after pytest's own closing lines, which give the reason of each skip."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.collectonly:
        return
    count = {
        outcome: len(reporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "error", "skipped")
    }
    failed = count["failed"] + count["error"]
    reporter.write_line(f"{count['passed']} passed, {failed} failed, {count['skipped']} skipped")


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that prints a line at once, past pytest's capture, also from a process of pytest-xdist."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", end="", file=sys.stderr, flush=True)

    return line
