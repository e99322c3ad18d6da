"""Rules on names that point at other objects: volumes, claims, ConfigMaps, Secrets, service accounts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tools.core.repo import nearest
from tools.core.verdict import Verdict, bad, good
from tools.kube.manifests import name_of
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, Template, title

HASH = re.compile(r"-[bcdfghkmt2456789]{10}$")  # what kustomize appends to a generated name
ROLE = "eks.amazonaws.com/role-arn"
LIKENESS = 0.6


@rule("volumes", "a mount without its volume is refused pod by pod")
def volumes(subject: Subject) -> Iterator[Verdict]:
    """Each volumeMount names a volume of its pod; names and mount paths stand once.

    A merge patch on a custom resource replaces lists as a whole, so that volumes vanish while mounts stay.
    The CRD takes it, the pods are refused.
    """
    for template in subject.templates:
        known = template.volumes()
        yield from _twice(
            template, "volumes", [volume["name"] for volume in template.spec.get("volumes") or []]
        )
        yield from _twice(
            template, "containers", [container["name"] for _, container in template.containers()]
        )
        for path, container in template.containers():
            mounts = container.get("volumeMounts") or []
            yield from _twice(template, f"{path} mountPath", [mount["mountPath"] for mount in mounts])
            for mount in mounts:
                place = Place(template.object, f"{path}.volumeMounts[{mount['name']}]", mount["mountPath"])
                if mount["name"] in known:
                    yield good(place, "the volume is there")
                else:
                    match = nearest(mount["name"], known)
                    yield bad(
                        place,
                        f"the pod has no volume {mount['name']}",
                        f"did you mean {match}?" if match else f"add a volume {mount['name']}",
                    )


def _twice(template: Template, what: str, names: Iterable[str]) -> Iterator[Verdict]:
    for name, count in Counter(names).items():
        if count > 1:
            yield bad(
                Place(template.object, f"{template.spec_path} {what}", name),
                f"{name} stands twice",
                "keep one",
            )


@rule("references", "a pod that names an object that is not there waits in ContainerCreating, on a paid node")
def references(subject: Subject) -> Iterator[Verdict]:
    """Claims, ConfigMaps and Secrets that pods name are in the manifest, or are plainly somebody else's.

    An object that is not here fails where the manifest shows that it should be: it has one of a similar name
    that nobody uses, one of the same generated name with another hash, or one in another namespace. A key is
    looked up where the object is here. All others are listed as what the job needs from the cluster.
    """
    for template in subject.templates:
        wanted = list(_wanted(template))
        for kind, name, path, key, optional in wanted:
            here = subject.named(kind, template.namespace)
            place = Place(template.object, path, name)
            if name in here:
                yield _key_verdict(place, kind, here[name], key, optional)
                continue
            reason = _missing(subject, template, kind, name)
            if reason and not optional:
                yield bad(
                    place,
                    f"{kind} {name} is not in the manifest: {reason}",
                    "correct the name or the namespace",
                )
            else:
                verdict = good(place, f"{kind} {name} is not in the manifest and must be in the cluster")
                verdict.details["needs"] = f"{kind} {name}" + (" (optional)" if optional else "")
                yield verdict


Wanted = tuple[str, str, str, str | None, bool]


def _wanted(template: Template) -> Iterator[Wanted]:
    """Yield kind, name, path, key and optional of each object that a pod names."""
    at = template.spec_path
    for name, volume in template.volumes().items():
        path = f"{at}.volumes[{name}]"
        if volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], path, None, False
        if volume.get("secret"):
            yield (
                "Secret",
                volume["secret"].get("secretName", ""),
                path,
                None,
                bool(volume["secret"].get("optional")),
            )
        sources = (volume.get("projected") or {}).get("sources") or []
        for source in [volume, *sources]:
            yield from _from_source(source, path, projected=source is not volume)
    for path, container in template.containers():
        for source in container.get("envFrom") or []:
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if source.get(key):
                    yield (
                        kind,
                        source[key].get("name", ""),
                        f"{path}.envFrom",
                        None,
                        bool(source[key].get("optional")),
                    )
        for entry in container.get("env") or []:
            for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                ref = (entry.get("valueFrom") or {}).get(key)
                if ref:
                    yield (
                        kind,
                        ref.get("name", ""),
                        f"{path}.env[{entry['name']}]",
                        ref["key"],
                        bool(ref.get("optional")),
                    )


def _from_source(source: dict[str, Any], path: str, projected: bool) -> Iterator[Wanted]:
    kinds = [("configMap", "ConfigMap"), *([("secret", "Secret")] if projected else [])]
    for key, kind in kinds:
        found = source.get(key)
        if not found:
            continue
        keys = [item["key"] for item in found.get("items") or []] or [None]
        for one in keys:
            yield kind, found.get("name", ""), path, one, bool(found.get("optional"))


def _key_verdict(place: Place, kind: str, found: dict[str, Any], key: str | None, optional: bool) -> Verdict:
    if key is None or kind == "PersistentVolumeClaim" or optional:
        return good(place, f"{kind} {name_of(found)} is in the manifest")
    keys = {name for part in ("data", "stringData", "binaryData") for name in found.get(part) or {}}
    if key in keys:
        return good(place, f"{kind} {name_of(found)} has the key {key}")
    match = nearest(key, keys)
    return bad(
        place, f"{kind} {name_of(found)} has no key {key}", f"did you mean {match}?" if match else "add it"
    )


def _missing(subject: Subject, template: Template, kind: str, name: str) -> str:
    """Return why an object that is not here should be, or an empty text."""
    everywhere = {name_of(item): item for item in subject.manifests.of_kind(kind)}
    if name in everywhere:
        space = everywhere[name]["metadata"].get("namespace")
        return f"it is in namespace {space}, the pod in {template.namespace}"
    base = HASH.sub("", name)
    for other in everywhere:
        hashed = HASH.sub("", other)
        if (hashed != other or base != name) and (hashed == base or hashed.endswith(f"-{base}")):
            return f"it has {other}, whose name has another hash or prefix"
    used = {wanted[1] for one in subject.templates for wanted in _wanted(one) if wanted[0] == kind}
    match = nearest(name, [other for other in everywhere if other not in used], cutoff=LIKENESS)
    return f"it has {match}, which nobody uses" if match else ""


@rule("service-account", "a role on a service account that no pod uses gives nobody anything")
def service_account(subject: Subject) -> Iterator[Verdict]:
    """Service accounts of a manifest with training jobs are used by its pods.

    The usual fault: the account is made and has its role, and the job's pods run as `default`, without it.
    """
    training = subject.training()
    used = {(template.namespace, template.spec.get("serviceAccountName")) for template in subject.templates}
    names = {name for _, name in used}
    for item in subject.manifests.of_kind("ServiceAccount") if training else ():
        name, namespace = name_of(item), item["metadata"].get("namespace") or ""
        role = (item["metadata"].get("annotations") or {}).get(ROLE)
        place = Place(title(item), "metadata.name", f"{name}{f' with role {role}' if role else ''}")
        apart = [space for space, one in used if one == name and space and namespace and space != namespace]
        if name in names and apart:
            yield bad(
                place, f"it is in namespace {namespace}, its pods in {apart[0]}", "put both in one namespace"
            )
        elif name in names:
            yield good(place, "pods use it")
        else:
            others = ", ".join(sorted(str(one or "default") for one in names))
            yield bad(place, f"no pod uses it; they run as {others}", f"serviceAccountName: {name}")


@rule("object-twice", "of two objects with one name the last wins, without a word")
def object_twice(subject: Subject) -> Iterator[Verdict]:
    """Each object stands once: kind, namespace and name. Names that the API server completes are left out."""
    keys = [
        (
            str(item.get("apiVersion")),
            str(item.get("kind")),
            str(item["metadata"].get("namespace") or ""),
            name_of(item),
        )
        for item in subject.objects
        if "generateName" not in item["metadata"]
    ]
    for (_, kind, namespace, name), count in Counter(keys).items():
        place = Place(f"{kind}/{name}", "metadata.name", f"{namespace}/{name}" if namespace else name)
        if count > 1:
            yield bad(place, f"{kind} {name} stands {count} times", "keep one of them")
        else:
            yield good(place, "it stands once")
