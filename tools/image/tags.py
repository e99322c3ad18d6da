"""The tag of an image, from the state of its git repository."""

import re
import time
from pathlib import Path

from tools.core import UserError, git

POLICIES = ("describe", "sha", "semver", "time")
LONGEST = 128  # characters, by the OCI distribution specification
SEMVER = re.compile(r"v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)")


def tag(policy: str, root: Path) -> str:
    """Return a tag by one of POLICIES.

    describe: `git describe` (v1.2.0, v1.2.0-3-gabc1234, abc1234), with -dirty for uncommitted changes. sha:
    the commit's first twelve digits. semver: 1.2.0 for the tag v1.2.0 on this commit. time: UTC, in seconds.
    Raises UserError if the repository does not have what the policy needs.
    """
    if policy == "time":
        return time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    dirty = bool(_git(root, policy, "status", "--porcelain", "--untracked-files=no"))
    if policy == "semver":
        return _semver(root, dirty)
    words = ("describe", "--tags", "--always") if policy == "describe" else ("rev-parse", "--short=12", "HEAD")
    return valid(_git(root, policy, *words) + ("-dirty" if dirty else ""))


def revision(root: Path) -> str:
    """Return the commit, with -dirty for uncommitted changes; `unknown` outside a repository."""
    try:
        dirty = _git(root, "sha", "status", "--porcelain", "--untracked-files=no")
        return _git(root, "sha", "rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except UserError:
        return "unknown"


def valid(text: str) -> str:
    """Return `text` as a valid tag: other characters become dashes, except at the start."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip(".-")[:LONGEST]


def _semver(root: Path, dirty: bool) -> str:
    if dirty:
        text = "--tag-from semver: there are changes that are not committed"
        raise UserError(text, "commit them, or --tag-from describe")
    names = _git(root, "semver", "tag", "--points-at", "HEAD").split()
    found = [match[1] for name in names if (match := SEMVER.fullmatch(name))]
    if not found:
        text = "--tag-from semver: no tag like v1.2.0 on this commit"
        raise UserError(text, "git tag v1.2.0, or --tag-from describe")
    return found[-1]


def _git(root: Path, policy: str, *words: str) -> str:
    try:
        return git.answer(root, *words).strip()
    except UserError as problem:
        raise UserError(f"--tag-from {policy}: {problem.message}", "--tag-from time") from None
