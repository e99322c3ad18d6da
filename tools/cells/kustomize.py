"""Find a program that renders Kustomize directories, or install one in the cache.

In this order: kustomize on PATH, kubectl on PATH (it contains a kustomize), the pinned one in the cache.
Without them, the pinned version is built with `go install`, or downloaded and checked by its digest.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.core import UserError, go_build, output, repo
from tools.core.command_line import TooLarge, captured
from tools.core.go_build import Progress, Unusable
from tools.core.repo import shown
from tools.kube.manifests import LARGEST, Manifests, Object, parse

VERSION = "5.8.1"  # what is installed when the machine has none: February 2026
MINIMUM = (5, 4)  # 5.1 changed the order of generators and Components; kubectl 1.31 contains 5.4.2
MODULE = "sigs.k8s.io/kustomize/kustomize/v5"
RELEASES = "https://github.com/kubernetes-sigs/kustomize/releases/download"

# SHA-256 of kustomize_v5.8.1_<os>_<arch>.tar.gz, from the release's checksums.txt.
DIGESTS = {
    "linux_amd64": "029a7f0f4e1932c52a0476cf02a0fd855c0bb85694b82c338fc648dcb53a819d",
    "linux_arm64": "0953ea3e476f66d6ddfcd911d750f5167b9365aa9491b2326398e289fef2c142",
    "darwin_amd64": "ee7cf0c1e3592aa7bb66ba82b359933a95e7f2e0b36e5f53ed0a4535b017f2f8",
    "darwin_arm64": "8886f8a78474e608cc81234f729fda188a9767da23e28925802f00ece2bab288",
}

PROBE_SECONDS = 20
BUILD_SECONDS = 300  # a remote base may have to be cloned
NETWORK_SECONDS = 30
LARGEST_ARCHIVE = 2**26  # bytes
MESSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class Renderer:
    """A program that renders a Kustomize directory."""

    argv: tuple[str, ...]  # the command without its last argument, the directory
    version: str  # of kustomize, also of the one in kubectl: "5.5.0"
    source: str  # where it was found, for messages

    def build(self, path: Path) -> str:
        """Return the YAML that `path` renders to, with the default load restrictions and without plugins.

        A remote base may come by https only, unless the user's own GIT_ALLOW_PROTOCOL says more. kustomize
        hands `?ref=--upload-pack=COMMAND` to git as an option, and git runs the command: here for a file://
        base, on the other host for an ssh:// one. Raises UserError with kustomize's message, shortened, if it
        does not render.
        """
        # Without GIT_TERMINAL_PROMPT, a remote base that asks for a password would wait forever.
        environment = {"GIT_ALLOW_PROTOCOL": "https", **os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            done = captured(
                [*self.argv, os.path.join(".", path)], environment=environment, seconds=BUILD_SECONDS, largest=LARGEST
            )
            answer, complaint = done.stdout.decode(), done.stderr.decode(errors="replace")
        except OSError as problem:
            raise UserError(f"{self.argv[0]}: {problem.strerror}") from problem
        except subprocess.TimeoutExpired:
            raise UserError(f"{shown(path)} does not render within {BUILD_SECONDS} seconds") from None
        except (TooLarge, UnicodeDecodeError) as problem:
            raise UserError(f"{shown(path)} does not render to a manifest: {problem}") from None
        if done.returncode != 0:
            raise UserError(f"{shown(path)} does not render: {_short(complaint, path)}", f"rendered by {self}")
        output.notes(complaint)  # warnings about deprecated fields
        return answer

    def __str__(self) -> str:
        return f"{' '.join(self.argv)} (kustomize {self.version}, {self.source})"


def find(root: Path) -> Renderer | None:
    """Return the first renderer that is new enough, or None. Installs nothing; takes at most about 0.1 s."""
    return _first(root, [])


def ensure(root: Path, progress: Progress) -> Renderer:
    """Return a renderer, and install it in the cache if it is missing. Raises UserError with what was tried."""
    reasons: list[str] = []
    found = _first(root, reasons)
    if found is not None:
        return found
    for install in (go_install, download):
        try:
            return _probe(install(root, progress), "installed by yard", root)
        except Unusable as reason:
            reasons.append(str(reason))
    raise UserError(
        "nothing on this machine renders Kustomize directories: " + "; ".join(reasons),
        "install kustomize 5.4 or newer, or kubectl 1.31 or newer, and run this again "
        "(https://kubectl.docs.kubernetes.io/installation/kustomize/)",
    )


def rendered(path: Path) -> Manifests:
    """Return the objects of a directory. Raises UserError."""
    return in_order(parse(ensure(repo.root(), output.note).build(path), shown(path)))


def in_order(manifests: Manifests) -> Manifests:
    """Return the objects with TrainJobs last: Trainer accepts one only after its runtime."""
    return Manifests(manifests.source, sorted(manifests.objects, key=lambda item: item.get("kind") == "TrainJob"))


def with_component(below: Path | list[Object], component: str) -> str:
    """Return what a directory, or objects, render to with a Component of this program above. UserError."""
    repo.cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="above-", dir=repo.cache()) as directory:
        if isinstance(below, Path):
            resource = os.path.relpath(below, directory)
        else:
            resource = "objects.json"
            listed = {"apiVersion": "v1", "kind": "List", "items": below}
            (Path(directory) / resource).write_text(json.dumps(listed), encoding="utf-8")
        part = os.path.relpath(repo.root() / component, directory)
        # The references that a Component with a nameSuffix moves; rendered objects do not bring them.
        shutil.copy(repo.root() / "base/pytorchjob/kustomizeconfig.yaml", directory)
        above = {"resources": [resource], "components": [part], "configurations": ["kustomizeconfig.yaml"]}
        (Path(directory) / "kustomization.yaml").write_text(json.dumps(above), encoding="utf-8")
        return ensure(repo.root(), output.note).build(Path(directory))


def place(root: Path, version: str = VERSION) -> Path:
    """Return the path of an installed version."""
    return repo.cache(root) / "bin" / f"kustomize-{version}"


def go_install(root: Path, progress: Progress, version: str = VERSION) -> Path:
    """Build a version of kustomize with the machine's Go; return its place. Raises Unusable."""
    with go_build.workshop(root) as environment:
        progress(f"building kustomize {version} with {shutil.which('go')}: about half a minute, once")
        built = go_build.install(MODULE, "kustomize", version, environment, progress)
        try:
            return _put(built.read_bytes(), place(root, version))
        except OSError as problem:
            raise Unusable(f"go install: {problem}") from problem


def download(root: Path, progress: Progress) -> Path:
    """Download the pinned release, check its digest and return its place. Raises Unusable."""
    import http.client
    import urllib.request  # imported here, because they take a fifth of the time of a small command

    machine = platform.machine().lower()
    target = f"{platform.system().lower()}_{({'x86_64': 'amd64', 'aarch64': 'arm64'}).get(machine, machine)}"
    if target not in DIGESTS:
        raise Unusable(f"no kustomize {VERSION} with a known digest for {target}")
    url = f"{RELEASES}/kustomize%2Fv{VERSION}/kustomize_v{VERSION}_{target}.tar.gz"
    progress(f"downloading {url} (6 MiB)")
    try:
        with urllib.request.urlopen(url, timeout=NETWORK_SECONDS) as answer:
            size = answer.length or 0
            archive = answer.read(LARGEST_ARCHIVE)
        if len(archive) < size:
            raise http.client.IncompleteRead(archive, size - len(archive))
        digest = hashlib.sha256(archive).hexdigest()
        if digest != DIGESTS[target]:
            raise Unusable(f"{url}: its SHA-256 is {digest}, not {DIGESTS[target]}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.extractfile("kustomize")
            return _put(member.read() if member else b"", place(root))
    except (OSError, http.client.HTTPException, tarfile.TarError, KeyError) as problem:
        raise Unusable(f"{url}: {problem}") from problem


def _first(root: Path, reasons: list[str]) -> Renderer | None:
    """Return the first usable renderer; add the reasons against the others to `reasons`."""
    on_path = [(name, shutil.which(name), "on PATH") for name in ("kustomize", "kubectl")]
    for name, program, source in [*on_path, ("", str(place(root)), "in the checkout")]:
        try:
            if program is None:
                raise Unusable(f"no {name} on PATH")
            return _probe(Path(program), source, root)
        except Unusable as reason:
            reasons.append(str(reason))
    return None


def _version(program: Path) -> str:
    """Return what kustomize or kubectl prints about its version. Raises Unusable if it does not run."""
    kubectl = program.name == "kubectl"
    command = [str(program), "version", *(["--client", "--output=json"] if kubectl else [])]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except OSError as problem:
        raise Unusable(f"{program} does not run: {problem.strerror}") from problem
    except (subprocess.TimeoutExpired, UnicodeDecodeError) as problem:
        raise Unusable(f"{program} does not answer") from problem
    if done.returncode != 0:
        raise Unusable(f"{program} does not run: exit code {done.returncode}")
    return done.stdout


def _identity(program: Path) -> list[Any] | None:
    """Return what changes with a program's file; None for a script or a link of another name: it may start others."""
    with contextlib.suppress(OSError):
        file = program.resolve(strict=True)
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if opened.read(2) != b"#!" and file.name == program.name:
                return [str(file), status.st_ino, status.st_size, status.st_mtime_ns]
    return None


def _known_version(program: Path, root: Path) -> str:
    """Return what `_version` does. A program whose file did not change since it was asked is not asked again."""
    identity = _identity(program)
    if identity is None:
        return _version(program)
    kept = repo.cache(root) / "kustomize.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        asked, version = json.loads(kept.read_bytes())
        if asked == identity and isinstance(version, str):
            return version
    version = _version(program)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix="kustomize-", dir=kept.parent) as directory:
        fresh = Path(directory) / kept.name
        fresh.write_text(json.dumps([identity, version]), encoding="utf-8")
        fresh.replace(kept)
    return version


def _probe(program: Path, source: str, root: Path) -> Renderer:
    """Return kustomize or kubectl as a renderer. Raises Unusable if it does not run or is too old."""
    printed = _known_version(program, root)
    version = re.search(r'(?:^|"kustomizeVersion": *")v?(\d+)\.(\d+)\.(\d+)', printed)
    if version is None:
        raise Unusable(f"{program} does not print a version of kustomize")
    dotted = ".".join(version.groups())
    if (int(version[1]), int(version[2])) < MINIMUM:
        raise Unusable(f"{program} is kustomize {dotted}, older than {'.'.join(map(str, MINIMUM))}")
    return Renderer((str(program), "kustomize" if program.name == "kubectl" else "build"), dotted, source)


def _put(program: bytes, target: Path) -> Path:
    """Write a program that runs to its place in one step, so that an incomplete one is never run."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        fresh = Path(directory) / target.name
        fresh.write_bytes(program)
        fresh.chmod(0o755)
        _version(fresh)
        return fresh.replace(target)


def _short(stderr: str, path: Path) -> str:
    """Return kustomize's error in one line, without a log frame, and with paths relative to the checkout."""
    text = " ".join(line.strip() for line in stderr.splitlines() if line.strip())
    # Some versions of kubectl log what others print.
    framed = re.search(r'err=(?:"((?:[^"\\]|\\.)*)"|<(.{0,4000})>)', text)
    if framed:
        text = (framed[1] or framed[2]).replace('\\"', '"').strip()
    text = re.sub(r"^(Error|error): ", "", text)
    for parent in path.resolve().parents:
        if (parent / "overlays").is_dir():
            text = text.replace(f"{parent}/", "")
    if len(text) > MESSAGE_CHARACTERS:
        text = "..." + text[-MESSAGE_CHARACTERS:]
    return text or "no message"
