"""Rules on variables: what a container finds, what the operator overrides, what NCCL and EFA are told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tools.core.verdict import Verdict, bad, good, unclear
from tools.facts.environment import GUIDANCE, Guidance, Say
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Job, Subject, Template, title
from tools.preflight.template_resources import efa
from tools.simulator import operator_pods
from tools.simulator.command_line import command, literals, script
from tools.simulator.environment import REFERENCE
from tools.simulator.operator_admission import OperatorFault

ENV_MARK = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*[^}]*\}")
TEMPLATE_MARK = re.compile(ENV_MARK.pattern + r"|\{\{.*?\}\}")
SHELL_MARK = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][^}]*\})")
ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
FREE_TEXT = ("data", "stringData", "binaryData", "annotations")


@rule("env-twice", "of two variables with one name the last wins, and the reader sees the first")
def env_twice(subject: Subject) -> Iterator[Verdict]:
    """A variable stands once in a container's env."""
    for template in subject.templates:
        for path, container in template.containers():
            names = Counter(entry["name"] for entry in container.get("env") or [])
            for name, count in names.items():
                if count > 1:
                    values = [
                        one.get("value", "(a reference)") for one in container["env"] if one["name"] == name
                    ]
                    place = Place(template.object, f"{path}.env[{name}]", ", ".join(map(str, values)))
                    yield bad(place, f"{name} stands {count} times", "keep one")
            if names and max(names.values()) == 1:
                yield good(Place(template.object, f"{path}.env"), f"{len(names)} variables, each once")


@rule("env-overridden", "the operator writes its variables behind yours, and the last wins")
def env_overridden(subject: Subject) -> Iterator[Verdict]:
    """No variable of the job is one that the operator sets itself, to something else.

    WORLD_SIZE, RANK, MASTER_ADDR, PET_NNODES and others come from the job's fields (and Master jobs get
    more of them). What stands in `env` for them has no effect, which is seen only from the inside of a pod.
    """
    for job in subject.jobs:
        injected = _injected(job)
        for template in job.templates:
            given = injected.get(template.role.lower())
            path, container = template.trainer()
            if given is None:
                continue
            own = literals(container)
            for name in own:
                if name in given and given[name] != own[name] and name != "PYTHONUNBUFFERED":
                    place = Place(job.object, f"{path}.env[{name}]", own[name])
                    yield bad(
                        place,
                        f"{name} has no effect: the operator sets {given[name]!r}",
                        "set the job's field",
                    )
            if not any(name in given for name in own):
                yield good(Place(job.object, f"{path}.env"), "none that the operator sets")


def _injected(job: Job) -> dict[str, dict[str, str]]:
    """Return what the operator appends, by replica type; of a type's pods the first is taken."""
    if job.refused:
        return {}
    policy = {**(job.spec.get("runPolicy") or {}), "suspend": False}
    try:
        pods = operator_pods.pods({**job.item, "spec": {**job.spec, "runPolicy": policy}})
    except OperatorFault:
        return {}
    found: dict[str, dict[str, str]] = {}
    for pod in pods:
        template = next(one for one in job.templates if one.role.lower() == pod.replica_type)
        count = len(template.trainer()[1].get("env") or [])
        entries = pod.container["env"][count:]
        found.setdefault(pod.replica_type, {entry["name"]: entry["value"] for entry in entries})
    return found


@rule("env-reference", "a $(NAME) that cannot be resolved stays as it is, brackets and all")
def env_reference(subject: Subject) -> Iterator[Verdict]:
    """Each $(NAME) in a value, command or argument names a variable that the container has.

    Kubernetes resolves it from `env` (above it, in a value) and from what the operator sets. $(RANK) in a job
    without Master stays `$(RANK)`, and torchrun ends with `invalid int value`. In a shell's script $(...) may
    be a command; only names in capitals are judged there. With an envFrom that is not in the manifest, it
    cannot be told.
    """
    for template in subject.templates:
        job = next((job for job in subject.jobs if job.item is template.item), None)
        given = _injected(job).get(template.role.lower(), {}) if job else {}
        for path, container in template.containers():
            yield from _references(subject, template, path, container, set(given))


def _references(
    subject: Subject, template: Template, path: str, container: dict[str, Any], given: set[str]
) -> Iterator[Verdict]:
    known, closed = _from_maps(subject, template, container)
    found = 0
    places: list[tuple[str, str, set[str]]] = []
    for entry in container.get("env") or []:
        places.append((f"{path}.env[{entry['name']}]", entry.get("value") or "", set(known)))
        known.add(entry["name"])
    in_shell = script(container) is not None
    for kind in ("command", "args"):
        for index, word in enumerate(container.get(kind) or []):
            places.append((f"{path}.{kind}[{index}]", word, known | given))
    for where, text, visible in places:
        for match in REFERENCE.finditer(text):
            name = match[2]
            if name is None or name in visible:
                found += name in visible if name else 0
                continue
            in_script = in_shell and ".env[" not in where
            if in_script and not ENVIRONMENT_NAME.fullmatch(name):
                continue
            place = Place(template.object, where, text)
            if closed:
                yield bad(
                    place,
                    f"$({name}) is not resolved: {_why(name, known, given)}",
                    "define it above, or drop it",
                )
            else:
                yield unclear(place, f"$({name}) may come from an envFrom that is not in the manifest")
    if found:
        yield good(Place(template.object, path), f"{found} references to variables that are there")


def _why(name: str, known: set[str], given: set[str]) -> str:
    if name in known:
        return f"{name} stands below it"
    return f"{name} is set for commands only" if name in given else f"there is no variable {name}"


def _from_maps(subject: Subject, template: Template, container: dict[str, Any]) -> tuple[set[str], bool]:
    """Return the names that envFrom gives, and whether all of its sources are in the manifest."""
    known: set[str] = set()
    closed = True
    for source in container.get("envFrom") or []:
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if not source.get(key):
                continue
            found = subject.named(kind, template.namespace).get(source[key].get("name", ""))
            closed = closed and found is not None
            for part in ("data", "stringData"):
                known |= {f"{source.get('prefix') or ''}{name}" for name in (found or {}).get(part) or {}}
    return known, closed


@rule("template-left", "a ${NAME} that nobody filled in reaches the cluster as it is")
def template_left(subject: Subject) -> Iterator[Verdict]:
    """No ${NAME}, {{ name }} or $NAME is left where nothing will fill it in.

    Looked at: all fields but ConfigMap data, annotations and shell scripts. Kubernetes expands $(NAME) only;
    an argument that no shell sees keeps its $NAME.
    """
    for item in subject.objects:
        templates = [template for template in subject.templates if template.item is item]
        words = {
            id(word): word
            for one in templates
            for _, container in one.containers()
            for word in _words(container)
        }
        found = False
        for path, text in _fields(item, ""):
            in_words = re.search(r"\.(command|args)\[\d+\]$", path)
            if in_words and text not in words.values():
                continue
            mark = SHELL_MARK if in_words and templates else ENV_MARK if ".env[" in path else TEMPLATE_MARK
            match = mark.search(text)
            if match:
                found = True
                yield bad(
                    Place(title(item), path, text),
                    f"{match[0]} is not filled in",
                    "render it before it is applied",
                )
        if not found:
            yield good(Place(title(item), ""), "nothing is left to fill in")


def _words(container: dict[str, Any]) -> list[str]:
    """Return the words of a command that no shell will expand."""
    whole = [*(container.get("command") or []), *(container.get("args") or [])]
    return [] if script(container) is not None or _file_in_shell(container) else whole


def _file_in_shell(container: dict[str, Any]) -> bool:
    """Say whether a shell runs a file of the image, or the image's own entry point is not known."""
    if not container.get("command"):
        return True
    return command(container)[0].rpartition("/")[2] in ("sh", "bash", "dash", "ash")


def _fields(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in FREE_TEXT:
                yield from _fields(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


@rule("env-guidance", "settings for NCCL, EFA and Neuron outlive the bug that they were for")
def env_guidance(subject: Subject) -> Iterator[Verdict]:
    """Variables of NCCL, EFA and Neuron follow the current guidance in tools/facts/environment.py.

    What is never right fails. What should be left alone, or helps against single bugs only, cannot be told
    from a manifest: the reason is printed. A variable that is for other machines is not judged.
    """
    for template in subject.training():
        path, container = template.trainer()
        for name, value in literals(container).items():
            item = _guidance(name, value, template)
            if item is None:
                continue
            place = Place(template.object, f"{path}.env[{name}]", value)
            said = f"{name}: {item.say.value}: {item.reason} ({item.source})"
            if item.say is Say.NEVER:
                yield bad(place, said, f"take {name} out")
            elif item.say is Say.SET and _miscased(value, item.value):
                yield bad(
                    place,
                    f"{name} is read as {item.value}, with its capitals: {item.reason}",
                    str(item.value),
                )
            elif item.say is Say.SET:
                yield good(place, said)
            else:
                yield unclear(place, said, f"take {name} out unless you measured that you need it")


def _miscased(value: str, right: str | None) -> bool:
    return right is not None and value != right and value.lower() == right.lower()


def _guidance(name: str, value: str, template: Template) -> Guidance | None:
    known = template.selected.known
    for item in GUIDANCE:
        if item.concerns(name, value) and (not known or any(item.applies(one) for one in known)):
            if name == "NCCL_SOCKET_IFNAME" and template.spec.get("hostNetwork"):
                return None
            return item
    return None


@rule("efa-provider", "libfabric that must use EFA, in a pod that has none, ends or falls back to TCP")
def efa_provider(subject: Subject) -> Iterator[Verdict]:
    """A pod that forces EFA (FI_PROVIDER=efa, NCCL_NET_PLUGIN=ofi) asks for an interface.

    The variables do not give the pod a device; only the resource vpc.amazonaws.com/efa does.
    """
    forced = {"FI_PROVIDER": "efa", "NCCL_NET_PLUGIN": "ofi", "FI_EFA_USE_DEVICE_RDMA": "1"}
    for template in subject.training():
        path, container = template.trainer()
        own = literals(container)
        said = [name for name, value in forced.items() if own.get(name) == value]
        if not said:
            continue
        place = Place(template.object, f"{path}.env[{said[0]}]", own[said[0]])
        if efa(template) > 0:
            yield good(place, "the pod has an interface")
        elif template.nodes > 1:
            yield bad(
                place, f"{said[0]} forces EFA, and the pod asks for none", "ask for vpc.amazonaws.com/efa"
            )
