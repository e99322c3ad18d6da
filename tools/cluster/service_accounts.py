"""Who in a cluster may what in AWS: each service account with its policy, from the cluster's facts alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.aws import policies
from tools.aws.policies import Policy
from tools.cells.kustomize_graph import reached
from tools.cluster import cells
from tools.cluster.spec import Spec
from tools.core.errors import UserError
from tools.core.repo import shown
from tools.kube import manifests

FSX_ACCOUNT = ("kube-system", "fsx-csi-controller-sa")
S3_ACCOUNT = ("kube-system", "s3-csi-driver-sa")
SECRETS_ACCOUNT = ("external-secrets", "external-secrets")
PRUNER = "trainyard-pruner"
# S3's rules for names of buckets; and of prefixes what a policy does not take for a pattern or a variable.
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[\w!'().=+@:,-][\w!'().=+@:,/-]*/", re.ASCII)
TRAINER_SUFFIX = "-train"  # base/pytorchjob's ServiceAccount, behind the cell's name


@dataclass(frozen=True)
class ServiceAccount:
    """A Kubernetes service account, what it is for, and all that it may."""

    namespace: str
    name: str
    purpose: str
    policy: Policy
    made_here: bool = False  # nobody else creates the service account


def of(spec: Spec, with_runs: bool = False) -> list[ServiceAccount]:
    """Return the service accounts of a cluster that need AWS.

    Trainers are those of the cells in CELLS, and `with_runs` also those of the files in runs/. Without
    S3_BUCKET nobody gets S3, and without FSx in its storage nobody gets FSx. Raises UserError for a cell that
    does not exist.
    """
    found = []
    partition = spec.partition
    bases = _bases(spec)
    if spec.get("S3_BUCKET"):
        bucket = spec.need("S3_BUCKET", BUCKET, "the name of a bucket, without s3:// and without a prefix")
        data, runs = _prefix(spec, "S3_PREFIX"), _prefix(spec, "S3_RUNS_PREFIX")
        trainers = [
            ServiceAccount(spec.namespace, name, "trains", policies.trainer(bucket, data, runs, partition))
            for name in (*trainer_names(spec), *(run_names(spec) if with_runs else ()))
        ]
        policy = policies.pruner(bucket, runs, partition)
        prunes = ServiceAccount(spec.namespace, PRUNER, "prunes runs in S3", policy, made_here=True)
        policy = policies.reader(bucket, data, partition)
        reads = ServiceAccount(*S3_ACCOUNT, "mounts S3, read only", policy)
        found += [*trainers, prunes, *([reads] if "base/storage/s3" in bases else [])]
    if "base/plugins/external-secrets" in bases:
        policy = policies.secret_reader(spec.namespace, partition)
        found.append(ServiceAccount(*SECRETS_ACCOUNT, "reads secrets of the team", policy))
    dynamic = "base/storage/fsx-dynamic" in bases
    if dynamic or "base/storage/fsx-static" in bases:
        policy = policies.fsx_driver(spec.namespace, dynamic, partition)
        found.append(ServiceAccount(*FSX_ACCOUNT, "makes and mounts FSx file systems", policy))
    for one in found:
        if policies.size(one.policy) > policies.MOST_CHARACTERS:
            raise UserError(
                f"{spec.source}: the policy of {one.namespace}/{one.name} has {policies.size(one.policy):,}"
                f" characters, and a role takes {policies.MOST_CHARACTERS:,}",
                "a shorter S3_PREFIX and S3_RUNS_PREFIX",
            )
    return found


def trainer_names(spec: Spec) -> list[str]:
    """Return the names of the trainers' service accounts: Pod Identity knows no patterns, so each is one."""
    return [one.name.replace("/", "-") + TRAINER_SUFFIX for one in cells.of(spec)]


def run_names(spec: Spec) -> list[str]:
    """Return the names of the service accounts of Flux's runs: the cell's, with the run's suffix.

    Raises UserError for a file that is no YAML.
    """
    found = []
    for path in sorted((spec.directory / "runs").glob("*.y*ml")):
        for item in manifests.parse(path.read_text(encoding="utf-8"), shown(path)).objects:
            body = item.get("spec") or {}
            name = str(body.get("path", "")).partition("overlays/")[2].strip("/")
            if item.get("kind") == "Kustomization" and name and body.get("nameSuffix"):
                found.append(name.replace("/", "-") + TRAINER_SUFFIX + str(body["nameSuffix"]))
    return found


def _prefix(spec: Spec, name: str) -> str:
    value = spec.need(name)
    if not value.endswith("/") or value.startswith("/"):
        raise UserError(
            f"{spec.at(name)}: {name}={value} has to end in a slash, and begin with none",
            "else it also names everything whose name only begins so",
        )
    if not PREFIX.fullmatch(value) or ".." in value.split("/"):
        hint = "letters, digits and !'().=+@:,_-/: IAM takes * and ? for any text, and ${...} for a variable"
        raise UserError(f"{spec.at(name)}: {name}={value} is no prefix that a policy can name", hint)
    return value


def _bases(spec: Spec) -> set[str]:
    """Return the folders of base/ that the cluster's parts take in, from the checkout's root on."""
    root = spec.directory.parents[1].resolve()
    parts = (spec.directory / part for part in ("plugins", "storage"))
    paths = (path for part in parts if part.is_dir() for path in reached(root, part))
    return {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}
