"""The locks: every package is pinned and hashed for every platform, and no index is named."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ["requirements.lock", "requirements-dev.lock", "requirements-track.lock"]
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
# Imported only where they are installed: on Trainium, with TorchX, and by the trackers that a run names.
OPTIONAL = {"torchao", "torch_xla", "torchx", "mlflow", "wandb", "trackio"}


def locked(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Return each entry of a lock with its hashes."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", (ROOT / lock).read_text(encoding="utf-8"))[1:]
    return [
        (Requirement(entry.split("\\\n")[0].strip()), re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
        for entry in entries
    ]


def direct(lock: str) -> list[Requirement]:
    """Return what pyproject.toml names for a lock."""
    value = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, groups = value["project"]["optional-dependencies"], value["dependency-groups"]
    named = [*value["project"]["dependencies"], *extras["train"], *extras["image"], *groups["checkout"]]
    named += [text for text in groups["dev"] if isinstance(text, str)] if lock == LOCKS[1] else []
    named += extras["track"] if lock == LOCKS[2] else []
    return [Requirement(text) for text in named]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_and_hashed(lock: str) -> None:
    """Without its hash an installer would refuse the whole file; without == an entry would drift."""
    entries = locked(lock)
    assert len(entries) > len(direct(lock))
    for requirement, hashes in entries:
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        assert hashes, f"{requirement} has no hash"


@pytest.mark.parametrize("lock", LOCKS)
def test_no_index_is_named(lock: str) -> None:
    """The user chooses the index that serves the packages."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"https?:|--(extra-)?index|--find-links|@ ", text)


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_the_other_locks_contain_that_of_users(lock: str) -> None:
    """Set-up installs one over the other, so they must agree on every pin."""
    both, users = (
        {f"{requirement.name}{requirement.specifier}": hashes for requirement, hashes in locked(name)}
        for name in (lock, "requirements.lock")
    )
    assert [name for name, hashes in users.items() if both.get(name) != hashes] == []
    assert len(users) < len(both)
    assert not {"pytest", "ruff", "mypy", "moto"} & {requirement.split("==")[0] for requirement in users}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
def test_every_platform_gets_what_was_asked_for(lock: str, system: str, machine: str, python: str) -> None:
    """On each platform each direct requirement has exactly one pin, and the pin satisfies it."""
    environment = {
        **{name: str(value) for name, value in default_environment().items()},
        "sys_platform": system,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system],
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
    }
    pins: dict[str, list[str]] = {}
    for requirement, _ in locked(lock):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pins.setdefault(canonicalize_name(requirement.name), []).append(next(iter(requirement.specifier)).version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
    for wanted in direct(lock):
        versions = pins.get(canonicalize_name(wanted.name), [])
        assert len(versions) == 1, f"{wanted} is not in the lock: run make lock"
        assert wanted.specifier.contains(versions[0]), f"{wanted} is locked at {versions[0]}: run make lock"


def test_the_users_lock_holds_all_that_tools_and_training_import() -> None:
    """`make setup` without the development lock must be enough for yard and for training."""
    modules = set()
    for path in (*(ROOT / "tools").rglob("*.py"), *(ROOT / "training").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
    foreign = modules - sys.stdlib_module_names - {"tools", "training"} - OPTIONAL
    assert {"torch", "click", "plotext"} & foreign, "nothing was found"
    users = {canonicalize_name(requirement.name) for requirement, _ in locked("requirements.lock")}
    provided = packages_distributions()
    missing = {
        module for module in foreign if not {canonicalize_name(name) for name in provided.get(module, [module])} & users
    }
    assert missing == set()


def test_each_direct_requirement_says_why_it_is_there() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.findall(r'(?m)^  ["{].*', text.partition("[project.scripts]")[0])
    assert len(lines) > len(direct(LOCKS[1]))
    for line in lines:
        assert "include-group" in line or re.search(r'",\s+# \w', line), f"{line!r} gives no reason"
