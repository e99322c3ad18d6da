"""Finds a program that renders Kustomize directories, or gets one into the checkout.

    python -m tools.cells.kustomize

In this order: kustomize on PATH, kubectl on PATH (it carries a kustomize), one that was got before in
`.cache/bin`, `go install` of a pinned version, a pinned release archive checked by its digest. Nothing is
written outside the checkout. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.core import go_build
from tools.core.errors import UserError
from tools.core.go_build import Progress, Unusable
from tools.core.repo import shown

VERSION = "5.8.1"  # what is got when the machine has none: February 2026
MINIMUM = (5, 4)  # 5.1 changed the order of generators and Components; 5.4.2 is what kubectl 1.31 carries
MINIMUM_KUBECTL = (1, 31)
MODULE = "sigs.k8s.io/kustomize/kustomize/v5"
RELEASES = "https://github.com/kubernetes-sigs/kustomize/releases/download"

# SHA-256 of kustomize_v5.8.1_<os>_<arch>.tar.gz, as in the release's checksums.txt.
DIGESTS = {
    "linux_amd64": "029a7f0f4e1932c52a0476cf02a0fd855c0bb85694b82c338fc648dcb53a819d",
    "linux_arm64": "0953ea3e476f66d6ddfcd911d750f5167b9365aa9491b2326398e289fef2c142",
    "darwin_amd64": "ee7cf0c1e3592aa7bb66ba82b359933a95e7f2e0b36e5f53ed0a4535b017f2f8",
    "darwin_arm64": "8886f8a78474e608cc81234f729fda188a9767da23e28925802f00ece2bab288",
}

PROBE_SECONDS = 20
NETWORK_SECONDS = 30
PROGRESS_SECONDS = 2
LARGEST_ARCHIVE = 64 * 2**20  # bytes; the real ones are about 6 MiB
MESSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class Renderer:
    """A program that renders a Kustomize directory."""

    argv: tuple[str, ...]  # the command, to be followed by a directory
    version: str  # of kustomize, also where kubectl carries it: "5.5.0"
    source: str  # where it was found, for a person

    def build(self, path: Path) -> str:
        """Return the YAML that `path` renders to, with the default load restrictions.

        Raises UserError with kustomize's own message, made short, when it cannot be rendered.
        """
        # A remote base that asks for a password would wait for ever.
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            done = subprocess.run(
                [*self.argv, str(path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as problem:
            raise UserError(f"{self.argv[0]}: {problem.strerror}") from problem
        if done.returncode != 0:
            raise UserError(
                f"{shown(path)} does not render: {_short(done.stderr, path)}", f"rendered by {self}"
            )
        if done.stderr:
            sys.stderr.write(done.stderr)  # warnings about deprecated fields
        return done.stdout

    def __str__(self) -> str:
        return f"{' '.join(self.argv)} (kustomize {self.version}, {self.source})"


def find(root: Path) -> Renderer | None:
    """Return the first renderer that is new enough, or None. Gets nothing; takes about 0.1 s."""
    return _look(root, [])


def ensure(root: Path, progress: Progress) -> Renderer:
    """Return a renderer; where the machine has none, get one into `root/.cache/bin`.

    `progress` is given one line at a time. Raises UserError that says what was tried and what to install.
    """
    reasons: list[str] = []
    found = _look(root, reasons)
    if found is not None:
        return found
    for get in (go_install, download):
        try:
            return _kustomize(get(root, progress) / "kustomize", "got into the checkout")
        except Unusable as reason:
            reasons.append(str(reason))
    raise UserError(
        "nothing here renders Kustomize directories: " + "; ".join(reasons),
        "install kustomize 5.4 or newer, or kubectl 1.31 or newer, and run this again "
        "(https://kubectl.docs.kubernetes.io/installation/kustomize/)",
    )


def go_install(root: Path, progress: Progress, versions: Mapping[str, str] | None = None) -> Path:
    """Build kustomize with the machine's Go; return the directory of the programs, `root/.cache/bin`.

    `versions` maps a program's name there to its version; without it `kustomize` is the pinned one. Module
    cache, build cache and temporary files stand below `root/.cache` and are removed afterwards (300 MB).
    Raises Unusable.
    """
    programs = root / ".cache" / "bin"
    with go_build.workshop(root) as environment:
        for name, version in (versions or {"kustomize": VERSION}).items():
            progress(f"building kustomize {version} with {shutil.which('go')}: about half a minute, once")
            built = go_build.install(MODULE, "kustomize", version, environment, progress)
            try:
                programs.mkdir(exist_ok=True)
                _put(built, programs / name)
            except OSError as problem:
                raise Unusable(f"go install: {problem}") from problem
    return programs


def download(root: Path, progress: Progress) -> Path:
    """Fetch the pinned release archive, check its digest; return its program's directory, `root/.cache/bin`.

    Raises Unusable when this platform has no known digest, the network fails or the digest is another.
    """
    target = _platform()
    if target not in DIGESTS:
        raise Unusable(f"no kustomize {VERSION} with a known digest for {target}")
    url = f"{RELEASES}/kustomize%2Fv{VERSION}/kustomize_v{VERSION}_{target}.tar.gz"
    progress(f"downloading {url}")
    directory = root / ".cache" / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=directory) as archive:
            digest = _fetch(url, archive, progress)
            if digest != DIGESTS[target]:
                raise Unusable(f"{url}: its SHA-256 is {digest}, not {DIGESTS[target]}; it was thrown away")
            with tempfile.TemporaryDirectory(dir=directory) as unpacked:
                _put(_unpack(archive, Path(unpacked)), directory / "kustomize")
    except (OSError, http.client.HTTPException, tarfile.TarError) as problem:
        reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
        raise Unusable(f"{url}: {reason}") from problem
    return directory


def _look(root: Path, reasons: list[str]) -> Renderer | None:
    """Return the first usable renderer; add to `reasons` why each other is not."""
    for probe in _probes(root):
        try:
            return probe()
        except Unusable as reason:
            reasons.append(str(reason))
    return None


def _probes(root: Path) -> Iterator[Callable[[], Renderer]]:
    yield lambda: _kustomize(_on_path("kustomize"), "on PATH")
    yield lambda: _kubectl(_on_path("kubectl"))
    own = root / ".cache" / "bin" / "kustomize"
    if own.exists():
        yield lambda: _kustomize(own, "in the checkout")


def _on_path(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise Unusable(f"no {name} on PATH")
    return Path(found)


def _kustomize(program: Path, source: str) -> Renderer:
    answer = _ask([str(program), "version"])
    version = _numbers(answer)
    if version is None:
        raise Unusable(f"{program} does not say its version")
    if version < MINIMUM:
        raise Unusable(f"{program} is kustomize {_dotted(version)}, older than {_dotted(MINIMUM)}")
    return Renderer((str(program), "build"), _dotted(version), source)


def _kubectl(program: Path) -> Renderer:
    try:
        answer = json.loads(_ask([str(program), "version", "--client", "--output=json"]))
        client, carried = answer["clientVersion"]["gitVersion"], answer.get("kustomizeVersion", "")
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise Unusable(f"{program} does not say its version") from problem
    version = _numbers(str(client))  # may carry a vendor's suffix: v1.32.4-dispatcher
    if version is None:
        raise Unusable(f"{program} does not say its version")
    if version < MINIMUM_KUBECTL:
        raise Unusable(f"{program} is kubectl {_dotted(version)}, older than {_dotted(MINIMUM_KUBECTL)}")
    kustomize = _numbers(str(carried))
    if kustomize is None or kustomize < MINIMUM:
        raise Unusable(f"{program} carries kustomize {carried or 'of no known version'}")
    return Renderer((str(program), "kustomize"), _dotted(kustomize), f"in kubectl {_dotted(version)} on PATH")


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except OSError as problem:
        raise Unusable(f"{command[0]} does not run: {problem.strerror}") from problem
    except (subprocess.TimeoutExpired, UnicodeDecodeError) as problem:
        raise Unusable(f"{command[0]} gives no answer") from problem
    if done.returncode != 0:
        raise Unusable(f"{command[0]} does not run: exit code {done.returncode}")
    return done.stdout


def _numbers(text: str) -> tuple[int, ...] | None:
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number) for number in match.groups(default="0")) if match else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)


def _platform() -> str:
    machine = platform.machine().lower()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return f"{platform.system().lower()}_{architecture}"


def _fetch(url: str, archive: IO[bytes], progress: Progress) -> str:
    """Copy `url` into `archive`; return the SHA-256 of what came. Raises Unusable, OSError, HTTPException."""
    digest, size, told = hashlib.sha256(), 0, time.monotonic()
    with urllib.request.urlopen(url, timeout=NETWORK_SECONDS) as answer:
        expected = int(answer.headers.get("Content-Length") or 0)
        while block := answer.read(2**16):
            archive.write(block)
            digest.update(block)
            size += len(block)
            if size > LARGEST_ARCHIVE:
                raise Unusable(f"{url}: more than {LARGEST_ARCHIVE} bytes")
            if time.monotonic() - told > PROGRESS_SECONDS:
                progress(f"  {size / 2**20:.1f} MiB" + (f" of {expected / 2**20:.1f}" if expected else ""))
                told = time.monotonic()
    if expected and size != expected:
        raise Unusable(f"{url}: the connection ended after {size} of {expected} bytes")
    return digest.hexdigest()


def _unpack(archive: IO[bytes], directory: Path) -> Path:
    """Take the one file `kustomize` out of the archive. Raises Unusable, TarError."""
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:gz") as tar, contextlib.suppress(KeyError):
        member = tar.extractfile("kustomize")
        if member is not None:
            program = directory / "kustomize"
            with member, program.open("wb") as file:
                shutil.copyfileobj(member, file)
            return program
    raise Unusable("the release archive holds no file kustomize")


def _put(program: Path, target: Path) -> None:
    """Move a program that runs to its place in one step, so that nobody ever runs half of it."""
    if not program.is_file():
        raise Unusable(f"{program.name} was not made")
    program.chmod(0o755)
    _ask([str(program), "version"])
    program.replace(target)


def _short(stderr: str, path: Path) -> str:
    """Return kustomize's error in one line: no logger's frame, paths relative to the overlays' parent."""
    text = " ".join(line.strip() for line in stderr.splitlines() if line.strip())
    # Some kubectls log what others print.
    framed = re.search(r'err=(?:"((?:[^"\\]|\\.)*)"|<(.*)>)', text)
    if framed:
        text = (framed[1] or framed[2]).replace('\\"', '"').strip()
    text = re.sub(r"^(Error|error): ", "", text)
    for parent in path.resolve().parents:
        if (parent / "overlays").is_dir():
            text = text.replace(f"{parent}/", "")
    if len(text) > MESSAGE_CHARACTERS:
        text = "..." + text[-MESSAGE_CHARACTERS:]
    return text or "no message"


def main() -> int:
    """Make sure of a renderer and print it; return the exit code."""
    root = Path(__file__).resolve().parents[2]
    try:
        print(ensure(root, lambda line: print(line, file=sys.stderr, flush=True)))
    except UserError as problem:
        print(f"error: {problem.message}\n  hint: {problem.hint}", file=sys.stderr)
        return problem.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
