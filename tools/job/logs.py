"""The logs of a job's pods: merged by time, followed, filtered, or only the first failure."""

import queue
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from subprocess import CompletedProcess

from tools.core import UserError
from tools.job.diagnosis import log_causes
from tools.job.snapshot import JobPod, Line, log_lines
from tools.job.snapshot.pod_exec import in_pod
from tools.kube import Kubectl
from tools.kube.kubectl import each

BEFORE = 5  # lines printed before a failure
AFTER = 15


@dataclass(frozen=True)
class Wanted:
    """The wanted lines: of the `previous` container, since `5m`, the last `tail`, matching `grep`."""

    previous: bool = False
    since: str | None = None
    tail: int | None = None
    grep: re.Pattern[str] | None = None

    def words(self) -> list[str]:
        """Return the options of `kubectl logs`."""
        found = ["--timestamps"]
        found += [f"--since={self.since}"] if self.since else []
        return [*found, f"--tail={self.tail if self.tail is not None else -1}"]

    def matches(self, line: Line) -> bool:
        return self.grep is None or self.grep.search(line.text) is not None


def once(kubectl: Kubectl, pods: list[JobPod], wanted: Wanted) -> tuple[Iterator[Line], dict[str, str]]:
    """Return the pods' lines merged by time, and the reason for each pod whose log could not be read."""
    logs, unseen = [], {}

    def read(pod: JobPod) -> CompletedProcess[str]:
        name, previous = pod.previous if wanted.previous else (pod.name, ())
        return kubectl.run("logs", f"--container={pod.container_name}", *previous, *wanted.words(), names=[name])

    for pod, done in zip(pods, each(read, pods), strict=True):
        if done.returncode == 0:
            logs.append(log_lines.read(done.stdout, pod.name))
        else:
            unseen[pod.name] = log_lines.last_line(done.stderr)
    return filter(wanted.matches, log_lines.merged(logs)), unseen


def follow(kubectl: Kubectl, pods: list[JobPod], wanted: Wanted) -> Iterator[Line]:
    """Yield the pods' new lines until every container has ended."""
    lines: queue.Queue[Line | None] = queue.Queue(maxsize=10000)

    def read(pod: JobPod, texts: Iterator[str]) -> None:
        try:
            for text in texts:
                lines.put(log_lines.line_of(text, pod.name))
        finally:
            lines.put(None)

    for pod in pods:
        words = ("logs", f"--container={pod.container_name}", "--follow", *wanted.words())
        texts = kubectl.lines(*words, names=[pod.name])
        threading.Thread(target=read, args=(pod, texts), daemon=True).start()
    open_ = len(pods)
    while open_:
        line = lines.get()
        if line is None:
            open_ -= 1
        elif wanted.matches(line):
            yield line


def from_volume(kubectl: Kubectl, pod: JobPod, rank: int, tail: int | None) -> list[Line]:
    """Return the lines of a rank's log in the run directory, read through a pod that mounts it."""
    count = f"-n {tail}" if tail is not None else "-n +1"
    file = f'"$TRAINYARD_RUN/logs/rank-{rank:05d}.log"'
    text = in_pod(kubectl, pod, "sh", "-c", f"[ -e {file} ] || exit 0; echo; exec tail {count} {file}")
    if not text:
        hint = "yard job exec JOB -- sh -c 'ls \"$TRAINYARD_RUN/logs\"' lists the ranks with a log"
        raise UserError(f"the run directory has no log of rank {rank}", hint, code=3)
    return [Line(line, pod=pod.name) for line in text.splitlines()[1:]]


def first_failure(lines: Iterable[Line]) -> tuple[list[Line], log_causes.Found] | None:
    """Return the lines around the first failure that is not a consequence of another, None without one."""
    everything = list(lines)
    found = log_causes.first_cause(everything)
    if found is None:
        return None
    of_pod = [line for line in everything if line.pod == found.line.pod]
    # A line of JSON, or one that a collector has marked, was found by its message.
    same = (index for index, line in enumerate(of_pod) if line is found.line)
    near = (index for index, line in enumerate(of_pod) if found.line.text in line.text)
    at = next(same, next(near, len(of_pod) - 1))
    return of_pod[max(0, at - BEFORE) : at + AFTER], found
