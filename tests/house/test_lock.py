"""requirements.lock: every package pinned and hashed for every platform, and no index named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def locked() -> list[tuple[Requirement, list[str]]]:
    """Returns each entry of the lock with its hashes."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", LOCK)[1:]
    return [
        (Requirement(entry.split("\\\n")[0].strip()), re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
        for entry in entries
    ]


def direct() -> list[Requirement]:
    """Returns what the two .in files ask for."""
    lines = [
        line.partition("#")[0].strip()
        for name in ("requirements.in", "requirements-dev.in")
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
    ]
    return [Requirement(line) for line in lines if line]


def test_every_package_is_pinned_and_hashed() -> None:
    """An entry without a hash would make pip refuse the whole file; one without == would drift."""
    entries = locked()
    assert len(entries) > len(direct())
    for requirement, hashes in entries:
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        assert hashes, f"{requirement} has no hash"


def test_no_index_is_named() -> None:
    """Which index serves the packages is the user's business."""
    assert not re.search(r"https?:|--(extra-)?index|--find-links|@ ", LOCK)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
def test_every_platform_gets_what_was_asked_for(system: str, machine: str, python: str) -> None:
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
    for requirement, _ in locked():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pins.setdefault(canonicalize_name(requirement.name), []).append(
                next(iter(requirement.specifier)).version
            )
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
    for wanted in direct():
        versions = pins.get(canonicalize_name(wanted.name), [])
        assert len(versions) == 1, f"{wanted} is not in the lock: run make lock"
        assert wanted.specifier.contains(versions[0]), f"{wanted} is locked at {versions[0]}: run make lock"


def test_each_direct_requirement_says_why_it_is_there() -> None:
    """A dependency earns its place in words."""
    for name in ("requirements.in", "requirements-dev.in"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            assert line.startswith("#") or re.search(r"\S\s+# \w", line), f"{name}: {line!r} gives no reason"
