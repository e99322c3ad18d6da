"""Rules on the user and the file system of a container."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.core.output import short
from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good
from tools.kube.manifests import Object
from tools.preflight.rule import Place, rule
from tools.preflight.rules.storage import LAYER, READ_ONLY, storage
from tools.preflight.subject import Subject, Template
from tools.simulator.command_line import literals, script
from tools.simulator.shell import ASSIGNMENT, SHELLS

_WORDS: dict[str, list[str]] = load("preflight/words.yaml")
TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # where Python looks for a temporary directory, after TMPDIR
CACHES = re.compile(r"^(?:(?:XDG_\w+_|HF_|TORCH_|TRITON_)?HOME|MPLCONFIGDIR|WANDB_DIR|TORCH_EXTENSIONS_DIR)$|CACHE")
# Variables that move the caches out of the home directory.
HOMES = ("HOME", "XDG_CACHE_HOME", "HF_HOME")


@rule("executable", each="templates")
def executable(subject: Subject, template: Template) -> Iterator[Verdict]:
    for path, container in template.containers():
        first = next(iter(container.get("command") or []), None)
        if first is None:
            continue
        place = Place(template.object, f"{path}.command[0]", first)
        if re.search(r"\S\s+\S", first):
            summary = "the whole command is one word, and no file has that name"
            yield bad(place, summary, "one list item for each word, or sh -c before it")
        elif ASSIGNMENT.match(first) or first in _WORDS["of a shell"]:
            yield bad(place, f"{short(first, 60)} is for a shell, and no file has that name", "sh -c before it")
        elif script(container) is None and (operator := _operator(container)):
            summary = f"{operator} is an argument of {first}: no shell reads the command"
            yield bad(place, summary, "sh -c, and the whole command as one text")
        else:
            yield good(place, "one word")


def _operator(container: Object) -> str:
    """Return a word that only a shell understands, of a command without one."""
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    starts = {PurePosixPath(word).name for word in words}
    return "" if starts & set(SHELLS) else next((word for word in words if word in _WORDS["operators of a shell"]), "")


@rule("run-as-user", each="templates")
def run_as_user(subject: Subject, template: Template) -> Iterator[Verdict]:
    shared = template.spec.get("securityContext") or {}
    for path, container in template.containers():
        own = container.get("securityContext") or {}
        user = own.get("runAsUser", shared.get("runAsUser"))
        if not own.get("runAsNonRoot", shared.get("runAsNonRoot")):
            continue
        place = Place(template.object, f"{path}.securityContext", {"runAsNonRoot": True, "runAsUser": user})
        if user == 0:
            yield bad(place, "runAsNonRoot with user 0: the container does not start", "runAsUser: 1000")
        elif user is None:
            summary = "runAsNonRoot without runAsUser: the container starts if the image has a numeric user"
            yield doubtful(place, summary, "runAsUser: the number of the image's user")
        else:
            yield good(place, f"user {user} is not root")


@rule("read-only-root", each="training")
def read_only_root(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, container = template.trainer()
    if not (container.get("securityContext") or {}).get("readOnlyRootFilesystem"):
        return
    place = Place(template.object, f"{path}.securityContext.readOnlyRootFilesystem", True)
    values = literals(container)
    temporary = [values.get("TMPDIR"), *TEMPORARY, container.get("workingDir")]
    if not any(one and _writable(template, container, one) for one in temporary):
        yield bad(place, "no directory for temporary files is writable", "an emptyDir at /tmp")
        return
    paths = [name for name, value in values.items() if CACHES.search(name) and value.startswith("/")]
    wrong = [name for name in paths if not _writable(template, container, values[name])]
    for name in wrong:
        summary = f"{name} is {values[name]}, which is not on a writable volume"
        yield bad(place, summary, f"mount an emptyDir there, or set {name} to a path on one")
    if wrong:
        return
    if any(name in values for name in HOMES):
        yield good(place, "temporary files and caches are on writable volumes")
    else:
        yield doubtful(place, "caches in the image's home directory cannot be written", "HOME on an emptyDir")


def _writable(template: Template, container: Object, directory: str) -> bool:
    return directory.startswith("/") and storage(template, container, directory) not in (LAYER, READ_ONLY)
