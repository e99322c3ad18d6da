"""Rules on references to other objects: volumes, claims, ConfigMaps, Secrets, service accounts."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tools.core.command_line import is_subdomain
from tools.core.repo import COMPARED, did_you_mean, nearest
from tools.core.verdict import Verdict, bad, doubtful, good
from tools.kube.manifests import Object, name_of
from tools.preflight.rule import Place, needed, rule
from tools.preflight.subject import Subject, Template, title
from tools.simulator.volumes import source_name, sources
from tools.workload.trainjob import jobset_of
from tools.workload.volcano import VolcanoJob
from tools.workload.workload import QUEUE_LABEL

HASH = re.compile(r"-[bcdfghkmt2456789]{10}$")  # the suffix that kustomize adds to a generated name
ROLE = "eks.amazonaws.com/role-arn"
SIMILAR = 0.6  # least similarity of two names


@rule("volumes", each="templates")
def volumes(subject: Subject, template: Template) -> Iterator[Verdict]:
    known = {**template.volumes(), **_claimed(template)}
    yield from _twice(template, "volumes", [one["name"] for one in template.spec.get("volumes") or []])
    yield from _twice(template, "containers", [one["name"] for _, one in template.containers()])
    devices = [str(one.get("name")) for one in template.spec.get("resourceClaims") or []]
    used = {one["name"] for _, container in template.containers() for one in _device_claims(container)}
    for unused in (name for name in devices if name not in used):
        place = Place(template.object, f"{template.spec_path}.resourceClaims", unused)
        yield doubtful(place, f"no container gets the devices of the claim {unused}", "resources.claims of the trainer")
    for path, container in template.containers():
        for one in _device_claims(container):
            if one["name"] not in devices:
                place = Place(template.object, f"{path}.resources.claims", one["name"])
                yield bad(
                    place,
                    f"the pod has no resource claim {one['name']}",
                    did_you_mean(one["name"], devices) or "add it",
                )
        mounts = container.get("volumeMounts") or []
        yield from _twice(template, f"{path} mountPath", [mount["mountPath"] for mount in mounts])
        for mount in mounts:
            name = mount["name"]
            place = Place(template.object, f"{path}.volumeMounts[{name}]", mount["mountPath"])
            if name in known:
                yield good(place, "the pod has the volume")
            elif not template.foreign:
                match = nearest(name, known)
                remedy = f"did you mean {match}?" if match else f"add a volume {name}"
                yield bad(place, f"the pod has no volume {name}", remedy)


def _device_claims(container: Object) -> list[Object]:
    return (container.get("resources") or {}).get("claims") or []


def _claimed(template: Template) -> Object:
    """Return the volumes that a StatefulSet's or JobSet's controller adds, one for each claim template."""
    made = jobset_of(template.workload)
    spec = made.spec if made else template.item.get("spec") or {}
    policies = _mappings(spec.get("volumeClaimPolicies"))
    claims = [spec.get("volumeClaimTemplates"), *(one.get("templates") for one in policies)]
    found = [one.get("metadata") for claim in claims for one in _mappings(claim)]
    return {str(one.get("name")): {"persistentVolumeClaim": {}} for one in found if isinstance(one, dict)}


def _mappings(values: Any) -> list[Object]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _twice(template: Template, what: str, names: Iterable[str]) -> Iterator[Verdict]:
    for name, count in Counter(names).items():
        if count > 1:
            place = Place(template.object, f"{template.spec_path} {what}", name)
            yield bad(place, f"{name} occurs {count} times", "keep one")


@rule("references")
def references(subject: Subject) -> Iterator[Verdict]:
    candidates = {kind: _Candidates(subject, kind) for kind in ("PersistentVolumeClaim", "ConfigMap", "Secret")}
    for template in subject.templates:
        known = {kind: subject.named(kind, template.namespace) for kind in candidates}
        for kind, name, path, key, optional in wanted(template):
            here = known[kind]
            place = Place(template.object, path, name)
            if "$" not in name and not is_subdomain(name):
                yield bad(place, f"Kubernetes allows no {kind} of the name {name!r}", "use a-z, 0-9, - and .")
                continue
            if name in here:
                yield _key_verdict(place, kind, here[name], key, optional)
                continue
            reason = candidates[kind].reason(template, name, path)
            if reason and not optional:
                summary = f"{kind} {name} is not in the manifest: {reason}"
                yield bad(place, summary, "correct the name or the namespace")
            else:
                verdict = good(place, f"{kind} {name} is not in the manifest and must be in the cluster")
                yield needed(verdict, f"{kind} {name}" + (" (optional)" if optional else ""))
        for kind, name, path, *_ in classes(template):
            if name not in subject.named(kind, template.namespace):
                yield needed(
                    good(Place(template.object, path, name), f"{kind} {name} must be in the cluster"), f"{kind} {name}"
                )


Wanted = tuple[str, str, str, str | None, bool]  # kind, name, path, key, optional
MAPS = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
KEYS = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}


def wanted(template: Template) -> Iterator[Wanted]:
    """Yield each object that a pod names."""
    for name, volume in template.volumes().items():
        path = f"{template.spec_path}.volumes[{name}]"
        if claim := volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", claim["claimName"], path, None, False
        for kind, ref in sources(volume):
            for key in [item["key"] for item in ref.get("items") or []] or ([None] if ref else []):
                yield kind, source_name(ref), path, key, bool(ref.get("optional"))
    for path, container in template.containers():
        for mount in container.get("volumeMounts") or []:
            found = sources(template.volumes().get(mount["name"], {}))
            if mount.get("subPath") and len(found) == 1 and not found[0][1].get("items"):
                (kind, ref), key = found[0], mount["subPath"].partition("/")[0]
                yield kind, source_name(ref), f"{path}.volumeMounts[{mount['name']}]", key, bool(ref.get("optional"))
        for source in container.get("envFrom") or []:
            for field, kind in MAPS.items():
                if given := source.get(field):
                    yield kind, given.get("name", ""), f"{path}.envFrom", None, bool(given.get("optional"))
        for entry in container.get("env") or []:
            at = f"{path}.env[{entry['name']}]"
            for field, kind in KEYS.items():
                if given := (entry.get("valueFrom") or {}).get(field):
                    yield kind, given.get("name", ""), at, given["key"], bool(given.get("optional"))


def classes(template: Template) -> Iterator[Wanted]:
    """Yield the classes that a pod names, and its job's queue of Kueue."""
    for field, kind in (("priorityClassName", "PriorityClass"), ("runtimeClassName", "RuntimeClass")):
        name = str(template.spec.get(field) or "")
        if name and "$" not in name and not name.startswith("system-"):
            yield kind, name, f"{template.spec_path}.{field}", None, False
    job = template.workload
    if job and job.queue and not isinstance(job, VolcanoJob):
        yield "LocalQueue", job.queue, f"metadata.labels[{QUEUE_LABEL}]", None, False


def _key_verdict(place: Place, kind: str, item: Object, key: str | None, optional: bool) -> Verdict:
    if key is None or kind == "PersistentVolumeClaim" or optional:
        return good(place, f"{kind} {name_of(item)} is in the manifest")
    keys = {name for part in ("data", "stringData", "binaryData") for name in item.get(part) or {}}
    if key in keys:
        return good(place, f"{kind} {name_of(item)} has the key {key}")
    match = nearest(key, keys)
    remedy = f"did you mean {match}?" if match else "add it"
    return bad(place, f"{kind} {name_of(item)} has no key {key}", remedy)


class _Candidates:
    """The objects of one kind in a manifest, for which a pod may have meant to ask."""

    def __init__(self, subject: Subject, kind: str) -> None:
        self._objects = {name_of(item): item for item in subject.manifests.of_kind(kind)}
        self._bases = {name: HASH.sub("", name) for name in itertools.islice(self._objects, COMPARED)}
        used = {name for one in subject.templates for its, name, *_ in wanted(one) if its == kind}
        self._unused = [name for name in self._objects if name not in used]
        self._roles: dict[tuple[int, str], set[str]] = {}
        for one in subject.templates:
            for _, name, path, _, _ in (each for each in wanted(one) if each[0] == kind):
                place = id(one.item), path.removeprefix(one.path)
                self._roles.setdefault(place, set()).update({name} & set(self._objects))

    def reason(self, template: Template, name: str, path: str) -> str:
        """Return why a missing object should be in the manifest, or an empty text."""
        if name in self._objects:
            namespace = self._objects[name]["metadata"].get("namespace")
            return f"it is in namespace {namespace}, the pod in {template.namespace}"
        base = HASH.sub("", name)
        for other, hashed in self._bases.items():
            if (hashed != other or base != name) and (hashed == base or hashed.endswith(f"-{base}")):
                return f"the manifest has {other}, with another hash or prefix"
        if base != name and self._unused:
            return f"a generated name, and the manifest has {self._unused[0]}, which no pod uses"
        match = nearest(name, self._unused, cutoff=SIMILAR)
        if match:
            return f"the manifest has {match}, which no pod uses"
        same = self._roles.get((id(template.item), path.removeprefix(template.path)), set())
        match = nearest(name, same, cutoff=SIMILAR)
        return f"another role of the job names {match}" if match else ""


@rule("service-account")
def service_account(subject: Subject) -> Iterator[Verdict]:
    training = subject.training()
    used = {(template.namespace, template.spec.get("serviceAccountName")) for template in subject.templates}
    names = {name for _, name in used}
    for item in subject.manifests.of_kind("ServiceAccount") if training else ():
        name, namespace = name_of(item), item["metadata"].get("namespace") or ""
        role = (item["metadata"].get("annotations") or {}).get(ROLE)
        place = Place(title(item), "metadata.name", f"{name}{f' with role {role}' if role else ''}")
        others = [space for space, user in used if user == name and space and namespace and space != namespace]
        if name in names and others:
            summary = f"it is in namespace {namespace}, its pods in {others[0]}"
            yield bad(place, summary, "put both into one namespace")
        elif name in names:
            yield good(place, "pods use it")
        else:
            accounts = ", ".join(sorted(str(account or "default") for account in names))
            yield doubtful(place, f"no pod uses it; the pods run as {accounts}", f"serviceAccountName: {name}")


@rule("object-twice")
def object_twice(subject: Subject) -> Iterator[Verdict]:
    found: dict[tuple[str, str, str, str], list[Object]] = {}
    for item in subject.objects:
        if "generateName" not in item["metadata"]:
            namespace = item["metadata"].get("namespace") or ""
            key = str(item.get("apiVersion")), str(item["kind"]), str(namespace), name_of(item)
            found.setdefault(key, []).append(item)
    for (_, kind, namespace, name), items in found.items():
        place = Place(f"{kind}/{name}", "metadata.name", f"{namespace}/{name}" if namespace else name)
        if len(items) == 1:
            yield good(place, "it occurs once")
        elif all(item == items[0] for item in items):
            yield doubtful(place, f"{kind} {name} occurs {len(items)} times, with the same content", "keep one")
        else:
            yield bad(place, f"{kind} {name} occurs {len(items)} times", "keep one")
