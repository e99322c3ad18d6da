"""Command line of `python -m training.stage`: `fetch`, `receive` and `present`.

Progress goes to standard error, the result as one line of JSON to standard output. Exit codes: 0 done, 1 a
source that does not answer (another attempt continues), 2 what another attempt cannot change, 3 a package is
missing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from training.data.errors import DataError
from training.data.retries import GaveUp, Stopped
from training.stage import push
from training.stage.arrive import Order, arrive
from training.stage.origins import items_of
from training.stage.present import KINDS, present


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run one command and exit with its code."""
    given = _parser().parse_args()
    signal.signal(signal.SIGTERM, _stop)  # process 1 of a container has no default handler
    try:
        answer = given.call(given)
    except GaveUp as error:
        sys.exit(_failed(str(error), 1))
    except Stopped:
        sys.exit(_failed("stopped", 1))
    except DataError as error:
        sys.exit(_failed(str(error), 2))
    except ModuleNotFoundError as error:
        sys.exit(_failed(f"this needs {error.name}, which is not installed", 3))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(_failed(f"{where}{error.strerror or error}", 2))
    print(json.dumps(answer), flush=True)


def _failed(message: str, code: int) -> int:
    say(f"error: {message}")
    return code


def _stop(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.stage", description=__doc__)
    commands = parser.add_subparsers(required=True)
    fetch = commands.add_parser("fetch", help="bring a source to a directory")
    fetch.add_argument("source")
    fetch.add_argument("--include", action="append", default=[], metavar="PATTERN")
    fetch.add_argument("--no-sign-request", action="store_true", help="read S3 without credentials")
    fetch.set_defaults(call=_fetch)
    receive = commands.add_parser("receive", help="bring what the standard input sends to a directory")
    receive.set_defaults(call=_receive)
    for each in (fetch, receive):
        each.add_argument("--to", required=True, type=Path, metavar="DIRECTORY")
        each.add_argument("--keep-packed", action="store_true", help="do not unpack archives")
        each.add_argument("--replace", action="store_true", help="replace other content of the directory")
    there = commands.add_parser("present", help="tell what is on the volume")
    for kind in KINDS:
        there.add_argument(f"--{kind}", action="append", default=[])
    there.set_defaults(call=_present)
    return parser


def _fetch(given: argparse.Namespace) -> object:
    say(f"listing {given.source}")
    source, items = items_of(given.source, tuple(given.include), given.no_sign_request, say)
    total = sum(item.size for item in items)
    say(f"{source}: {'1 file' if len(items) == 1 else f'{len(items):,} files'}, {total / 2**20:,.1f} MiB")
    order = Order(source, given.keep_packed, given.replace)
    return asdict(arrive(order, items, given.to, say, threading.Event()))


def _receive(given: argparse.Namespace) -> object:
    sender = push.Sender(sys.stdin.buffer)
    source, items = sender.announced()
    order = Order(source, given.keep_packed, given.replace, at_once=1, want=sender.want)
    return asdict(arrive(order, items, given.to, say, threading.Event()))


def _present(given: argparse.Namespace) -> object:
    return {"present": [present(kind, value) for kind in KINDS for value in getattr(given, kind)]}


main()
