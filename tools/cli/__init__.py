"""The `yard` command: finds the command's module by its name and imports only that one."""

import errno
import functools
import gc
import io
import itertools
import os
import sys
from pathlib import Path

import click

from tools import __version__
from tools.cli._lazy_group import LazyGroup
from tools.core import UserError, output, repo

COMMANDS = Path(__file__).resolve().parent
# Exit codes for what a file system answers: a path that it cannot have; rights, and a disk that is full or broken.
STORAGE = {errno.ENAMETOOLONG: 2} | dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE), 3
)

EPILOG = """\b
Examples:
  yard run overlays/cpu/llama-tiny            train the first cell on this machine
  yard sample cpu-llama-tiny-train --prompt "def main("
  yard wiring overlays/cpu/llama-tiny         prove that its pods form one job
  yard render overlays/cpu/llama-tiny         print what a cluster would be given
  yard preflight --all                        check every cell before money is spent
  yard job why                                why the job on the cluster does not train

\b
Exit codes: 0 good, 1 bad verdict or failed run, 2 bad input, 3 cannot tell, 130 after Ctrl-C."""


@click.command(
    cls=LazyGroup,
    directory=COMMANDS,
    package="tools.cli",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="yard")
def yard() -> None:
    """Train and check cells: one hardware times one model, a directory under overlays/."""


def main(arguments: list[str] | None = None) -> None:
    """Run `yard` and exit with its code. Every error that the user can correct is one line."""
    sys.excepthook = output.exception
    gc.set_threshold(100_000)  # the answers of a large cluster are many objects without cycles
    for stream in (sys.stdout, sys.stderr):  # the terminal's encoding may lack characters of a log
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(invoke(arguments))


def invoke(arguments: list[str] | None = None) -> int:
    """Run `yard` with `arguments` (default: the process's own) and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    words = itertools.takewhile(lambda word: not word.startswith("-"), given)
    try:
        with output.attended(" ".join(("yard", *itertools.islice(words, 2)))):
            code = yard.main(args=arguments, prog_name="yard", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as problem:
        output.error(problem.message, problem.hint)
        return problem.code
    except click.exceptions.NoArgsIsHelpError as problem:
        output.notes(problem.format_message())
        return 2
    except click.UsageError as problem:
        hint = _option_hint(problem, "--" in given) if isinstance(problem, click.NoSuchOption) else _help_hint(problem)
        output.error(_usage_message(problem), hint)
        return 2
    except click.ClickException as problem:
        output.error(problem.format_message())
        return problem.exit_code
    except (KeyboardInterrupt, click.Abort):
        output.note("stopped")
        return 130
    except (MemoryError, RecursionError):
        output.error("the input needs more memory or has more parts in each other than this program can hold")
        return 2
    except ModuleNotFoundError as problem:
        output.error(f"this needs {problem.name}, which is not installed", repo.how_to_install("train"))
        return 3
    except BrokenPipeError:
        # The reader has closed the pipe: drop what is buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:
        if problem.filename is None or problem.errno not in STORAGE:
            raise
        output.error(f"{os.fsdecode(problem.filename)}: {problem.strerror}")
        return STORAGE[problem.errno]
    except Exception as problem:
        trainer = sys.modules.get("training.config")  # not imported here: it is slow
        if trainer is None or not isinstance(problem, trainer.ConfigError):
            raise
        output.error(str(problem))
        return 2


def _usage_message(problem: click.UsageError) -> str:
    if isinstance(problem, click.NoSuchOption):
        return f"no such option: {problem.option_name}"
    return functools.reduce(str.removesuffix, [".", "\n"], problem.format_message())


def _option_hint(problem: click.NoSuchOption, divided: bool) -> str | None:
    """Return what an unknown option may mean: the user's own command may have it, if no `--` `divided` it from ours."""
    near, parameters = _near_hint(problem), problem.ctx.command.params if problem.ctx else []
    if divided or not any(one.name == "words" and "-- COMMAND" in one.human_readable_name for one in parameters):
        return near
    return f"{near}; if COMMAND has it, write -- before COMMAND"


def _near_hint(problem: click.NoSuchOption) -> str | None:
    """Return the key of the configuration that an unknown option means, else the nearest option."""
    command = problem.ctx.command if problem.ctx else None
    if command is not None and any("--set" in parameter.opts for parameter in command.params):
        from training.config.loader import nearest_key

        key = nearest_key(problem.option_name.lstrip("-").replace("-", "_"))
        if key is not None:
            return f"a key of the configuration is set with --set {key}=VALUE"
    return f"did you mean {problem.possibilities[0]}?" if problem.possibilities else _help_hint(problem)


def _help_hint(problem: click.UsageError) -> str | None:
    return f"see {problem.ctx.command_path} --help" if problem.ctx is not None else None
