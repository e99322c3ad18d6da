"""The close of every test run: its last line counts what passed, failed and was skipped."""

from __future__ import annotations

from collections.abc import Generator

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
