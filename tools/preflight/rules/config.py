"""Rules on the configuration of trainyard's trainer, and on models that need a token."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from tools.cells.published import Published
from tools.core.verdict import Verdict, bad, doubtful, good, unclear
from tools.kube.manifests import Object
from tools.preflight.rule import PRACTICE, Place, rule
from tools.preflight.rules.storage import save_seconds
from tools.preflight.subject import Subject, Template
from tools.simulator import wiring
from tools.simulator.command_line import literals, words
from training.config import FILES, Config, ConfigError, load_texts
from training.models.counting import trainable_parameters
from training.models.published import differences

# Models on the Hugging Face hub that are available only after their terms have been accepted.
GATED = re.compile(
    r"\b(?:meta-llama/[\w.-]+|google/(?:code)?gemma[\w.-]*|black-forest-labs/FLUX\.1-dev|bigcode/starcoder[\w.-]*)"
)
TOKEN_NAMES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"),
    "HF_TOKEN_PATH",
)
# Keys of model.yaml that can name a model on the hub.
MODEL_KEY = re.compile(r"(?m)^[ \t]*+(?:weights|tokenizer|source):\s*+([^#\s]+)")
COMMIT = re.compile(r"[0-9a-f]{40}")
BYTES_SAVED = 12  # per parameter: an fp32 weight and two moments
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@rule("config", "a misspelt key trains another model than the intended one")
def config(subject: Subject) -> Iterator[Verdict]:
    """model.yaml, hardware.yaml and cell.yaml of trainyard's trainer are valid.

    The rule applies if the manifest has all three. It reports unknown keys with the nearest known one, wrong
    types and ranges, sections in the wrong file, and a global batch that the ranks cannot share. With --base,
    the section model must describe the same model as the base's config.json.
    """
    if subject.base is not None and not any(_configured(subject)):
        place = Place(subject.manifests.source, "model.yaml")
        yield unclear(place, "no configuration of trainyard's trainer, which --base could be compared with")
    for template, texts in _configured(subject):
        place = Place(template.object, "model.yaml, hardware.yaml, cell.yaml")
        loaded, world = _loaded(texts), _world_size(subject, template)
        problem = loaded if isinstance(loaded, ConfigError) else _unshared(loaded, world)
        if problem is not None:
            yield bad(place, str(problem), "correct the configuration")
        elif other := _differences(loaded, subject.base):
            yield bad(place, other, "correct the section model, or name another base")
        elif world is None:
            yield good(place, "a valid configuration; torchrun sets the number of ranks")
        else:
            yield good(place, f"a valid configuration, and {world} ranks can share its batch")


def _differences(loaded: Config | ConfigError, base: Published | None) -> str:
    """Return the keys that differ from the base's config.json, with both values."""
    if base is None or isinstance(loaded, ConfigError):
        return ""
    theirs, ours = base.model["architecture"], loaded.model.architecture
    if theirs != ours:  # the other keys differ because of it
        return f"{base.where}: model_type is {theirs}, model.architecture is {ours}"
    found = differences(base.model, loaded.model)
    return f"{base.where}: {'; '.join(found)}" if found else ""


def _unshared(loaded: Config, world: int | None) -> ConfigError | None:
    try:
        if world is not None:
            loaded.accumulation(world)
    except ConfigError as problem:
        return problem
    return None


@rule(
    "config-checkpoint",
    "a run whose first checkpoint comes after its last step saves nothing before the end",
    PRACTICE,
)
def config_checkpoint(subject: Subject) -> Iterator[Verdict]:
    """checkpoint.every is not above train.steps in trainyard's configuration."""
    for template, texts in _configured(subject):
        loaded = _loaded(texts)
        if isinstance(loaded, ConfigError):
            continue  # the rule `config` reports it
        every, steps = loaded.checkpoint.every, loaded.train.steps
        place = Place(template.object, "cell.yaml: checkpoint.every", every)
        if every <= steps:
            yield good(place, f"every {every} of {steps} steps")
        else:
            yield bad(place, f"every {every} steps, but train.steps is {steps}", f"at most {steps}")


@rule("pinned-weights", "a branch can move, so runs of the same file start from different weights", PRACTICE)
def pinned_weights(subject: Subject) -> Iterator[Verdict]:
    """model.weights of trainyard's configuration names a repository of the hub at a commit of 40 hex digits.

    A run keeps the commit that a branch or tag named when it started. The manifest does not.
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
            yield bad(place, f"{revision} is a branch or tag, which can move", f"{repository}@<commit>")


@rule(
    "save-time", "a checkpoint too large for the network and the available time is never complete", PRACTICE
)
def save_time(subject: Subject) -> Iterator[Verdict]:
    """The checkpoint can be written between SIGTERM and SIGKILL at the network's full speed.

    For trainyard's trainer, the rule compares the size of the trained parameters in fp32 with Adam's two
    moments (12 bytes per parameter), divided by the network bandwidth of all nodes, with the time that
    torchrun gives its workers. This is a lower bound: a step comes first, and no file system uses the full
    bandwidth.
    """
    for template, texts in _configured(subject):
        loaded, machines = _loaded(texts), template.selected.known
        if isinstance(loaded, ConfigError) or not machines or template.selected.unknown:
            continue
        size = BYTES_SAVED * trainable_parameters(loaded.model, loaded.lora)
        speed = template.nodes * max(one.network_mbps for one in machines) * 1e6 / 8
        need, given = size / speed, save_seconds(template)
        value = (
            f"{size / 2**30:,.1f} GiB over {template.nodes} x {machines[0].name}: {need:,.1f} s of {given} s"
        )
        place = Place(template.object, f"{template.spec_path}.terminationGracePeriodSeconds", value)
        if need < given:
            yield good(place, "a checkpoint fits into the available time")
        else:
            remedy = f"PET_SHUTDOWN_TIMEOUT and the grace period well above {need:,.0f} s, or more nodes"
            yield bad(
                place, f"a checkpoint takes at least {need:,.0f} s, but {given} s are available", remedy
            )


@rule("gated-model", "the hub refuses a gated model without a token, after the nodes have started")
def gated_model(subject: Subject) -> Iterator[Verdict]:
    """A container that downloads a gated model has a token.

    Model names such as meta-llama/... are read from commands, variables and trainyard's configuration. A
    token is a variable such as HF_TOKEN, an envFrom from a Secret, or a mounted Secret. With HF_HUB_OFFLINE
    nothing is downloaded. A pod that mounts a claim gets a warning only, because the model may be on it.
    """
    model = FILES.index("model")
    configured = {id(one): MODEL_KEY.findall(texts[model]) for one, texts in _configured(subject)}
    for template in subject.templates:
        for path, container in template.containers():
            texts = [*words(container), *literals(container).values()]
            texts += configured.get(id(template), [])
            name = next((match[0] for text in texts if (match := GATED.search(text))), None)
            if name is None or any(literals(container).get(key) == "1" for key in OFFLINE):
                continue
            place = Place(template.object, path, name)
            if _has_token(template, container):
                yield good(place, f"{name} is gated, and the container has a token")
            else:
                summary = f"{name} is gated, and the container has no token"
                verdict = doubtful if _has_claim(template) else bad
                yield verdict(place, summary, "a mounted Secret, and HF_TOKEN_PATH")


def _has_claim(template: Template) -> bool:
    return any("persistentVolumeClaim" in volume for volume in template.volumes().values())


def _configured(subject: Subject) -> Iterator[tuple[Template, tuple[str, ...]]]:
    """Yield each training template that mounts all files of the trainer, with the texts of FILES."""
    for template in subject.training():
        maps = subject.named("ConfigMap", template.namespace)
        files: dict[str, str] = {}
        for name in _mounted_maps(template):
            files |= (maps.get(name) or {}).get("data") or {}
        texts = tuple(files[f"{layer}.yaml"] for layer in FILES if f"{layer}.yaml" in files)
        if len(texts) == len(FILES):
            yield template, texts


def _mounted_maps(template: Template) -> Iterator[str]:
    for volume in template.volumes().values():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        for source in sources:
            if source.get("configMap"):
                yield str(source["configMap"].get("name"))


@functools.lru_cache(maxsize=64)
def _loaded(texts: tuple[str, ...]) -> Config | ConfigError:
    try:
        return load_texts({layer: (f"{layer}.yaml", text) for layer, text in zip(FILES, texts, strict=True)})
    except ConfigError as problem:
        return problem


def _world_size(subject: Subject, template: Template) -> int | None:
    """Return the number of ranks, or None if torchrun counts the devices."""
    job = subject.job_of(template)
    return (wiring.world_size(job.analysis.nodes) or None) if job and job.analysis else None


def _has_token(template: Template, container: Object) -> bool:
    named = any(entry["name"] in TOKEN_NAMES for entry in container.get("env") or [])
    from_secret = any(source.get("secretRef") for source in container.get("envFrom") or [])
    mounted = any(volume.get("secret") or "csi" in volume for volume in template.volumes().values())
    return named or from_secret or mounted
