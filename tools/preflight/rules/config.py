"""Rules on the configuration of trainyard's trainer, and on models that need a token."""

import contextlib
import functools
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tools.cells import outlook
from tools.cells.published import Published
from tools.cells.trainer_config import inputs
from tools.core import output
from tools.core.errors import UserError
from tools.core.tables import load
from tools.core.verdict import Verdict, bad, doubtful, good, unclear
from tools.facts.gated import GATED
from tools.facts.instances import NEURON, NVIDIA
from tools.kube import network_policy
from tools.kube.manifests import Object
from tools.plan.outlook import Plan
from tools.preflight.rule import Place, needed, rule
from tools.preflight.rules.security import labels_of
from tools.preflight.rules.storage import LAYER, READ_ONLY, SHARED, mount_of, save_seconds, storage
from tools.preflight.subject import Subject, Template
from tools.simulator import wiring
from tools.simulator.command_line import literals, words
from tools.simulator.volumes import source_name, sources
from training.config import DATA, FILES, Config, ConfigError, Track, elastic, load_texts
from training.models.published import differences

TOKEN_NAMES: list[str] = load("preflight/words.yaml")["token variables"]
# Keys of model.yaml that can name a model on the hub.
MODEL_KEY = re.compile(r"(?m)^[ \t]*+(?:weights|tokenizer|source):\s*+([^#\s]+)")
WANDB_KEY = "wandb-api-key"  # a file of training/run/secret_files.py
OWN_IMAGE = re.compile(r"(?:^|/)trainer-(?:cpu|cuda|neuron)[:@]")
COMMIT = re.compile(r"[0-9a-f]{40}")
RIGHTS = ("s3:ListBucket", "s3:GetObject", "s3:PutObject")
AWS_KEYS = {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"}
IDENTITY = "serviceAccountName, and a role for it (yard cluster identity)"
NODE_VOLUME = "the feature local-checkpoints mounts one at /local"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@rule("config")
def config(subject: Subject) -> Iterator[Verdict]:
    if subject.base is not None and not any(configurations(subject)):
        place = Place(subject.manifests.source, "model.yaml")
        yield unclear(place, "no configuration of trainyard's trainer, which --base could be compared with")
    for template, texts in configurations(subject):
        place = Place(template.object, "model.yaml, hardware.yaml, cell.yaml")
        loaded, world = read_config(texts), _world_size(subject, template)
        problem = loaded if isinstance(loaded, ConfigError) else _unshared(loaded, world, template)
        if problem is not None:
            yield bad(place, str(problem), "correct the configuration")
        elif lacking := _without_device(loaded, template):
            yield bad(place, lacking, "request the devices, or set device.type: cpu")
        elif unwritable := _unwritable(loaded, template):
            yield bad(place, unwritable, f"mount an emptyDir there, or name a path on one; {NODE_VOLUME}")
        elif other := _differences(loaded, subject.base):
            yield bad(place, other, "correct the section model, or name another base")
        elif world is None:
            yield good(place, "a valid configuration; torchrun sets the number of ranks")
        else:
            yield good(place, f"a valid configuration, and {output.count(world, 'rank')} can share its batch")


def _without_device(loaded: Config | ConfigError, template: Template) -> str:
    """Return what a pod lacks whose ranks each want a device of the configuration's kind."""
    if isinstance(loaded, ConfigError) or loaded.device.type == "cpu" or template.spec.get("resourceClaims"):
        return ""
    kind = "NVIDIA GPU" if loaded.device.type == "cuda" else "Neuron device"
    wanted = (NVIDIA, "nvidia.com/mig-") if loaded.device.type == "cuda" else (NEURON,)
    if any(name.startswith(wanted) and count > 0 for name, count in template.requests.items()):
        return ""
    return f"device.type is {loaded.device.type}, and a pod of {template.role or 'the job'} requests no {kind}"


def _unwritable(loaded: Config | ConfigError, template: Template) -> str:
    """Return why a pod cannot write its local checkpoints, and a path where it can; empty if nothing shows that."""
    local = None if isinstance(loaded, ConfigError) else loaded.checkpoint.tiers.local
    if local is None:
        return ""
    container = template.trainer()[1]
    where = storage(template, container, local.path)
    sealed = (container.get("securityContext") or {}).get("readOnlyRootFilesystem") is True
    if where != READ_ONLY and not (where == LAYER and (sealed or local.path.startswith(("/proc/", "/sys/")))):
        return ""
    own = {name for name, volume in template.volumes().items() if "emptyDir" in volume}
    near = [mount["mountPath"] for mount in container.get("volumeMounts") or [] if mount["name"] in own]
    hint = f"; nearest value that works: {min(near, key=len)}/checkpoints" if near else ""
    return f"checkpoint.tiers.local.path is {local.path}, which the pod cannot write{hint}"


def _differences(loaded: Config | ConfigError, base: Published | None) -> str:
    """Return the keys that differ from the base's config.json, with both values."""
    if base is None or isinstance(loaded, ConfigError):
        return ""
    theirs, ours = base.model["architecture"], loaded.model.architecture
    if theirs != ours:  # the other keys differ because of it
        return f"{base.where}: model_type is {theirs}, model.architecture is {ours}"
    found = differences(base.model, loaded.model)
    return f"{base.where}: {'; '.join(found)}" if found else ""


def _unshared(loaded: Config, world: int | None, template: Template) -> ConfigError | None:
    try:
        if world is not None:
            elastic.check(loaded, world, max(1, world // max(1, template.nodes)))
    except ConfigError as problem:
        return problem
    return None


@rule("config-checkpoint")
def config_checkpoint(subject: Subject) -> Iterator[Verdict]:
    for template, loaded in _valid(subject):
        every, steps = loaded.checkpoint.every, loaded.train.steps
        place = Place(template.object, "cell.yaml: checkpoint.every", every)
        if every <= steps:
            yield good(place, f"every {every} of {steps} steps")
        else:
            yield bad(place, f"every {every} steps, but train.steps is {steps}", f"at most {steps}")


@rule("checkpoint-places")
def checkpoint_places(subject: Subject) -> Iterator[Verdict]:
    for template, loaded in _valid(subject):
        local, remote = loaded.checkpoint.tiers.local, loaded.checkpoint.tiers.s3
        if local is not None:
            yield _on_node(template, local.path)
        if remote is not None:
            place = Place(template.object, "cell.yaml: checkpoint.tiers.s3.to", remote.to)
            account = template.spec.get("serviceAccountName") or "default"
            if account == "default":
                yield _without_account(place, template)
            else:
                verdict = good(place, f"the pods have a service account of their own, {account}")
                yield needed(verdict, f"ServiceAccount {account} with a role that has {', '.join(RIGHTS)}")


def _without_account(place: Place, template: Template) -> Verdict:
    """Judge pods of the default service account, which may bring keys of AWS of their own."""
    container = template.trainer()[1]
    variables = {entry["name"] for entry in container.get("env") or []}
    if variables & AWS_KEYS or container.get("envFrom"):
        return unclear(place, "the pods have no service account of their own, but may bring keys of AWS", IDENTITY)
    return bad(place, "the pods have no service account of their own to give a role to", IDENTITY)


def _on_node(template: Template, path: str) -> Verdict:
    """Judge where the checkpoints of a node lie."""
    place = Place(template.object, "cell.yaml: checkpoint.tiers.local.path", path)
    where = storage(template, template.trainer()[1], path)
    if where in (LAYER, READ_ONLY, SHARED):
        told = "on the volume that all pods share" if where == SHARED else where
        return bad(
            place, f"{told}, not on a volume of each pod's own", f"an emptyDir, mounted at {path}; {NODE_VOLUME}"
        )
    return good(place, where)


@functools.lru_cache(maxsize=1)  # for the two rules that read them
def _plans(subject: Subject) -> list[tuple[Template, Plan]]:
    """Return the plan of each template with a configuration that its ranks can train; other rules report the rest."""
    found = []
    for template, loaded in _valid(subject):
        if (job := subject.job_of(template)) is not None:
            with contextlib.suppress(UserError, ConfigError):
                found.append((template, outlook.of_job(job.workload, loaded)))
    return found


@rule("device-memory")
def device_memory(subject: Subject) -> Iterator[Verdict]:
    for template, plan in _plans(subject):
        need, machine = plan.memory, plan.run.instance
        if not need.room.nbytes:
            continue
        where = f"{plan.run.nodes} x {machine.name if machine else 'pod'}"
        place = Place(template.object, "cell.yaml: parallel", where)
        if need.fits:
            yield good(place, need.summary())
        else:
            remedy = "more nodes, a smaller micro batch, activation_checkpointing: full; see yard plan search"
            yield bad(place, f"the plan does not fit: {need.summary()}", remedy)


@rule("pinned-weights")
def pinned_weights(subject: Subject) -> Iterator[Verdict]:
    for template, loaded in _valid(subject):
        weights = loaded.model.weights or ""
        repository, at, revision = weights.partition("@")
        if not at or weights.startswith("/"):
            continue
        place = Place(template.object, "model.yaml: model.weights", weights)
        if COMMIT.fullmatch(revision):
            yield good(place, "weights at a commit")
        else:
            yield bad(place, f"{revision} is a branch or tag, which can move", f"{repository}@<commit>")


@rule("inputs-mounted")
def inputs_mounted(subject: Subject) -> Iterator[Verdict]:
    for template, loaded in _valid(subject):
        container = template.trainer()[1]
        for (_, value), key in inputs(loaded).items():
            place = Place(template.object, f"model.yaml: {key}", value)
            if mount_of(container, value) is not None:
                yield good(place, "on a volume of the pod")
            elif OWN_IMAGE.search(str(container.get("image"))):
                summary = f"{value} is not on a volume of the pod, and the image of the trainer does not hold it"
                yield bad(place, summary, "a path below /shared/text, /shared/finetune or /shared/models")


@rule("save-time")
def save_time(subject: Subject) -> Iterator[Verdict]:
    for template, plan in _plans(subject):
        machine, size = plan.run.instance, plan.checkpoint_bytes
        if machine is None or not machine.network_mbps:
            continue
        need, given = size / (plan.run.nodes * machine.network_mbps * 1e6 / 8), save_seconds(template)
        value = f"{size / 2**30:,.1f} GiB over {plan.run.nodes} x {machine.name}: {need:,.1f} s of {given} s"
        place = Place(template.object, f"{template.spec_path}.terminationGracePeriodSeconds", value)
        if need < given:
            yield good(place, "a checkpoint fits into the available time")
        else:
            remedy = f"PET_SHUTDOWN_TIMEOUT and the grace period well above {need:,.0f} s, or more nodes"
            yield bad(place, f"a checkpoint takes at least {need:,.0f} s, but {given} s are available", remedy)


@rule("track")
def track(subject: Subject) -> Iterator[Verdict]:
    for template, loaded in _valid(subject):
        wanted = loaded.track
        if wanted is None:
            continue
        place = Place(template.object, "cell.yaml: track", ", ".join(wanted.trackers))
        yield from [*_without_key(place, template, wanted), *_out_of_reach(place, subject, template, wanted)] or [
            good(place, "no NetworkPolicy of the manifest closes a tracker's port, and no key is missing in the pods")
        ]


def _online(wanted: Track) -> bool:
    return wanted.wandb is not None and wanted.wandb.mode == "online"


def _without_key(place: Place, template: Template, wanted: Track) -> Iterator[Verdict]:
    """Yield what the pods lack for Weights & Biases. MLflow may need no secret."""
    container = template.trainer()[1]
    refs = [ref for volume in template.volumes().values() for kind, ref in sources(volume) if kind == "Secret"]
    mounted = {item.get("path") for ref in refs for item in ref.get("items") or []}
    variables = {entry["name"] for entry in container.get("env") or []}
    if not _online(wanted) or WANDB_KEY in mounted or "WANDB_API_KEY" in variables:
        return
    remedy = f"mount the key {WANDB_KEY} of the Secret trackers, as base/pytorchjob does, or track.wandb.mode: offline"
    whole = [source_name(ref) for ref in refs if not ref.get("items")]
    if "trackers" in whole or any("secretRef" in one for one in container.get("envFrom") or []):
        yield unclear(place, "a Secret whose keys the manifest does not list may hold the key of W&B", remedy)
    else:
        yield bad(place, "the pods have no key for Weights & Biases", remedy)


def _out_of_reach(place: Place, subject: Subject, template: Template, wanted: Track) -> Iterator[Verdict]:
    """Yield the servers whose port no NetworkPolicy of the manifest lets the pods reach."""
    servers = [wanted.mlflow.uri if wanted.mlflow else ""]
    if wanted.wandb is not None and _online(wanted):
        servers.append(wanted.wandb.server)
    labels = labels_of(subject, template)
    policies = subject.named("NetworkPolicy", template.namespace).values()
    there = [item for item in policies if network_policy.applies(item, "Egress", labels)]
    for url in map(urlsplit, filter(None, servers)):
        port = url.port or {"http": 80, "https": 443}.get(url.scheme)
        if port and there and not any(network_policy.admits(one, "Egress", {}, range(port, port + 1)) for one in there):
            remedy = f"a NetworkPolicy with egress to port {port}, or the server behind port 443"
            said = f"the NetworkPolicies of the job do not let its pods reach port {port} of {url.hostname}"
            yield bad(place, said, remedy)


@rule("gated-model")
def gated_model(subject: Subject) -> Iterator[Verdict]:
    configured = {id(one): MODEL_KEY.findall("\n".join(texts)) for one, texts in configurations(subject)}
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
                claims = any("persistentVolumeClaim" in volume for volume in template.volumes().values())
                verdict = doubtful if claims else bad
                yield verdict(place, summary, "a mounted Secret, and HF_TOKEN_PATH")


def configurations(subject: Subject) -> Iterator[tuple[Template, tuple[str, ...]]]:
    """Yield each training template that mounts all files of the trainer, with the texts of FILES and DATA."""
    for template in subject.training():
        maps = subject.named("ConfigMap", template.namespace)
        files: dict[str, str] = {}
        for kind, ref in (one for volume in template.volumes().values() for one in sources(volume)):
            if kind == "ConfigMap":
                files |= (maps.get(source_name(ref)) or {}).get("data") or {}
        if all(f"{layer}.yaml" in files for layer in FILES):
            yield (template, tuple(files[name] for layer in (*FILES, DATA) if (name := f"{layer}.yaml") in files))


def _valid(subject: Subject) -> Iterator[tuple[Template, Config]]:
    """Yield the templates with a configuration that can be read; the rule `config` reports the others."""
    loaded = ((template, read_config(texts)) for template, texts in configurations(subject))
    yield from ((template, one) for template, one in loaded if not isinstance(one, ConfigError))


@functools.lru_cache(maxsize=64)
def read_config(texts: tuple[str, ...]) -> Config | ConfigError:
    """Return the trainer's configuration in texts of FILES and DATA, or what is wrong with it."""
    try:
        layers = zip((*FILES, DATA), texts, strict=False)
        return load_texts({layer: (f"{layer}.yaml", text) for layer, text in layers})
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
