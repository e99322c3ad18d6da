"""Checks Secrets in git: none in plain text, and none whose ciphertext Flux would apply as the value.

SOPS adds a key `sops` to an encrypted file and starts each value with `ENC[`. Flux decrypts only for a
Kustomization with `spec.decryption`; any other applies the values as they are and reports Ready True.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.cells.kustomize import Renderer
from tools.core import State, UserError, Verdict, git
from tools.core.repo import shown
from tools.gitops import flux_objects
from training.run import bounds

FOLDERS = ("base", "clusters", "overlays")  # from which Flux applies
ENCRYPTED = "ENC["
RULE = {"rule": "secret"}
LONGEST_RULE, LONGEST_KEY, MOST_QUANTIFIERS = 1000, 256, 2  # of a pattern of SOPS, and of a key
QUANTIFIER, NESTED = re.compile(r"[*+{]"), re.compile(r"\)[*+?{]")


def check(root: Path, renderer: Renderer) -> list[Verdict]:
    """Return a verdict on every Secret and secretGenerator in files that git has or would add."""
    appliers = [
        one
        for name in flux_objects.names(root)
        for one in flux_objects.kustomizations(root / "clusters" / name, renderer)
    ]
    found: list[Verdict] = []
    for name in git.files(root, *FOLDERS):
        path = root / name
        if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
            found += [one for item in _documents(path) for one in _object(root, path, item, appliers)]
    return found


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    if "Secret" not in text and "secretGenerator" not in text and "\nsops:" not in text:
        return
    try:
        documents = _loaded(path, text)
    except yaml.YAMLError:
        return  # rendering reports it
    yield from (item for item in documents if isinstance(item, dict))


def _loaded(path: Path, text: str) -> list[Any]:
    """Return the documents of a file of the repository; UserError where they stand for too much."""
    try:
        bounds.check(yaml.parse(text))
        return list(yaml.safe_load_all(text))
    except ValueError as problem:
        raise UserError(f"{shown(path)}: {problem}") from None


def _object(root: Path, path: Path, item: dict[str, Any], appliers: list[flux_objects.Applied]) -> Iterator[Verdict]:
    where = path.relative_to(root).as_posix()
    if str(item.get("kind", "")).endswith("List"):
        of = {"kind": "Secret"} if item["kind"] == "SecretList" else {}
        for one in item.get("items") or []:
            yield from _object(root, path, {**of, **one}, appliers) if isinstance(one, dict) else ()
    for text, target in _patches(item):
        yield from _patched(root, path, text, target, appliers)
    if item.get("kind") == "Secret":
        name = f"{where}: Secret {(item.get('metadata') or {}).get('name')}"
        values = [*(item.get("data") or {}).values(), *(item.get("stringData") or {}).values()]
        plain = [one for one in values if not str(one).startswith(ENCRYPTED)]
        if plain:
            yield _bad(f"{name} is in plain text: everyone who can read the repository can read it", _ENCRYPT)
        elif "sops" in item:
            yield _decrypted(root, path, name, appliers)
        elif values:
            yield _bad(f"{name} has encrypted values but no key `sops`: it cannot be decrypted", _ENCRYPT)
    elif "sops" in item and str(item.get("kind", "")).startswith(ENCRYPTED):
        yield _bad(f"{where}: the whole file is encrypted, so Flux cannot read the object's kind", _ENCRYPT)
    for generator in item.get("secretGenerator") or []:
        yield from _generated(root, path, generator, appliers)


def _patches(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the patches in a kustomization or a Flux Kustomization, each with the kind of its target."""
    spec = item.get("spec")
    for holder in (item, spec if isinstance(spec, dict) else {}):
        for one in [*(holder.get("patches") or []), *(holder.get("patchesJson6902") or [])]:
            if isinstance(one, dict) and isinstance(one.get("patch"), str):
                yield one["patch"], str((one.get("target") or {}).get("kind", ""))
        for one in holder.get("patchesStrategicMerge") or []:
            if "\n" in str(one):
                yield str(one), ""


def _patched(root: Path, path: Path, text: str, target: str, appliers: list[flux_objects.Applied]) -> Iterator[Verdict]:
    """Yield verdicts on a patch that holds a part of a Secret, or operations on one."""
    try:
        documents = _loaded(path, text)
    except yaml.YAMLError:
        return  # rendering reports it
    for one in documents:
        if isinstance(one, dict):
            yield from _object(root, path, one, appliers)
        elif isinstance(one, list) and target == "Secret" and any("value" in step for step in one):
            where = path.relative_to(root).as_posix()
            yield _bad(f"{where}: a patch of a Secret is in plain text", _ENCRYPT)


def _generated(
    root: Path, path: Path, generator: dict[str, Any], appliers: list[flux_objects.Applied]
) -> Iterator[Verdict]:
    """Yield verdicts on the literals and the files of a secretGenerator."""
    name = f"{path.relative_to(root).as_posix()}: secretGenerator {generator.get('name')}"
    if generator.get("literals"):
        yield _bad(f"{name} has its values in plain text, as `literals`", _ENCRYPT)
    env = [generator["env"]] if generator.get("env") else []
    for entry in [*(generator.get("files") or []), *(generator.get("envs") or []), *env]:
        source = path.parent / str(entry).rpartition("=")[2]
        known = source.is_file() and source.resolve().relative_to(root).as_posix() in git.files(root, *FOLDERS)
        if known and not _is_encrypted(source, entry in (*(generator.get("envs") or []), *env)):
            yield _bad(f"{name}: {source.name} is in plain text", _ENCRYPT)
        elif known:
            yield _decrypted(root, path, f"{name} from {source.name}", appliers)


def _is_encrypted(source: Path, is_env: bool) -> bool:
    """Return whether every value of a file is encrypted, except those that its SOPS settings leave plain."""
    text = source.read_text(encoding="utf-8", errors="replace")
    if is_env:
        lines = [line.partition("=") for line in text.splitlines() if line.strip() and line[0] != "#"]
        return all(value.startswith(ENCRYPTED) for name, _, value in lines if not name.startswith("sops_"))
    try:
        content = next(iter(_loaded(source, text)), None)
    except yaml.YAMLError:
        content = None
    if not isinstance(content, dict):
        return ENCRYPTED in text and "sops" in text  # SOPS's ini format; all else is JSON or YAML
    settings = content.pop("sops", None)
    return isinstance(settings, dict) and not any(_plain(content, settings))


def _plain(value: Any, settings: dict[str, Any], keys: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield the plain values that SOPS should have encrypted. SOPS does not encrypt empty values."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _plain(one, settings, (*keys, str(key)))
    elif isinstance(value, list):
        for one in value:
            yield from _plain(one, settings, keys)
    elif value not in (None, "") and not str(value).startswith(ENCRYPTED) and _is_to_encrypt(keys, settings):
        yield value


def _found(pattern: str, key: str) -> bool:
    """Search a key. SOPS' patterns need linear time, Python's do not: nested repetitions are not tried."""
    repeated = len(QUANTIFIER.findall(pattern))
    if len(pattern) > LONGEST_RULE or repeated > MOST_QUANTIFIERS or NESTED.search(pattern):
        raise re.error("more repetitions than a rule of SOPS needs")
    return bool(re.search(pattern, key[:LONGEST_KEY]))


def _is_to_encrypt(keys: tuple[str, ...], settings: dict[str, Any]) -> bool:
    """Return whether SOPS encrypts the value below these keys (getsops.io/docs, selecting values)."""
    try:
        if pattern := settings.get("encrypted_regex"):
            return any(_found(pattern, key) for key in keys)
        if pattern := settings.get("unencrypted_regex"):
            return not any(_found(pattern, key) for key in keys)
    except (re.error, TypeError):
        return True  # a rule that cannot be read excludes nothing
    if suffix := settings.get("encrypted_suffix"):
        return any(key.endswith(str(suffix)) for key in keys)
    suffix = settings.get("unencrypted_suffix", "_unencrypted")
    return not (suffix and any(key.endswith(str(suffix)) for key in keys))


def _decrypted(root: Path, path: Path, name: str, appliers: list[flux_objects.Applied]) -> Verdict:
    """Check that the Kustomizations that apply an encrypted file decrypt it."""
    using = [one for one in appliers if path.resolve() in [file.resolve() for file in one.files(root)]]
    blind = [one for one in using if (one.spec.get("decryption") or {}).get("provider") != "sops"]
    if not blind:
        by = ", ".join(one.name for one in using) or "no Kustomization applies it"
        return Verdict(State.PASS, f"{name} is encrypted", [f"decrypted for: {by}"], details=RULE)
    evidence = [
        f"Kustomization {one.name} ({one.source.relative_to(root).as_posix()}) has no spec.decryption" for one in blind
    ]
    summary = f"{name} is encrypted, and Flux would apply the ciphertext and report Ready True"
    remedy = "add decryption: {provider: sops, secretRef: {name: sops-age}} to that spec (docs/flux.md)"
    return Verdict(State.FAIL, summary, evidence, remedy, RULE)


_ENCRYPT = "encrypt it (docs/flux.md), and replace the secret if it was pushed"


def _bad(summary: str, remedy: str) -> Verdict:
    return Verdict(State.FAIL, summary, remedy=remedy, details=RULE)
