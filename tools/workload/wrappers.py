"""Objects that hold other objects: an AppWrapper, a Katib Experiment, a Katib Trial.

Sources: github.com/project-codeflare/appwrapper v1.2.0, api/v1beta2/appwrapper_types.go;
github.com/kubeflow/katib v0.19.0, pkg/controller.v1beta1/experiment/manifest/generator.go (Katib replaces the
placeholders in the text of the trial, and sets name and namespace), and of November 2026,
pkg/webhook/v1beta1/experiment/validator/validator.go. `List` is opened by tools/kube/manifests.py.
"""

import contextlib
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.core.errors import UserError
from tools.core.nested import mapped, walk
from tools.kube.manifests import MOST_PODS, Object, counts, documents, name_of
from tools.kube.shapes import WRAPPERS, Misshape, misshapes

DEEPEST = 4  # wrappers in wrappers
PLACEHOLDER = re.compile(r"\$\{trialParameters\.([^{}$]{1,100})\}")
# kubectl's full name of each kind of wrapper: its plural and its group.
RESOURCES = {
    "AppWrapper": "appwrappers.workload.codeflare.dev",
    "Experiment": "experiments.kubeflow.org",
    "Trial": "trials.kubeflow.org",
}


@dataclass(frozen=True)
class Part:
    """One object of a manifest: at the top, or inside another (`wrapper`, at `prefix`).

    `item` of a wrapper is without its inner objects, `whole` is with them. `faults` are values of a wrong
    type that keep a wrapper from being opened.
    """

    item: Object
    whole: Object
    wrapper: str = ""
    prefix: str = ""
    faults: tuple[Misshape, ...] = ()


def shape_of(item: Object) -> Object | None:
    """Return the types of a wrapper's fields, None for an object that is not a wrapper."""
    kind, group = str(item.get("kind")), str(item.get("apiVersion")).rpartition("/")[0]
    return WRAPPERS.get(kind) if RESOURCES.get(kind, "").partition(".")[2] == group else None


def opened(items: list[Object]) -> list[Part]:
    """Return all objects, each wrapper before what it holds. A wrapper stands without its inner objects."""
    texts = ((name_of(item), item.get("data")) for item in items if item.get("kind") == "ConfigMap")
    maps = {name: data for name, data in texts if isinstance(data, dict)}
    return [part for item in items for part in _opened(Part(item, item), maps, 0)]


def _opened(part: Part, maps: Object, depth: int) -> Iterator[Part]:
    shape = shape_of(part.item)
    if shape is None:
        yield part
        return
    faults = tuple(misshapes(part.item, shape, ""))
    faults = faults or tuple(_of_parameters(part.item, maps))
    inner = [] if faults or depth >= DEEPEST else list(_inner(part.item, maps))
    faults += tuple(
        Misshape(f"{path}.{name}", value, f"at most {MOST_PODS}")
        for path, item in inner
        for name, value in counts(item.get("spec"))
        if value > MOST_PODS
    )
    if faults:
        yield replace(part, faults=faults)
        return
    yield replace(part, item=_shell(part.item))
    title = part.wrapper or f"{part.item['kind']}/{name_of(part.item)}"
    for path, item in inner:
        yield from _opened(Part(item, item, title, f"{part.prefix}{path}."), maps, depth + 1)


def _inner(item: Object, maps: Object) -> Iterator[tuple[str, Object]]:
    """Yield the objects that a wrapper of the right shape holds, each with its path."""
    spec = item["spec"]
    if item["kind"] == "AppWrapper":
        for index, one in enumerate(spec["components"]):
            yield f"spec.components[{index}].template", _named(one["template"], item, name_of(item))
    elif item["kind"] == "Trial":
        yield "spec.runSpec", _named(spec["runSpec"], item, name_of(item))
    elif (trial_spec := _trial_spec(spec["trialTemplate"], maps)) is not None:
        trial = f"{name_of(item)}-00000000"  # Katib appends eight characters
        values = _values(spec, trial, item)
        filled = mapped(trial_spec, lambda text: PLACEHOLDER.sub(lambda one: values.get(one[1], one[0]), text))
        place = "trialSpec" if "trialSpec" in spec["trialTemplate"] else "configMap"
        yield f"spec.trialTemplate.{place}", _named(filled, item, trial, always=True)


def _of_parameters(item: Object, maps: Object) -> Iterator[Misshape]:
    """Yield what Katib's webhook refuses: parameters of the trial that are not those of its template."""
    template = item["spec"].get("trialTemplate") or {}
    trial = _trial_spec(template, maps)
    if trial is None:
        return
    used = {one[1] for _, text in walk(trial) if isinstance(text, str) for one in PLACEHOLDER.finditer(text)}
    given = {one["name"] for one in template.get("trialParameters") or []}
    path = "spec.trialTemplate.trialParameters"
    if missing := sorted(used - given):
        yield Misshape(path, sorted(given), f"a list with {', '.join(missing)}, which the trial uses")
    if unused := sorted(given - used):
        yield Misshape(path, sorted(given), f"a list without {', '.join(unused)}, which the trial does not use")
    names = {one["name"] for one in item["spec"].get("parameters") or []}
    for one in template.get("trialParameters") or []:
        reference = one.get("reference") or ""
        if names and reference not in names and not reference.startswith("${"):
            yield Misshape(f"{path}[{one['name']}].reference", reference, "the name of one of spec.parameters")


def _trial_spec(template: Object, maps: Object) -> Object | None:
    """Return the trial of an Experiment, which may be a text in a ConfigMap; None if the file does not have it."""
    if template.get("trialSpec"):
        written: Object = template["trialSpec"]
        return written
    source = template.get("configMap") or {}
    text = (maps.get(str(source.get("configMapName"))) or {}).get(source.get("templatePath"))
    with contextlib.suppress(UserError):
        found = documents(text, "") if isinstance(text, str) else []
        if found and not any(misshapes(found[0], WRAPPERS["Trial"]["spec!"]["runSpec!"], "")):
            trial: Object = found[0]
            return trial
    return None


def _named(inner: Object, outer: Object, name: str, always: bool = False) -> Object:
    """Return a copy of an inner object with a name and a namespace, which it may take from the outer one."""
    metadata = dict(inner.get("metadata") or {})
    namespace = outer["metadata"].get("namespace")
    if always or not metadata.get("name"):
        metadata["name"] = f"{metadata['generateName']}00000" if metadata.get("generateName") else name
    if namespace and not metadata.get("namespace"):
        metadata["namespace"] = namespace
    return {**inner, "metadata": metadata}


def _shell(item: Object) -> Object:
    """Return a wrapper without the objects that it holds."""
    shell = copy.deepcopy(item)
    spec = shell["spec"]
    for one in spec.get("components") or []:
        one.pop("template", None)
    for key in ("trialSpec", "trialParameters"):
        (spec.get("trialTemplate") or {}).pop(key, None)
    spec.pop("runSpec", None)
    return shell


def _values(spec: Object, trial: str, item: Object) -> dict[str, str]:
    """Return a possible value of each trial parameter: the first of its list, or its minimum."""
    spaces = {one["name"]: one.get("feasibleSpace") or {} for one in spec.get("parameters") or []}
    known = {"${trialSpec.Name}": trial, "${trialSpec.Namespace}": item["metadata"].get("namespace", "default")}
    found = {}
    for one in spec["trialTemplate"].get("trialParameters") or []:
        reference = one.get("reference") or one["name"]
        space = spaces.get(reference) or {}
        listed = [*(space.get("list") or []), *(space[key] for key in ("min", "max") if key in space)]
        value = known.get(reference, listed[0] if listed else None)
        if isinstance(value, str | int | float):
            found[one["name"]] = str(value)
    return found
