"""Looks at the volume before a job starts: are its data, tokenizer and weights there?"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tools.cells.trainer_config import config_texts, inputs
from tools.core import Say, UserError, repo
from tools.facts.gated import GATED
from tools.kube import Kubectl, Manifests, Object
from tools.stage import pods
from tools.stage.bring import noted
from tools.workload import kinds

if TYPE_CHECKING:
    from training.config import Config

SECONDS = 90.0  # until the pod has answered: an image pull included
SECRET = "hf-token"
_ON_HUB = re.compile(r"(?<![\w./-])([\w.-]{1,96}+/[\w.-]{1,96}+) on the Hugging Face hub(?:, revision ([0-9a-f]{40}))?")


@dataclass(frozen=True)
class Need:
    """What a key of the configuration names on a claim: `value` in the pod, `inside` on the claim."""

    kind: str  # data, tokenizer, weights or run, as training/stage/present.py has them
    value: str
    claim: str
    inside: str


def check(kubectl: Kubectl, manifests: Manifests, say: Say) -> None:
    """Refuse a job whose data, tokenizer or weights are not on its volume, or whose hub needs a token.

    Raises UserError (1) that names the command for each. What cannot be looked at is one line.
    """
    texts = config_texts(manifests, repo.root())
    if not texts:
        return
    from training.config import load_texts

    config = load_texts(texts)
    _check_token(kubectl, config)
    needs = _unnoted(kubectl, list(needed(manifests, config)), say)
    if not needs:
        return
    try:
        found = _looked(kubectl, manifests, needs, say)
    except UserError as problem:
        names = ", ".join(need.value for need in needs)
        say(f"CANNOT TELL whether the volume has {names}: {problem.message}; continuing")
        return
    lacking = [need for need in needs if found[need]["there"] is not True]
    for need in needs:
        say(f"{'FAIL' if need in lacking else 'PASS'} {need.kind}: {found[need].get('why')}")
    if lacking:
        for need in lacking:
            say(f"  {command(need, texts['model'][1], kubectl.namespace)}")
        names = ", ".join(need.value for need in lacking)
        raise UserError(f"{names}: not on the volume, nothing was applied", "run the commands above first", 1)


def needed(manifests: Manifests, config: Config) -> Iterator[Need]:
    """Yield what the configuration names on claims that the trainer mounts."""
    for kind, value in inputs(config):
        if (place := _place(manifests, value)) is not None:
            yield Need(kind, value, *place)


def _place(manifests: Manifests, value: str) -> tuple[str, str] | None:
    """Return the claim below whose mount a path of the trainer lies, and the path on it."""
    found = []
    for claim, mount in _mounts(manifests):
        where = PurePosixPath(mount["mountPath"])
        if PurePosixPath(value).is_relative_to(where) and "subPathExpr" not in mount:
            inside = PurePosixPath(mount.get("subPath") or ".") / PurePosixPath(value).relative_to(where)
            found.append((len(where.parts), claim, str(inside)))
    return max(found)[1:] if found else None


def _mounts(manifests: Manifests) -> Iterator[tuple[str, Object]]:
    """Yield the mounts of claims in the training container, each with its claim."""
    job = kinds.job_of(manifests)
    role = job.roles[0]
    spec = role.template["spec"]
    main = job.container_of(role.template)
    claims = {one["name"]: one.get("persistentVolumeClaim") for one in spec.get("volumes") or []}
    for container in spec["containers"]:
        for mount in (container.get("volumeMounts") or []) if container["name"] == main else []:
            if claim := claims.get(mount["name"]):
                yield str(claim["claimName"]), mount


def _unnoted(kubectl: Kubectl, needs: list[Need], say: Say) -> list[Need]:
    """Return the needs that `yard stage` has not noted as staged."""
    left, staged = [], noted(kubectl) if needs else []
    for need in needs:
        found = next((one for one in staged if _covers(one, need)), None)
        if found is None:
            left.append(need)
        else:
            ago = (time.time() - float(found["time"])) / 3600
            say(f"PASS {need.kind}: {need.value} was staged {ago:,.1f} h ago from {found['source']}")
    return left


def _covers(staged: dict[str, Any], need: Need) -> bool:
    """Return whether what was staged holds a need. A part of a model holds its tokenizer only."""
    try:
        claim, _, path = str(staged["place"]).partition(":")
        _ = float(staged["time"]), staged["source"]
        whole = not staged["include"] or need.kind == "tokenizer"
    except (KeyError, TypeError, ValueError):
        return False
    inside, there = PurePosixPath(need.inside), PurePosixPath(path)
    below = need.kind == "data" and there.is_relative_to(inside)
    return claim == need.claim and whole and need.kind != "run" and (inside == there or below)


def _looked(kubectl: Kubectl, manifests: Manifests, needs: list[Need], say: Say) -> dict[Need, Object]:
    """Return what a small pod with the trainer's claims says of each need. Raises UserError."""
    name = f"look-{secrets.token_hex(4)}"
    job, policy = pods.objects(name, None)
    claims = sorted({need.claim for need in needs})
    for claim, mount in _mounts(manifests):
        if claim in claims and "subPathExpr" not in mount:
            volume, inside = f"claim-{claims.index(claim)}", mount.get("subPath") or ""
            pods.mount(job, claim, mount["mountPath"], volume, True, inside)
    job["spec"] |= {"backoffLimit": 0, "activeDeadlineSeconds": round(2 * SECONDS)}
    spec = job["spec"]["template"]["spec"]
    spec["containers"][0] |= {
        "args": ["present", *(f"--{need.kind}={need.value}" for need in needs)],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
    }
    say("looking at the volume with a small pod")
    try:
        pods.start(kubectl, [job, policy], lambda _: None)
        found = pods.follow(kubectl, name, SECONDS, say).get("present")
    finally:
        pods.remove(kubectl, name)
    said = [one for one in found or [] if isinstance(one, dict) and "there" in one]
    by_need = {
        need: one for need in needs for one in said if (one.get("kind"), one.get("value")) == (need.kind, need.value)
    }
    if len(by_need) < len(needs):
        raise UserError(f"{name} answered about {len(by_need)} of {len(needs)} questions")
    return by_need


def command(need: Need, model: str, namespace: str | None) -> str:
    """Return the command that brings what is needed. `model` is the text of model.yaml, with its source."""
    where = f" -n {namespace}" if namespace else ""
    if need.kind == "run":
        return f"train {PurePosixPath(need.value).name} first: this job starts from its checkpoint"
    if need.kind == "data":
        path = PurePosixPath(need.inside)
        place = str(path.parent) if re.search(r"[*?\[.]", path.name) else f"{path}/NAME"
        return f"yard stage SOURCE --to {need.claim}:{place}{where}"
    found = _ON_HUB.search(model)
    name = PurePosixPath(need.inside).name
    source = f"hf://{found[1]}{f'@{found[2]}' if found[2] else ''}" if found else f"hf://ORGANISATION/{name}"
    only = ' --include "tokenizer*"' if need.kind == "tokenizer" else ""
    return f"yard stage {source}{only} --to {need.claim}:{need.inside}{where}"


def _check_token(kubectl: Kubectl, config: Config) -> None:
    """Refuse a job that downloads a gated model without the Secret for the token."""
    named = [config.model.weights or "", config.data.tokenizer, *config.data.source.split("\n")]
    gated = next((value for value in named if not value.startswith("/") and GATED.search(value)), None)
    if gated is None:
        return
    done = kubectl.run("get", "secret", "--ignore-not-found", "--output=name", names=[SECRET])
    if done.returncode == 0 and not done.stdout.strip():
        message = f"{gated} is gated, and namespace {kubectl.namespace} has no Secret {SECRET}"
        raise UserError(f"{message}: nothing was applied", f"yard secret hf-token -n {kubectl.namespace}", 1)
