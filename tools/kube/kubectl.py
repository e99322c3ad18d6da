"""Run kubectl with one context and namespace, and turn its failures into errors.

kubectl is used instead of a client library because every user of a cluster has it with a working kubeconfig:
contexts, exec plugins (aws eks get-token) and proxies are those of the user's kubectl.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from tools.core import UserError, command_line, programs, tables

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
SECONDS = 60  # limit of a single command
AT_ONCE = 12  # kubectl processes, of about 45 MiB each
LONGEST = 1 << 16  # characters of a line
PAGE = re.compile(r"(?i)<(?:!doctype html|html|head)\b")
PROXY = "a proxy may have answered: check the address in the kubeconfig, HTTPS_PROXY and NO_PROXY"
_TABLE: dict[str, Any] = tables.load("kube/kubectl.yaml")
OPTIONS = frozenset(_TABLE["options"])  # those that yard passes
HINTS: dict[str, str] = _TABLE["hints"]  # parts of kubectl's messages, and their usual cause
CANNOT_SEE = 3
# The API of kinds of which a cluster has thousands of objects, or megabytes.
LONG = {**dict.fromkeys(("events", "nodes", "pods"), "/api/v1"), CRDS: "/apis/apiextensions.k8s.io/v1"}
NO_SERVER = "Unable to connect to the server"  # begins kubectl's message
WIDE = ("nodes", CRDS)  # they have no namespace
T = TypeVar("T")
R = TypeVar("R")
SELECTORS = {"--selector": "labelSelector", "--field-selector": "fieldSelector"}


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a context and namespace. None means the kubeconfig's default."""

    context: str | None = None
    namespace: str | None = None

    def words(self, *arguments: str, names: Sequence[str] = (), command: Sequence[str] | None = None) -> list[str]:
        """Return the command line for yard's own `arguments` and the `names` of objects.

        kubectl reads no name as an option: names are valid and, unless a `command` for a pod follows, behind
        `--`. Raises UserError for a name that Kubernetes does not allow.
        """
        for word in arguments:
            if word.startswith("-") and word.partition("=")[0] not in OPTIONS:
                raise UserError(f"kubectl {arguments[0]}: yard does not use {word[:80]!r}", code=CANNOT_SEE)
        for name in names:
            command_line.object_name(name)
        context = [f"--context={self.context}"] if self.context else []
        namespace = []
        if self.namespace:
            if not command_line.is_label(self.namespace):
                raise UserError(f"{self.namespace[:80]!r} is not a valid name of a namespace", "such as team-a")
            namespace = [f"--namespace={self.namespace}"]
        behind = [*names, "--", *command] if command is not None else ["--", *names] if names else []
        return ["kubectl", *context, *namespace, *arguments, *behind]

    def run(
        self,
        *arguments: str,
        names: Sequence[str] = (),
        command: Sequence[str] | None = None,
        stdin: str | None = None,
        seconds: float | None = SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return its output and exit code. `environment` is added to the process's own.

        Raises UserError if kubectl is missing, and with exit code 3 if it takes longer than `seconds`
        (None: no limit) or its answer is too large.
        """
        words = self.words(*arguments, names=names, command=command)
        try:
            done = command_line.captured(
                words,
                stdin=None if stdin is None else stdin.encode(),
                seconds=seconds,
                environment={**os.environ, **(environment or {})},
            )
        except FileNotFoundError:
            raise missing() from None
        except subprocess.TimeoutExpired:
            message = f"kubectl {arguments[0]}: no answer from the cluster for {seconds} s"
            raise UserError(message, HINTS["connection refused"], CANNOT_SEE) from None
        except command_line.TooLarge as problem:
            hint = "yard job logs --tail N reads less of a log"
            raise UserError(f"kubectl {arguments[0]}: the answer has {problem}", hint, CANNOT_SEE) from None
        except OSError as problem:
            raise UserError(f"kubectl cannot be started: {problem.strerror}") from problem
        out, error = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(words, done.returncode, out, error)

    def text(self, *arguments: str, **given: Any) -> str:
        """Return kubectl's output; `given` is what `run` takes. Raises UserError with its last message if it fails."""
        done = self.run(*arguments, **given)
        if done.returncode != 0:
            raise failure(arguments[0], done.stderr)
        return done.stdout

    def json(self, *arguments: str, names: Sequence[str] = (), stdin: str | None = None) -> dict[str, Any]:
        """Return the object that kubectl prints as JSON. Raises UserError if it fails or prints no object."""
        text = self.text(*arguments, "--output=json", names=names, stdin=stdin)
        found = _object(arguments[0], text)
        if arguments[0] != "config" and not is_named(found):
            raise foreign(arguments[0])
        return found

    def items(self, *arguments: str, names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the objects of a `get` as a list, also if it is a single one."""
        text = self._passed_on(*arguments) if not names else None
        if text is None:
            text = self.text("get", *arguments, "--output=json", names=names)
        if not text.strip():
            return []
        answer = _object("get", text)
        found = answer.get("items", [answer])
        if not isinstance(found, list) or not all(map(is_named, found)):
            raise foreign("get")
        own = {"apiVersion": answer.get("apiVersion"), "kind": str(answer.get("kind") or "").removesuffix("List")}
        return [own | item for item in found] if own["kind"] else found

    def _passed_on(self, resource: str, *options: str) -> str | None:
        """Return a list that may be long as the API server sends it, None for others, or if it does not come.

        With `--output=json` kubectl takes each object apart and prints it again: for 1,016 pods 2.2 s of a
        processor and 415 MB instead of 0.1 s and 96 MB. By the path of a list, kubectl 1.33 and older do not find
        a server that is itself behind a path, such as Rancher's.
        """
        path = self._path(resource, *options)
        if path is None:
            return None
        done = self.run("get", f"--raw={path}")
        if NO_SERVER in done.stderr:
            raise failure("get", done.stderr)
        return done.stdout if done.returncode == 0 and done.stdout.startswith('{"kind":') else None

    def _path(self, resource: str, *options: str) -> str | None:
        """Return the API's path of a list that may be long, None for other kinds and for an unknown namespace."""
        given = dict(option.partition("=")[::2] for option in options)
        namespace = given.pop("--namespace", self.namespace)
        everywhere = "--all-namespaces" in given or resource in WIDE
        given.pop("--all-namespaces", None)
        if resource not in LONG or not set(given) <= set(SELECTORS) or not (everywhere or namespace):
            return None
        place = "" if everywhere else f"namespaces/{quote(str(namespace))}/"
        query = urlencode({SELECTORS[option]: value for option, value in given.items()})
        return f"{LONG[resource]}/{place}{resource.partition('.')[0]}" + (f"?{query}" if query else "")

    def lines(self, *arguments: str, names: Sequence[str] = ()) -> Iterator[str]:
        """Return kubectl's output line by line. Ends kubectl when the caller stops reading.

        A line of more than LONGEST characters is several lines.
        """
        return _lines(self.words(*arguments, names=names))


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of `work`, which runs kubectl, for every item in their order. Some run at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


def started(words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start kubectl with the options of Popen. Raises UserError if there is no kubectl."""
    try:
        return subprocess.Popen(words, **options)
    except FileNotFoundError:
        raise missing() from None


def _lines(words: list[str]) -> Iterator[str]:
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with started(words, stdin=null, stdout=pipe, stderr=null, text=True, errors="replace") as process:
        assert process.stdout is not None
        try:
            while line := process.stdout.readline(LONGEST):
                yield line.rstrip("\n")
        finally:
            process.kill()


def _object(what: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise foreign(what, text) from None
    if not isinstance(found, dict):
        raise foreign(what)
    return found


def is_named(item: Any) -> bool:
    """Return whether an item of a list is an object of Kubernetes, with a name."""
    return (
        isinstance(item, dict)
        and all(isinstance(item.get(part, {}), dict) for part in ("metadata", "spec", "status"))
        and isinstance(item.get("metadata", {}).get("name"), str)
    )


def foreign(what: str, text: str = "") -> UserError:
    """Return the error for an answer that is not one of the Kubernetes API."""
    found = "an HTML page" if PAGE.search(text) else "not an object of Kubernetes in JSON"
    return UserError(f"kubectl {what}: the answer is {found}", PROXY, CANNOT_SEE)


def missing() -> UserError:
    return UserError("no kubectl on PATH", programs.how_to_install("kubectl"))


def failure(what: str, stderr: str) -> UserError:
    """Return kubectl's last message as an error, with its usual cause as the hint.

    The exit code is 3 if the cluster is not reachable or refuses to answer: the state is then unknown.
    """
    if PAGE.search(stderr):
        return foreign(what, stderr)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = (lines or [f"kubectl {what} failed without a message"])[-1].removeprefix("error: ")
    hint = next((hint for part, hint in HINTS.items() if part in stderr), None)
    code = CANNOT_SEE if any(part in stderr for part in _TABLE["unseen"]) else 2
    return UserError(f"kubectl {what}: {message}", hint, code)
