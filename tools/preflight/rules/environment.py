"""Rules on environment variables: those of the container, of the operator, and of NCCL, EFA and Neuron."""

import contextlib
import re
from collections.abc import Iterator, Sequence

from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good
from tools.facts.environment import Say, guidance
from tools.kube import schemas
from tools.kube.manifests import Object
from tools.preflight.rule import Place, needed, rule
from tools.preflight.subject import Job, Subject, Template, texts, title
from tools.simulator.command_line import command, literals, script
from tools.simulator.environment import REFERENCE
from tools.simulator.wiring import NO_PODS
from tools.workload import Pod
from tools.workload.operator_admission import admits_twice
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import TrainJob

NAME_MARK, ENGINE_MARK, BLANK_MARK, HELM_MARK, SURE_MARK = load("preflight/marks.yaml").values()
# A variable can hold the template of a chat, such as {{ messages }}.
ENV_MARK = re.compile(f"(?<![$\\\\]){NAME_MARK}|{HELM_MARK}|{BLANK_MARK}|{SURE_MARK}")
# What is written by hand in place of a value: {TAG}, %TAG%, YOUR_ACCOUNT.
HAND_MARK = rf"\{{[A-Z][A-Z0-9_]*+\}}|{SURE_MARK}|%[A-Z][A-Z0-9_]*+%|\b(?:YOUR|MY|INSERT)[-_][A-Z][\w-]*+"
FIELD_MARK = re.compile(f"(?<![$\\\\]){NAME_MARK}|{ENGINE_MARK}|{BLANK_MARK}|{HAND_MARK}")
OBJECT_MARK = re.compile(rf"\$\{{[A-Za-z_][^{{}}]*+\}}|{ENGINE_MARK}")
WORD_MARK = re.compile(f"{NAME_MARK}|{ENGINE_MARK}|{SURE_MARK}")
UPPER_MARK = rf"(?-i:<[A-Z]+[-_][A-Z0-9_-]{{1,60}}>)|{SURE_MARK}"  # <BUCKET_NAME>
SCRIPT_MARK = re.compile(
    rf"\{{\{{[ \t]*+[.$]?[A-Za-z_][\w.]*+[ \t]*+\}}\}}|<(?:your|my|insert)[-_ ][\w -]{{1,60}}>|{UPPER_MARK}", re.I
)
# What a program may fill in itself: ${now:%Y}, ${model.dim} and name=${other} of Hydra, {% if %} of Jinja.
OWN_MARK = re.compile(r"\$\{[^{}]*(?:\.|:(?![-=?+\d]))[^{}]*\}|\{%[^%\n]*%\}")
OVERRIDE = re.compile(r"\+{0,2}[a-z][\w./@]*=[^$]*\$\{[a-z]\w*\}")
KATIB = "${trialParameters."  # Katib fills it in for each trial
# What the kubelet sets for each Service of the namespace, and for that of the API server (kubelet_pods.go).
SERVICE = re.compile(r"[A-Z][A-Z0-9_]{0,62}_SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]{1,63})?)")
FIELD = re.compile(
    r"metadata\.(?:name|namespace|uid|(?:labels|annotations)\['[^']+'\])"
    r"|spec\.(?:nodeName|serviceAccountName)|status\.(?:host|pod)IPs?"
)
RESOURCE = re.compile(r"|(?:limits|requests)\.(?:cpu|memory|ephemeral-storage|hugepages-\w+)")
OFFERED = "metadata.name, metadata.labels['KEY'], status.podIP, limits.cpu, limits.memory and the like, or a number"
ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
FREE_TEXT = ("data", "stringData", "binaryData", "annotations")
WORD_PATH = re.compile(r"\.(command|args)\[\d+\]$")


@rule("env-twice", each="written_variables")
def env_twice(subject: Subject, variables: tuple[Object, str, list[Object]]) -> Iterator[Verdict]:
    item, path, entries = variables
    places: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        places.setdefault(entry["name"], []).append(index)
    for name, found in places.items():
        if len(found) > 1:
            values = ", ".join(str(entries[index].get("value", "(a reference)")) for index in found)
            place = Place(title(item), f"{path}[{found[-1]}]", values)
            yield _twice(subject, place, f"{name} is set {len(found)} times", item)
    if entries and len(places) == len(entries):
        yield good(Place(title(item), path), f"{len(entries)} variables, each set once")


def _twice(subject: Subject, place: Place, summary: str, item: Object) -> Verdict:
    """Return the verdict on a variable that is set again, by the object's CRD and the operator's release."""
    faults = schemas.shipped().faults(item) or ()
    if not any(fault.path == place.path and fault.message.startswith(schemas.TWICE) for fault in faults):
        return doubtful(place, summary, "keep one")
    refused = f"{summary}: the API server refuses it"
    if item["kind"] != PyTorchJob.kind:
        return bad(place, refused, "keep one")
    operator = subject.operator
    if admits_twice(operator):
        admitted = f"with training operator {operator} the last value wins; from 1.9.0 on the API server refuses it"
        return doubtful(place, f"{summary}: {admitted}", "keep one")
    where = f"with training operator {operator or '1.9.0 and newer; with 1.7.0 to 1.8.1 the last value wins'}"
    return subject.by_operator(bad(place, f"{refused} {where}", "keep one"))


@rule("env-overridden", each="jobs")
def env_overridden(subject: Subject, job: Job) -> Iterator[Verdict]:
    for template in job.templates:
        given = _injected(job.pods, template)
        path, container = template.trainer()
        if given is None:
            continue
        values = literals(container)
        for name, value in values.items():
            if name in given and given[name] != value and name != "PYTHONUNBUFFERED":
                place = Place(job.object, f"{path}.env[{name}]", value)
                yield bad(place, f"{name} has no effect: the operator sets {given[name]!r}", "set the job's field")
        if not any(name in given for name in values):
            yield good(Place(job.object, f"{path}.env"), "no variable that the operator sets")


def _injected(pods: Sequence[Pod], template: Template) -> dict[str, str] | None:
    """Return the variables that the controller adds to the first pod of a template, or None without a pod."""
    pod = next((pod for pod in pods if pod.role == template.role.lower()), None)
    if pod is None:
        return None
    own = template.trainer()[1].get("env") or []
    return {entry["name"]: entry["value"] for entry in pod.container["env"] if entry not in own}


@rule("env-reference", each="templates")
def env_reference(subject: Subject, template: Template) -> Iterator[Verdict]:
    job, pods = subject.job_of(template), []
    if job is not None:
        pods = job.pods
    elif template.workload is not None:
        with contextlib.suppress(*NO_PODS):  # without pods, only the variables of the manifest are known
            pods = template.workload.pods()
    given = set(_injected(pods, template) or {})
    for path, container in template.containers():
        yield from _references(subject, template, path, container, given)


def _references(
    subject: Subject, template: Template, path: str, container: Object, given: set[str]
) -> Iterator[Verdict]:
    known, complete = _from_maps(subject, template, container)
    resolved = 0
    places: list[tuple[str, str, set[str]]] = []
    for entry in container.get("env") or []:
        if name := _not_offered(entry.get("valueFrom") or {}):
            place = Place(template.object, f"{path}.env[{entry['name']}].valueFrom", name)
            yield bad(place, f"no variable can have the value of {name}: the API server refuses the pod", OFFERED)
        places.append((f"{path}.env[{entry['name']}]", entry.get("value") or "", set(known)))
        known.add(entry["name"])
    in_shell = script(container) is not None
    for kind in ("command", "args"):
        for index, word in enumerate(container.get(kind) or []):
            places.append((f"{path}.{kind}[{index}]", word, known | given))
    for mount in container.get("volumeMounts") or []:
        where = f"{path}.volumeMounts[{mount.get('mountPath')}].subPathExpr"
        places.append((where, mount.get("subPathExpr") or "", known | given))
    for where, text, visible in places:
        in_script = in_shell and WORD_PATH.search(where)
        for name in (match[2] for match in REFERENCE.finditer(text) if match[2]):
            if name in visible:
                resolved += 1
                continue
            if in_script and not ENVIRONMENT_NAME.fullmatch(name):
                continue
            place = Place(template.object, where, text)
            if by := "its controller" if template.foreign else "a Service" if SERVICE.fullmatch(name) else "":
                yield needed(good(place, f"{by} may set it"), f"the variable {name}, by {by}")
            elif complete:
                summary = f"$({name}) is not resolved: {_why(name, known, given)}"
                yield bad(place, summary, "define it above, or remove the reference")
            else:
                yield needed(good(place, f"$({name}) comes from an envFrom"), f"the variable {name}, by envFrom")
    if resolved:
        yield good(Place(template.object, path), f"{resolved} references to known variables")


def _not_offered(source: Object) -> str:
    """Return the field or resource of a variable that Kubernetes does not offer, else an empty text.

    Source: k8s.io/kubernetes, pkg/apis/core/validation/validation.go, validEnvDownwardAPIFieldPathExpressions and
    validContainerResourceFieldPathExpressions.
    """
    field = (source.get("fieldRef") or {}).get("fieldPath", "")
    resource = (source.get("resourceFieldRef") or {}).get("resource", "")
    return field if field and not FIELD.fullmatch(field) else resource if not RESOURCE.fullmatch(resource) else ""


def _why(name: str, known: set[str], given: set[str]) -> str:
    if name in known:
        return f"{name} is defined below it"
    return f"{name} is only set for commands" if name in given else f"there is no variable {name}"


def _from_maps(subject: Subject, template: Template, container: Object) -> tuple[set[str], bool]:
    """Return the names from envFrom, and whether all of its sources are in the manifest."""
    known: set[str] = set()
    complete = True
    for source in container.get("envFrom") or []:
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if not source.get(key):
                continue
            item = subject.named(kind, template.namespace).get(source[key].get("name", ""))
            complete = complete and item is not None
            for part in ("data", "stringData"):
                known |= {f"{source.get('prefix') or ''}{name}" for name in (item or {}).get(part) or {}}
    return known, complete


@rule("template-left")
def template_left(subject: Subject) -> Iterator[Verdict]:
    for item, fault in subject.misshapen:  # such as `replicas: $NODES`
        match = FIELD_MARK.search(str(fault.value))
        if match and KATIB not in str(fault.value):
            place = Place(title(item), fault.path, fault.value)
            yield bad(place, f"{match[0]} is not filled in", "render the manifest before it is applied")
    for item in subject.objects:
        if str(item.get("apiVersion")).startswith("argoproj.io/"):
            continue
        templates = [one for one in subject.templates if one.item is item or _runtime(one) is item]
        containers = [container for template in templates for _, container in template.containers()]
        literal = {word for container in containers for word in _literal_words(container)}
        left = False
        for path, text in texts(item, FREE_TEXT):
            mark = _mark(path, text in literal, bool(templates))
            match = mark.search(text)
            if match is None and WORD_PATH.search(path):
                mark, match = SCRIPT_MARK, SCRIPT_MARK.search(text)
            if match is None or KATIB in text:
                continue
            left = True
            place = Place(title(item), path, text)
            if mark is WORD_MARK and (OWN_MARK.fullmatch(match[0]) or OVERRIDE.match(text)):
                fix = "leave it if the program fills it in, as Hydra and Jinja do; else render the manifest"
                yield doubtful(place, f"{match[0]} reaches the program as it is", fix)
                continue
            verdict = doubtful if mark is SCRIPT_MARK or (".env[" in path and _in_list(match)) else bad
            yield verdict(place, f"{match[0]} is not filled in", "render the manifest before it is applied")
        if not left:
            yield good(Place(title(item), ""), "no template variable is left")


def _runtime(template: Template) -> Object | None:
    """Return the runtime that has the template of a TrainJob."""
    return template.workload.runtime if isinstance(template.workload, TrainJob) else None


def _mark(path: str, literal: bool, pods: bool) -> re.Pattern[str]:
    if WORD_PATH.search(path):
        return WORD_MARK if literal else SCRIPT_MARK
    if ".env[" in path:
        return ENV_MARK
    return FIELD_MARK if pods else OBJECT_MARK


def _in_list(match: re.Match[str]) -> bool:
    """Return whether a $NAME is one of several paths, or a part of another text without braces."""
    name, text = match[0], match.string
    return name.startswith("$") and name != text and (f":{name}" in text or f"{name}:" in text or name[1] != "{")


def _literal_words(container: Object) -> list[str]:
    """Return the words of a command that no shell will expand."""
    if not container.get("command") or script(container) is not None:
        return []  # the image's own entry point is unknown
    if command(container)[0].rpartition("/")[2] in ("sh", "bash", "dash", "ash"):
        return []  # a shell runs a file of the image
    return [*container["command"], *(container.get("args") or [])]


@rule("env-guidance", each="training")
def env_guidance(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, container = template.trainer()
    for name, value in literals(container).items():
        item = guidance(name, value, template.selected.known)
        if item is None or (name == "NCCL_SOCKET_IFNAME" and template.spec.get("hostNetwork")):
            continue
        place = Place(template.object, f"{path}.env[{name}]", value)
        summary = f"{name}: {item.say.value}: {item.reason} ({item.source})"
        if item.say is Say.NEVER:
            yield bad(place, summary, f"remove {name}")
        elif item.say is Say.SET and value != item.value and value.lower() == str(item.value).lower():
            summary = f"{name} must be {item.value}, case matters: {item.reason}"
            yield bad(place, summary, f"{name}={item.value}")
        elif item.say is Say.SET:
            yield good(place, summary)
        else:
            yield bad(place, summary, f"remove {name} unless you measured that you need it")


@rule("loopback", each="training")
def loopback(subject: Subject, template: Template) -> Iterator[Verdict]:
    path = template.trainer()[0]
    for name, value in subject.started(template)[1].items():
        if name not in INTERFACES or template.nodes < 2:
            continue
        place = Place(template.object, f"{path}.env[{name}]", value)
        if value.lstrip("=").split(",")[0] == "lo":
            yield bad(place, f"{name} is loopback in a job of {template.nodes} pods", "eth0, or remove it")
        else:
            yield good(place, "not the loopback interface")


@rule("efa-provider")
def efa_provider(subject: Subject) -> Iterator[Verdict]:
    forced = {"FI_PROVIDER": "efa", "NCCL_NET_PLUGIN": "ofi", "FI_EFA_USE_DEVICE_RDMA": "1"}
    for template in subject.training():
        path, container = template.trainer()
        values = literals(container)
        name = next((name for name, value in forced.items() if values.get(name) == value), None)
        if name is None:
            continue
        place = Place(template.object, f"{path}.env[{name}]", values[name])
        if template.efa > 0:
            yield good(place, "the pod has an interface")
        elif template.nodes > 1:
            yield bad(place, f"{name} forces EFA, and the pod requests no interface", "request vpc.amazonaws.com/efa")
