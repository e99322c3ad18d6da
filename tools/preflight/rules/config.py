"""Rules on what is trained: the trainer's own configuration, and models that need a token."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tools.core.verdict import Verdict, bad, good
from tools.preflight.rule import Place, rule
from tools.preflight.rules.storage import save_seconds
from tools.preflight.subject import Subject, Template
from tools.simulator.command_line import literals, words
from training.config import FILES, Config, ConfigError, load_texts
from training.models.counting import trainable_parameters

# Owners on the Hugging Face hub whose models are given to those only who have accepted their terms.
GATED = re.compile(
    r"\b(?:meta-llama/[\w.-]+|google/(?:code)?gemma[\w.-]*|black-forest-labs/FLUX\.1-dev|bigcode/starcoder[\w.-]*)"
)
TOKEN_NAMES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HUGGINGFACE_HUB_TOKEN",
    "HUGGINGFACE_TOKEN",
    "HF_TOKEN_PATH",
)
COMMIT = re.compile(r"[0-9a-f]{40}")
BYTES_SAVED = 12  # a parameter: fp32 weight and two moments
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@rule("config", "a misspelt key trains another model than the one that was meant")
def config(subject: Subject) -> Iterator[Verdict]:
    """model.yaml, hardware.yaml and cell.yaml of trainyard's trainer are whole, valid and known to it.

    Judged where the manifest has all three: unknown keys with the nearest known one, types, ranges,
    sections in the wrong file, and a global batch that the ranks cannot share.
    """
    for template, texts in _configured(subject):
        place = Place(template.object, "model.yaml, hardware.yaml, cell.yaml")
        loaded, world = _loaded(texts), _world_size(subject, template)
        problem = loaded if isinstance(loaded, ConfigError) else _unshared(loaded, world)
        if problem is not None:
            yield bad(place, str(problem), "correct the configuration")
        elif world is None:
            yield good(place, "a valid configuration; how many ranks there are is found out by torchrun")
        else:
            yield good(place, f"a valid configuration, and {world} ranks can share its batch")


def _unshared(loaded: Config, world: int | None) -> ConfigError | None:
    """Return why the ranks cannot share the global batch, or None."""
    try:
        if world is not None:
            loaded.accumulation(world)
    except ConfigError as problem:
        return problem
    return None


@rule("config-checkpoint", "a run whose first checkpoint comes after its last step saves nothing on the way")
def config_checkpoint(subject: Subject) -> Iterator[Verdict]:
    """checkpoint.every is not above train.steps in trainyard's configuration."""
    for template, texts in _configured(subject):
        loaded = _loaded(texts)
        if isinstance(loaded, ConfigError):
            continue  # the rule `config` says it
        every, steps = loaded.checkpoint.every, loaded.train.steps
        place = Place(template.object, "cell.yaml: checkpoint.every", every)
        if every <= steps:
            yield good(place, f"every {every} of {steps} steps")
        else:
            yield bad(place, f"every {every} steps, and train.steps is {steps}", f"at most {steps}")


@rule("pinned-weights", "a branch that has moved gives each run of the same file another base")
def pinned_weights(subject: Subject) -> Iterator[Verdict]:
    """model.weights of trainyard's configuration names a repository of the hub at a commit of 40 hex digits.

    The trainer keeps the commit that a branch or tag named when a run began; the manifest does not.
    """
    for template, texts in _configured(subject):
        loaded = _loaded(texts)
        weights = "" if isinstance(loaded, ConfigError) else loaded.model.weights or ""
        repository, at, revision = weights.partition("@")
        if not at or weights.startswith("/"):
            continue
        place = Place(template.object, "model.yaml: model.weights", weights)
        if COMMIT.fullmatch(revision):
            yield good(place, "weights at a commit")
        else:
            yield bad(place, f"{revision} is a branch or a tag, which can move", f"{repository}@<commit>")


@rule("save-time", "a checkpoint larger than the network can carry in the time given is never whole")
def save_time(subject: Subject) -> Iterator[Verdict]:
    """The checkpoint can be written between SIGTERM and SIGKILL, at least at the network's full speed.

    Judged for trainyard's trainer: what is trained, in fp32 with Adam's two moments (12 bytes a parameter),
    over the network of all nodes together, against the time that torchrun gives its workers. It is a lower
    bound: one step comes before it, and no file system takes the whole network.
    """
    for template, texts in _configured(subject):
        loaded, machines = _loaded(texts), template.selected.known
        if isinstance(loaded, ConfigError) or not machines or template.selected.unknown:
            continue
        size = BYTES_SAVED * trainable_parameters(loaded.model, loaded.lora)
        speed = template.nodes * max(one.network_mbps for one in machines) * 1e6 / 8
        need, given = size / speed, save_seconds(template)
        shown = (
            f"{size / 2**30:,.1f} GiB over {template.nodes} x {machines[0].name}: {need:,.1f} s of {given} s"
        )
        place = Place(template.object, f"{template.spec_path}.terminationGracePeriodSeconds", shown)
        if need < given:
            yield good(place, "the network can carry a checkpoint in the time given")
        else:
            remedy = f"PET_SHUTDOWN_TIMEOUT and the grace period well above {need:,.0f} s, or more nodes"
            yield bad(place, f"a checkpoint takes {need:,.0f} s at least, and {given} s are given", remedy)


@rule("gated-model", "a model that needs a token is refused after the nodes are up")
def gated_model(subject: Subject) -> Iterator[Verdict]:
    """A container that fetches a gated model has a reference to a token.

    Looked at: names such as meta-llama/... in commands, variables and trainyard's configuration. A token is a
    variable such as HF_TOKEN, an envFrom, or a mounted Secret. With HF_HUB_OFFLINE nothing is fetched.
    """
    configured = {id(template): texts for template, texts in _configured(subject)}
    for template in subject.templates:
        for path, container in template.containers():
            texts = [*words(container), *literals(container).values()]
            texts += _named_in_config(configured.get(id(template), {}))
            found = next((match[0] for text in texts if (match := GATED.search(text))), None)
            if found is None or any(literals(container).get(name) == "1" for name in OFFLINE):
                continue
            place = Place(template.object, path, found)
            if _has_token(template, container):
                yield good(place, f"{found} is gated, and a token is named")
            else:
                yield bad(
                    place, f"{found} is gated, and the container has no token", "HF_TOKEN by secretKeyRef"
                )


Texts = Mapping[str, tuple[str, str]]


def _configured(subject: Subject) -> Iterator[tuple[Template, Texts]]:
    """Yield each training template that mounts all three files, with their texts."""
    for template in subject.training():
        maps = subject.named("ConfigMap", template.namespace)
        found: dict[str, str] = {}
        for name in _mounted_maps(template):
            found |= (maps.get(name) or {}).get("data") or {}
        texts = {layer: (f"{layer}.yaml", found.get(f"{layer}.yaml")) for layer in FILES}
        if all(isinstance(text, str) for _, text in texts.values()):
            yield template, {layer: (name, str(text)) for layer, (name, text) in texts.items()}


def _mounted_maps(template: Template) -> Iterator[str]:
    for volume in template.volumes().values():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        for source in sources:
            if source.get("configMap"):
                yield str(source["configMap"].get("name"))


def _loaded(texts: Texts) -> Config | ConfigError:
    """Return the configuration, or what is wrong with it."""
    return _parsed(tuple(texts.items()))


@functools.lru_cache(maxsize=64)
def _parsed(texts: tuple[tuple[str, tuple[str, str]], ...]) -> Config | ConfigError:
    try:
        return load_texts(dict(texts))
    except ConfigError as problem:
        return problem


def _world_size(subject: Subject, template: Template) -> int | None:
    """Return the job's ranks, or None where torchrun counts devices itself."""
    job = next((job for job in subject.jobs if job.item is template.item), None)
    nodes = job.analysis.nodes if job and job.analysis else []
    counts = [node.processes for node in nodes]
    return sum(count for count in counts if count) if nodes and None not in counts else None


def _named_in_config(texts: Texts) -> list[str]:
    """Return the values in model.yaml that can name a model on the hub."""
    return (
        re.findall(r"(?m)^\s*(?:weights|tokenizer|source):\s*([^#\s]+)", texts["model"][1]) if texts else []
    )


def _has_token(template: Template, container: dict[str, Any]) -> bool:
    named = any(entry["name"] in TOKEN_NAMES for entry in container.get("env") or [])
    from_secret = any(source.get("secretRef") for source in container.get("envFrom") or [])
    mounted = any(volume.get("secret") or "csi" in volume for volume in template.volumes().values())
    return named or from_secret or mounted
