"""The tag of an image, out of the state of its repository."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from tools.core.errors import UserError

POLICIES = ("describe", "sha", "semver", "time")
LONGEST = 128  # characters, by the OCI distribution specification
SEMVER = re.compile(r"v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")


def tag(policy: str, root: Path) -> str:
    """Return a tag by one of POLICIES.

    describe: `git describe` (v1.2.0, v1.2.0-3-gabc1234, abc1234), with -dirty where files differ. sha: the
    commit's first twelve digits. semver: 1.2.0 of the tag v1.2.0 on this very commit. time: UTC, to seconds.
    Raises UserError where the repository does not have what the policy needs.
    """
    if policy == "time":
        return time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    dirty = bool(_git(root, policy, "status", "--porcelain", "--untracked-files=no"))
    if policy == "semver":
        return _semver(root, dirty)
    found = (
        _git(root, policy, "describe", "--tags", "--always")
        if policy == "describe"
        else _git(root, policy, "rev-parse", "--short=12", "HEAD")
    )
    return valid(found + ("-dirty" if dirty else ""))


def revision(root: Path) -> str:
    """Return the commit, with -dirty where files differ from it; `unknown` outside of a repository."""
    try:
        commit = _git(root, "sha", "rev-parse", "HEAD")
        return commit + (
            "-dirty" if _git(root, "sha", "status", "--porcelain", "--untracked-files=no") else ""
        )
    except UserError:
        return "unknown"


def valid(text: str) -> str:
    """Return `text` as a tag: other characters become dashes, the first one none."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip(".-")[:LONGEST]


def _semver(root: Path, dirty: bool) -> str:
    if dirty:
        raise UserError(
            "--tag-from semver: there are changes that are not committed",
            "commit them, or --tag-from describe",
        )
    names = _git(root, "semver", "tag", "--points-at", "HEAD").split()
    found = [match[1] for name in names if (match := SEMVER.fullmatch(name))]
    if not found:
        raise UserError(
            "--tag-from semver: no tag like v1.2.0 on this commit", "git tag v1.2.0, or --tag-from describe"
        )
    return found[-1]


def _git(root: Path, policy: str, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        raise UserError(f"--tag-from {policy}: no git on PATH", "--tag-from time") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["git failed"]
        raise UserError(f"--tag-from {policy}: {said[-1].removeprefix('fatal: ')}", "--tag-from time")
    return done.stdout.strip()
