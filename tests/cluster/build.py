"""The programs of the test cluster, built from the pinned Go modules in `binaries/` into a cache.

A module's programs lie in `$XDG_CACHE_HOME/trainyard/cluster/<module>-<digest>` (`~/.cache` without it), so
that clones share them; the digest is that of its files and of the Go version. A program that
`KUBEBUILDER_ASSETS` holds is taken from there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.parts import gomodule
from tests.parts.gomodule import Module, Progress

SOURCES = Path(__file__).parent / "binaries"
OPERATOR = "github.com/kubeflow/training-operator"
KWOK = "sigs.k8s.io/kwok"
PROVISIONER = "github.com/rancher/local-path-provisioner"
TRAINER, JOBSET, KUEUE = "github.com/kubeflow/trainer/v2", "sigs.k8s.io/jobset", "sigs.k8s.io/kueue"
VOLCANO = "volcano.sh/volcano"  # later releases need a volcano.sh/apis that is not published as a module
KUBERNETES = "1.36.3"
OLDER = ("1.35.4", "1.33.13")  # the minor of clusters/; the oldest one that the tools work on, HyperPod's newest
_VERSION = "k8s.io/component-base/version"


def _named(version: str) -> str:
    """Return the linker flags that set the version of Kubernetes programs."""
    major, minor, _ = version.split(".")
    words = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return "-s -w " + " ".join(f"-X {_VERSION}.{name}={value}" for name, value in words.items())


def older(version: str) -> str:
    """Return the name of the module with the control plane of an older Kubernetes."""
    return f"kubernetes-{version.rpartition('.')[0]}"


MODULES = {
    "kubernetes": Module(
        # All of one cluster in one module: what they have in common, Kubernetes' client above all, is compiled once.
        packages=(
            ".",
            "./coredns",
            "./pause",
            f"{OPERATOR}/cmd/training-operator.v1",
            f"{KWOK}/cmd/kwok",
        ),
        apart=(PROVISIONER,),  # it imports logrus by a name in other letters
        ldflags=_named(KUBERNETES),
        renamed={"training-operator.v1": "training-operator"},
        links=(
            *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
            *("kubelet", "kube-proxy", "kubectl"),
        ),
        folders={
            "operator": (OPERATOR, "manifests"),
            "kwok": (KWOK, "kustomize/stage"),
            "provisioner": (PROVISIONER, "deploy"),
        },
    ),
    # Only `make test-cluster-all` builds these and the older versions.
    "volcano": Module(
        packages=tuple(f"{VOLCANO}/cmd/{name}" for name in ("controller-manager", "scheduler", "webhook-manager")),
        renamed={name: f"vc-{name}" for name in ("controller-manager", "scheduler", "webhook-manager")},
        folders={"volcano": (VOLCANO, "installer")},
    ),
    "controllers": Module(
        packages=(f"{TRAINER}/cmd/trainer-controller-manager", JOBSET, f"{KUEUE}/cmd/kueue"),
        folders={
            "trainer": (TRAINER, "manifests"),
            "jobset": (JOBSET, "config"),
            "kueue": (KUEUE, "config"),
        },
    ),
    **{
        older(version): Module(
            ldflags=_named(version),
            links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        )
        for version in OLDER
    },
}
CLUSTER = ("kubernetes",)


@dataclass(frozen=True)
class Programs:
    """The directories of the built modules: programs, and the manifests that came with them."""

    roots: Mapping[str, Path]

    def path(self, name: str) -> Path:
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        homes = [Path(assets)] if assets else []
        homes += [root / "bin" for root in self.roots.values()]
        return next(home / name for home in homes if (home / name).is_file())

    def controller_manifests(self, name: str) -> Path:
        """Return upstream's Kustomize directories of Trainer, JobSet or Kueue."""
        return self.roots["controllers"] / name

    @property
    def volcano_manifests(self) -> Path:
        """Return upstream's file with all of Volcano's objects."""
        return self.roots["volcano"] / "volcano/volcano-development.yaml"

    @property
    def operator_manifests(self) -> Path:
        """Return upstream's Kustomize directories of the training operator."""
        return self.roots["kubernetes"] / "operator"

    @property
    def kwok_stages(self) -> Path:
        """Return kwok's Stage objects: the life cycle of its nodes and pods."""
        return self.roots["kubernetes"] / "kwok"

    @property
    def provisioner_manifests(self) -> Path:
        """Return upstream's manifests of the volume provisioner."""
        return self.roots["kubernetes"] / "provisioner"


def cache() -> Path:
    """Return the directory of built programs and downloaded packages."""
    return gomodule.cache("cluster")


def ensure(progress: Progress, modules: Sequence[str] = CLUSTER) -> Programs:
    """Return the programs of `modules`, building the missing ones (minutes, both cores).

    Raises CannotBuild.
    """
    return Programs({name: gomodule.ensure(SOURCES / name, MODULES[name], cache(), progress) for name in modules})
