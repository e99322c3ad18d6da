"""The directories of other projects that base/plugins builds on, from Go modules in place of GitHub.

kustomize fetches such a directory with `git fetch --depth=1 <address> <commit>`, and Flux by a GitRepository.
Here a local repository for each address holds the same files, with the commit's digits as the name of a tag.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.cells.kustomize import Renderer
from tools.core import go_build, repo

# By the folder of base/plugins: Go module, version, and the folder of it that is needed.
MODULES = {
    "training-operator": ("github.com/kubeflow/trainer", "1.9.4", "manifests"),
    "fsx-csi": ("sigs.k8s.io/aws-fsx-csi-driver", "1.9.0", "deploy"),
}
_REMOTE = re.compile(r"(https://github\.com/[\w.-]+/[\w.-]+)//([\w./-]+)\?ref=([0-9a-f]{40})")


def remote_base(plugin: str) -> tuple[str, str, str]:
    """Return address, directory and commit of the remote base of a plugin."""
    path = repo.root() / "base/plugins" / plugin / "kustomization.yaml"
    (found,) = _REMOTE.findall(path.read_text(encoding="utf-8"))
    address, directory, commit = found
    return address, directory, commit


def fetch(target: Path) -> dict[str, Path]:
    """Fetch the folders of the modules to `target`; return them by plugin. Raises go_build.Unusable."""
    with go_build.workshop(target) as environment:
        for plugin, (module, version, folder) in MODULES.items():
            fetched = go_build.module(module, version, environment, print)
            shutil.copytree(fetched / folder, target / plugin)
    return {plugin: target / plugin for plugin in MODULES}


def repositories(target: Path, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Write a git repository for each plugin, and return them by the address of upstream."""
    made = {}
    for plugin, folder in folders.items():
        address, _, commit = remote_base(plugin)
        made[address] = target / plugin
        shutil.copytree(folder, made[address] / MODULES[plugin][2], copy_function=shutil.copyfile)
        for words in (
            ["init", "--quiet"],
            ["add", "--all"],
            ["commit", "--quiet", "-m", "-"],
            ["tag", commit],
        ):
            who = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
            subprocess.run(["git", *who, *words], cwd=made[address], check=True)
    return made


def fetcher(renderer: Renderer, target: Path) -> Renderer:
    """Return a renderer that finds upstream's directories on this machine. Skips the test without Go."""
    try:
        found = repositories(target / "git", fetch(target / "modules"))
    except go_build.Unusable as reason:
        pytest.skip(f"upstream's manifests are not here ({reason}): install Go, reach a Go module proxy")
    return with_git(renderer, target, found)


def with_git(renderer: Renderer, target: Path, repositories: Mapping[str, Path]) -> Renderer:
    """Return a renderer whose `git` finds upstream in `repositories`. Other addresses go to the real git."""
    real = shutil.which("git")
    assert real is not None
    fetch = f"GIT_ALLOW_PROTOCOL=file exec {shlex.quote(real)} fetch --depth=1"
    cases = [f'    {address}*) {fetch} {path.as_uri()} "refs/tags/$4" ;;' for address, path in repositories.items()]
    program = target / "bin/git"
    program.parent.mkdir()
    script = ["#!/bin/sh", 'if [ "$1" = fetch ]; then', '  case "$3" in', *cases, "  esac", "fi"]
    program.write_text("\n".join([*script, f'exec {shlex.quote(real)} "$@"', ""]), encoding="utf-8")
    program.chmod(0o755)
    found = f"PATH={program.parent}{os.pathsep}{os.environ['PATH']}"
    return dataclasses.replace(renderer, argv=("env", found, *renderer.argv))
