"""Sends what a run logs to its trackers: `python -m training.track --run DIR [--tracker NAME]`.

Rank 0 starts one such process for each tracker of the section `track`. The queue is the run's own files, so nothing
waits for a tracker and nothing is dropped: `<run>/track/<tracker>.json` says what the tracker has. When a run
continues, its process continues there, in the same run of the tracker. Started by hand, it sends what a tracker missed
and ends: 0 if the tracker has everything then, 1 if not, 2 for a run without trackers.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from training.run.directory import RunDir, flat, read_json
from training.run.failure import one_line
from training.trackers.rows import MOST, SETTINGS, Sent, sources
from training.trackers.services import SERVICES, About, Service

EVERY = 2.0  # seconds between two looks at the run's files
LONGEST_PAUSE = 120.0  # seconds before a tracker that failed is tried again
NICE = 10  # a lower priority than the ranks have
_LONGEST_VALUE, _MOST_KEYS = 500, 1000
_LOST = "what is missing is sent later"


class Sender:
    """Sends one run to one tracker. It complains once about a series of failures, and tries again later."""

    def __init__(self, run: RunDir, name: str, settings: Mapping[str, Any], say: TextIO) -> None:
        self._run, self._name, self._settings, self._say = run, name, settings, say
        self._file = run.track / f"{name}.json"
        self._sent = Sent.read(self._file, str(settings.get("run") or run.name))
        self._sources = sources(run, self._sent.steps)
        self._service: Service | None = None
        self._pause, self._again, self._complained = EVERY, 0.0, False

    def send(self) -> bool:
        """Send what is new, and return whether the tracker has everything now."""
        if time.monotonic() < self._again:
            return False
        try:
            self._send()
        except Exception as problem:  # noqa: BLE001 - whatever a tracker raises, the run trains on
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._again = time.monotonic() + self._pause
            if not self._complained:
                self.say(f"does not take this run: {one_line(f'{type(problem).__name__}: {problem}')}; {_LOST}")
            self._complained = True
            return False
        self._pause, self._complained = EVERY, False
        return True

    def _send(self) -> None:
        service = self._service
        if service is None:
            service = SERVICES[self._name](self._settings[self._name], about(self._run, self._settings))
            service.open(self._sent.id, self._keep)
            self._service, self._sent.url = service, service.url
        if not self._sent.described:
            service.describe()
            self._sent.described = True
            self._sent.write(self._file)
        for name, source in self._sources.items():
            while rows := source.rows()[:MOST]:
                service.send(rows)
                source.accept(rows[-1])
                self._sent.steps[name] = source.step
                self._sent.write(self._file)

    def _keep(self, known: str) -> None:
        self._sent.id = known
        self._sent.write(self._file)

    def say(self, text: str) -> None:
        """Print a line in the log of the pod."""
        self._say.write(f"tracker {self._name}: {text}\n")
        self._say.flush()

    def end(self, finished: bool | None) -> bool:
        """Send the rest, tell the tracker how the run ended, and return whether it has everything."""
        self._again = 0.0
        if self.send() and self._service is not None:
            try:
                self._service.close(finished)
            except Exception as problem:  # noqa: BLE001 - as above
                self.say(f"was not told that the run ended: {one_line(str(problem))}")
        return self.count_missing()

    def count_missing(self) -> bool:
        """Say how many rows the tracker does not have, and return whether there are none."""
        left = sum(len(source.rows()) for source in self._sources.values())
        if left:
            self.say(f"{left} rows were not sent; python -m training.track --run {self._run.path} sends them")
        return not left


def about(run: RunDir, settings: Mapping[str, Any]) -> About:
    """Return what a tracker is told of a run besides its values. run.json holds no secrets."""
    info = read_json(run.run)
    versions = info.get("versions")
    kept = {key: info.get(key) for key in ("commit", "dataset", "config_digest", "world_size", "sharding", "precision")}
    kept |= versions if isinstance(versions, dict) else {}
    told = {key: str(value)[:_LONGEST_VALUE] for key, value in kept.items() if value is not None}
    config = info.get("config")
    keys = flat(config if isinstance(config, dict) else {})
    values = {key: str(value)[:_LONGEST_VALUE] for key, value in keys.items() if value not in (None, {})}
    parameters = dict(list({**told, **values}.items())[:_MOST_KEYS])
    name = str(settings.get("run") or run.name)
    found = {"run": name, **{tag: told[key] for tag, key in (("commit", "commit"), ("data", "dataset")) if key in told}}
    tags = {**{f"trainyard.{key}": value for key, value in found.items()}, **(settings.get("tags") or {})}
    return About(name, run.track.resolve(), parameters, tags, told.get("commit"))


def follow(sender: Sender, run: RunDir, within: int) -> bool:
    """Send what is new until the trainer ends, then the rest within a bounded time, whatever the tracker does.

    Return whether the tracker has everything.
    """
    ended = threading.Event()
    threading.Thread(target=_watch, args=(ended, sender, within), daemon=True).start()
    while not ended.wait(EVERY):
        sender.send()
    return sender.end(run.report.exists())


def _watch(ended: threading.Event, sender: Sender, within: int) -> None:
    """Wait until the trainer has ended or has closed standard input; end this process some time later."""
    parent, stdin = os.getppid(), sys.stdin.fileno()
    while os.getppid() == parent and not (select.select([stdin], [], [], EVERY)[0] and not os.read(stdin, 1)):
        pass
    ended.set()
    time.sleep(within)
    sender.say(f"did not answer within {within} s")
    sender.count_missing()
    os._exit(1)


def _quiet(run: RunDir, name: str) -> None:
    """Let all that a tracker's library prints go to a file of the run."""
    run.logs.mkdir(parents=True, exist_ok=True)
    log = os.open(run.logs / f"track-{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    for number in (1, 2):
        os.dup2(log, number)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m training.track", description=__doc__)
    parser.add_argument("--run", required=True, type=Path, help="run directory")
    parser.add_argument("--tracker", choices=sorted(SERVICES), help="only this one")
    parser.add_argument(
        "--within", type=int, help="follow the run until standard input ends, then send the rest in N s"
    )
    given = parser.parse_args()
    run = RunDir(given.run)
    try:
        settings = read_json(run.track / SETTINGS)
        names = [name for name in SERVICES if isinstance(settings.get(name), dict) and given.tracker in (None, name)]
        if not names:
            raise ValueError("this tracker is not in the run's section `track`")
        about(run, settings)
    except (OSError, ValueError) as problem:
        print(f"error: {run.track / SETTINGS}: {problem}", file=sys.stderr)
        sys.exit(2)
    os.nice(NICE)
    complete, voice = True, os.fdopen(os.dup(2), "w")
    for name in names:
        _quiet(run, name)
        sender = Sender(run, name, settings, voice)
        if given.within is not None:
            complete &= follow(sender, run, given.within)
        else:
            complete &= sender.end(True if run.report.exists() else None)
    sys.exit(not complete)


if __name__ == "__main__":
    main()
