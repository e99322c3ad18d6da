"""Values that the shell completes: cells, runs of this checkout, and jobs of the current namespace."""

import re
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from tools.core import UserError

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Source = Callable[[click.Context], list[str]]


def of(shown: str) -> Complete | None:
    """Return what completes an argument by words of its help such as `[JOB|CELL]`, else files; None for others."""
    sources = [source for word, source in SOURCES.items() if word in re.findall(r"[A-Z]+", shown)]
    if not sources:
        return None

    def complete(ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        names = [name for source in sources for name in _names(source, ctx) if name.startswith(typed)]
        return [CompletionItem(name) for name in names] or [CompletionItem(typed, type="file")]

    return complete


def _names(source: Source, ctx: click.Context) -> list[str]:
    """Return the names of a source. A shell shows no errors while it completes."""
    try:
        return source(ctx)
    except (UserError, OSError):
        return []


def _cells(_ctx: click.Context) -> list[str]:
    from tools.cells import locate

    return [name for cell in locate.cells() for name in (cell.removeprefix("overlays/"), cell)]


def _runs(_ctx: click.Context) -> list[str]:
    from tools.core import repo

    return sorted(path.name for path in (repo.local() / "runs").glob("[!.]*") if path.is_dir())


def _jobs(ctx: click.Context) -> list[str]:
    from tools.job.snapshot import lookup
    from tools.kube import Kubectl, name_of

    found = lookup.jobs(Kubectl(ctx.params.get("context"), ctx.params.get("namespace")))
    return sorted(name_of(one.top) for one in found.topmost)


SOURCES: dict[str, Source] = {"CELL": _cells, "RUN": _runs, "SOURCE": _runs, "JOB": _jobs}
