"""Builds Flux's kustomize-controller and fetches other parts from pinned Go modules.

They are in `$XDG_CACHE_HOME/trainyard/flux/<digest>` (default `~/.cache`), next to the programs of the test
cluster. source-controller cannot be built, because one of its modules is not available; tests.flux.source
replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.parts import gomodule
from tests.parts.gomodule import Module, Progress
from tests.parts.upstream import MODULES

SOURCE = Path(__file__).parent / "binaries/kustomize-controller"
CONTROLLER = "github.com/fluxcd/kustomize-controller"
PACKAGES = (CONTROLLER, "github.com/getsops/sops/v3/cmd/sops", "filippo.io/age/cmd/age-keygen")
# Folders of modules by their name here: module, version, folder.
FOLDERS = {
    "crds/kustomize": (CONTROLLER, "1.9.5", "config/crd/bases"),
    "crds/source": ("github.com/fluxcd/source-controller", "1.9.5", "config/crd/bases"),
    "crds/helm": ("github.com/fluxcd/helm-controller", "1.6.3", "config/crd/bases"),
    "crds/kueue": ("sigs.k8s.io/kueue", "0.19.2", "config/components/crd/bases"),
    "fsx-csi": MODULES["fsx-csi"],
}
MODULE = Module(packages=PACKAGES, fetched=FOLDERS)


@dataclass(frozen=True)
class Parts:
    """A directory of the programs and folders."""

    root: Path

    def program(self, name: str) -> Path:
        """Return the path of kustomize-controller, sops or age-keygen."""
        return self.root / "bin" / name

    def folder(self, name: str) -> Path:
        return self.root / name


def ensure(progress: Progress) -> Parts:
    """Return the parts. Building them takes 3 to 6 minutes, once. Raises CannotBuild."""
    return Parts(gomodule.ensure(SOURCE, MODULE, gomodule.cache("flux"), progress))
