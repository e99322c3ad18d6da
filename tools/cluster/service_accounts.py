"""The service accounts of a cluster that need AWS, each with its policy."""

import re
from dataclasses import dataclass

from tools.aws import policies
from tools.aws.policies import Bucket, Place, Policy
from tools.cells.kustomize_graph import reached
from tools.cluster import cells, cluster_env
from tools.cluster.spec import Spec
from tools.core import UserError, repo
from tools.kube import manifests

FSX_ACCOUNT = ("kube-system", "fsx-csi-controller-sa")
S3_ACCOUNT = ("kube-system", "s3-csi-driver-sa")
# External Secrets asks with the token of this account of the team, and not with the right of its controller.
SECRETS_ACCOUNT = "trainyard-secrets"
# S3's rules for names of buckets, and prefixes without the characters of IAM's patterns and variables.
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[\w!'().=+@:,-][\w!'().=+@:,/-]*/", re.ASCII)
ACCOUNT = re.compile(r"\d{12}")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # DNS-1123, as for a Kubernetes service account
TRAINER_SUFFIX = "-train"  # of base/pytorchjob's ServiceAccount, after the name of the cell
NOWHERE = "0" * 12  # the account, while only the facts are checked


@dataclass(frozen=True)
class ServiceAccount:
    """A Kubernetes service account, its purpose and its complete policy."""

    namespace: str
    name: str
    purpose: str
    policy: Policy
    needs_irsa: bool = False  # External Secrets passes tokens of a service account on, not its Pod Identity


def check(spec: Spec) -> None:
    """Raise UserError for facts from which no policy can be made."""
    of(spec, Place(spec.partition, spec.region, NOWHERE))


def of(spec: Spec, place: Place, with_runs: bool = False) -> list[ServiceAccount]:
    """Return the service accounts of a cluster that need AWS.

    Trainers are those of the cells in CELLS, and `with_runs` also those of the files in runs/. S3 needs the
    fact S3_BUCKET, and FSx a base of the cluster's storage. Raises UserError.
    """
    found = []
    bases = _bases(spec)
    bucket = bucket_of(spec, place)
    if bucket:
        data, team = _prefix(spec, "S3_PREFIX"), f"{_prefix(spec, 'S3_RUNS_PREFIX')}{spec.namespace}/"
        found = [
            ServiceAccount(spec.namespace, name, "trains", policies.trainer(bucket, data, team, f"{team}{name}/"))
            for name in (*trainer_names(spec), *(run_names(spec) if with_runs else ()))
        ]
        if "base/storage/s3" in bases:
            found.append(ServiceAccount(*S3_ACCOUNT, "mounts S3 read-only", policies.reader(bucket, data)))
    if bases & {"base/plugins/external-secrets", "base/plugins/external-secrets/token"}:
        policy = policies.secret_reader(place, spec.namespace)
        found.append(ServiceAccount(spec.namespace, SECRETS_ACCOUNT, "reads the team's secrets", policy, True))
    dynamic = "base/storage/fsx-dynamic" in bases
    if dynamic or "base/storage/fsx-static" in bases:
        policy = policies.fsx_driver(place, spec.namespace, dynamic)
        found.append(ServiceAccount(*FSX_ACCOUNT, "creates and mounts FSx file systems", policy))
    for one in found:
        if not NAME.fullmatch(one.name):  # the names in runs/ are whatever a file says
            hint = "use a-z, 0-9, - and dots; IAM treats * and ? as patterns and ${...} as a variable"
            raise UserError(f"{repo.shown(spec.directory)}: {one.name!r} is not the name of a service account", hint)
        if policies.size(one.policy) > policies.MOST_CHARACTERS:
            raise UserError(
                f"{spec.source}: the policy of {one.namespace}/{one.name} has {policies.size(one.policy):,}"
                f" characters, but the limit is {policies.MOST_CHARACTERS:,}",
                "use a shorter S3_PREFIX and S3_RUNS_PREFIX",
            )
    return found


def bucket_of(spec: Spec, place: Place) -> Bucket | None:
    """Return the bucket of the cluster's facts. Its owner is the cluster's account, or S3_BUCKET_ACCOUNT."""
    if spec.get("S3_BUCKET") is None:
        return None
    name = spec.need("S3_BUCKET", BUCKET, "the name of a bucket, without s3:// and without a prefix")
    owner = place.account
    if spec.get("S3_BUCKET_ACCOUNT"):
        owner = spec.need("S3_BUCKET_ACCOUNT", ACCOUNT, "an account: 12 digits")
    return Bucket(name, owner, place.partition)


def trainer_names(spec: Spec) -> list[str]:
    """Return the names of the trainers' service accounts. Pod Identity has no patterns, so each is listed."""
    return [one.name.replace("/", "-") + TRAINER_SUFFIX for one in cells.of(spec)]


def run_names(spec: Spec) -> list[str]:
    """Return the names of the service accounts of Flux's runs: the cell's with the run's suffix.

    Raises UserError for a file that is not valid YAML.
    """
    found = []
    for path in sorted((spec.directory / "runs").glob("*.y*ml")):
        for item in manifests.parse(path.read_text(encoding="utf-8"), repo.shown(path)).objects:
            body = item.get("spec") or {}
            name = str(body.get("path", "")).partition("overlays/")[2].strip("/")
            if item.get("kind") == "Kustomization" and name and body.get("nameSuffix"):
                found.append(name.replace("/", "-") + TRAINER_SUFFIX + str(body["nameSuffix"]))
    return found


def _prefix(spec: Spec, name: str) -> str:
    value = spec.need(name)
    if not value.endswith("/") or value.startswith("/"):
        raise UserError(
            f"{spec.at(name)}: {name}={value} must end with a slash and not start with one",
            "otherwise it also matches other names that start with the same characters",
        )
    if not PREFIX.fullmatch(value) or ".." in value.split("/"):
        hint = "use letters, digits and !'().=+@:,_-/; IAM treats * and ? as patterns and ${...} as a variable"
        raise UserError(f"{spec.at(name)}: {name}={value} cannot be used in a policy", hint)
    return value


def _bases(spec: Spec) -> set[str]:
    """Return the folders of base/ that the cluster's plugins and storage use, such as base/storage/s3."""
    root = cluster_env.root_of(spec.directory)
    parts = (spec.directory / part for part in ("plugins", "storage"))
    paths = (path for part in parts if part.is_dir() for path in reached(root, part))
    return {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}
