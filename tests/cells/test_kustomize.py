"""Finding and installing a renderer, with real programs, archives and servers."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.cells import kustomize
from tools.core import go_build
from tools.core.errors import UserError

KUBECTL = """#!/bin/sh
echo '{"clientVersion": {"gitVersion": "%s"}, "kustomizeVersion": "%s"}'
"""
KUSTOMIZE = "#!/bin/sh\necho %s\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "path"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "checkout"
    directory.mkdir()
    return directory


def program(directory: Path, name: str, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return file


def no_progress(line: str) -> None:
    pass


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("version", "taken"),
    [("v5.4.0", "5.4.0"), ("v5.8.1", "5.8.1"), ("5.6.0", "5.6.0"), ("v6.0.0", "6.0.0")],
)
def test_kustomize_on_path(version: str, taken: str, path: Path, root: Path) -> None:
    own = program(path, "kustomize", KUSTOMIZE % version)
    program(path, "kubectl", KUBECTL % ("v1.32.0", "v5.5.0"))
    found = kustomize.find(root)
    assert found == kustomize.Renderer((str(own), "build"), taken, "on PATH")


@pytest.mark.parametrize("script", [KUSTOMIZE % "v5.3.0", KUSTOMIZE % "'(devel)'", "#!/bin/sh\nexit 1\n", "nonsense"])
def test_an_unusable_kustomize_is_passed_over(script: str, path: Path, root: Path) -> None:
    program(path, "kustomize", script)
    kubectl = program(path, "kubectl", KUBECTL % ("v1.32.4-dispatcher", "v5.5.0"))
    found = kustomize.find(root)
    assert found is not None
    assert found == kustomize.Renderer((str(kubectl), "kustomize"), "5.5.0", "on PATH")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The programs that were asked for their version; each is 5.5.0."""
    programs: list[Path] = []

    def version(program: Path) -> str:
        programs.append(program)
        return "v5.5.0"

    monkeypatch.setattr(kustomize, "_version", version)
    return programs


def test_a_program_is_asked_for_its_version_again_when_it_changed(path: Path, root: Path, asked: list[Path]) -> None:
    own = program(path, "kustomize", "a program")
    (root / ".cache").mkdir()
    found = [kustomize.find(root), kustomize.find(root)]
    assert found == [kustomize.Renderer((str(own), "build"), "5.5.0", "on PATH")] * 2
    assert asked == [own]
    own.write_text("another program")
    kustomize.find(root)
    assert asked == [own] * 2
    assert files_below(root) == [".cache/kustomize.json"]


@pytest.mark.parametrize("text", ["", "[", "[1]", "3", '[["x"], "v5.5.0"]', '[["x"], 5]'])
def test_a_broken_note_of_the_version_is_replaced(text: str, path: Path, root: Path, asked: list[Path]) -> None:
    own = program(path, "kustomize", "a program")
    (root / ".cache").mkdir()
    (root / ".cache/kustomize.json").write_text(text)
    assert kustomize.find(root) == kustomize.find(root)
    assert asked == [own]


@pytest.mark.parametrize("through", ["a script", "a link"])
def test_what_may_start_another_program_is_always_asked(
    through: str, path: Path, root: Path, asked: list[Path]
) -> None:
    (root / ".cache").mkdir()
    if through == "a script":
        program(path, "kustomize", KUSTOMIZE % "v5.5.0")
    else:
        (path / "kustomize").symlink_to(program(path, "manager", "a program"))
    kustomize.find(root)
    kustomize.find(root)
    assert asked == [path / "kustomize"] * 2
    assert files_below(root) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (KUBECTL % ("v1.30.9", "v5.0.4-0.20230601165947"), "is kustomize 5.0.4, older than 5.4"),
        (KUBECTL % ("v1.31.0+k3s1", "v5.3.0"), "is kustomize 5.3.0, older than 5.4"),
        (KUBECTL % ("v1.32.0", ""), "does not print a version of kustomize"),
        ("#!/bin/sh\necho Client Version: v1.20.0\n", "does not print a version of kustomize"),
        ("#!/bin/sh\necho '[]'\n", "does not print a version of kustomize"),
        ("#!/bin/sh\nexit 3\n", "does not run: exit code 3"),
        ("#!/nowhere\n", "does not run: No such file or directory"),
    ],
)
def test_an_unusable_kubectl_is_passed_over_and_named(
    script: str, reason: str, path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(path, "kubectl", script)
    assert kustomize.find(root) is None
    monkeypatch.setattr(kustomize, "DIGESTS", {})
    with pytest.raises(UserError) as caught:
        kustomize.ensure(root, no_progress)
    assert reason in caught.value.message


def test_an_installed_one_is_used_without_the_network(path: Path, root: Path) -> None:
    own = program(root / ".cache/bin", "kustomize-5.8.1", KUSTOMIZE % "v5.8.1")
    told: list[str] = []
    assert kustomize.ensure(root, told.append).argv == (str(own), "build")
    assert told == []


def test_without_any_way_one_message_says_what_to_install(
    path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UserError) as caught:
        kustomize.ensure(root, no_progress)
    message, hint = caught.value.message, caught.value.hint
    assert "\n" not in message
    for part in ("no kustomize on PATH", "no kubectl on PATH", "no go on PATH", "known digest for"):
        assert part in message
    assert hint is not None
    assert "install kustomize 5.4 or newer, or kubectl 1.31 or newer" in hint
    assert caught.value.code == 2
    assert files_below(root) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'go: no network'; exit 1", "go: no network$"),
        (
            "echo a.go:1: full disk; seq -f 'b.go:%g: no go' 99; echo the end; exit 1",
            "a.go:1: full disk\n[^$]*the end$",
        ),
        ("kill -9 $$", "exit code -9$"),
    ],
)
def test_a_failing_go_is_reported(script: str, said: str, path: Path, root: Path) -> None:
    program(path, "go", f"#!/bin/sh\nPATH=/usr/bin:/bin\nexec >&2\n{script}\n")
    told: list[str] = []
    with pytest.raises(go_build.Unusable, match=f"go install failed: {said}"):
        kustomize.go_install(root, told.append)
    assert "about half a minute" in told[0]
    assert files_below(root) == []


def test_go_writes_below_the_checkout_only(path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a go that records its arguments and environment, and writes a program to GOBIN."""
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    program(
        path,
        "go",
        "#!/bin/sh\n/usr/bin/env >&2\n/bin/mkdir $GOBIN\n"
        "printf '#!/bin/sh\\necho v5.8.1\\n' > $GOBIN/kustomize\n"
        'echo "$@" > $GOBIN/../../asked\n/usr/bin/env > $GOBIN/../../environment\n',
    )
    found = kustomize.ensure(root, no_progress)
    assert found.argv == (str(root / ".cache/bin/kustomize-5.8.1"), "build")
    assert found.version == "5.8.1"
    asked = (root / ".cache/asked").read_text(encoding="utf-8")
    assert asked == "install -v sigs.k8s.io/kustomize/kustomize/v5@v5.8.1\n"
    lines = (root / ".cache/environment").read_text(encoding="utf-8").splitlines()
    told = dict(line.partition("=")[::2] for line in lines if "=" in line)
    for name in ("GOPATH", "GOMODCACHE", "GOCACHE", "GOBIN", "GOTMPDIR", "TEST_TELEMETRY_DIR"):
        assert Path(told[name]).is_relative_to(root / ".cache")
    assert "GOOS" not in told
    assert told["GOFLAGS"] == "-modcacherw"
    assert files_below(root) == [".cache/asked", ".cache/bin/kustomize-5.8.1", ".cache/environment"]


def archive(name: str = "kustomize", text: str = KUSTOMIZE % "v5.8.1") -> bytes:
    """Return a release archive with one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, path: Path) -> Iterator[Callable[..., list[str]]]:
    """A function that serves bytes as the release on loopback, and returns the list of requested paths."""
    servers: list[http.server.HTTPServer] = []
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def start(content: bytes, length: int | None = None, status: int = 200, digest: str | None = None) -> list[str]:
        asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content) if length is None else length))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        monkeypatch.setattr(kustomize, "RELEASES", f"http://127.0.0.1:{server.server_port}")
        known = digest or hashlib.sha256(content).hexdigest()
        monkeypatch.setattr(kustomize, "DIGESTS", dict.fromkeys(kustomize.DIGESTS, known))
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_download_of_the_right_bytes(serve: Callable[..., list[str]], root: Path) -> None:
    asked = serve(archive())
    told: list[str] = []
    found = kustomize.ensure(root, told.append)
    assert found.argv == (str(root / ".cache/bin/kustomize-5.8.1"), "build")
    assert found.version == "5.8.1"
    (wanted,) = asked
    assert wanted.startswith("/kustomize%2Fv5.8.1/kustomize_v5.8.1_")
    assert wanted.endswith("64.tar.gz")
    assert any(line.startswith("downloading http://127.0.0.1") for line in told)
    assert files_below(root) == [".cache/bin/kustomize-5.8.1"]
    assert kustomize.ensure(root, no_progress).source == "in the checkout"
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        (
            {"content": archive(), "digest": "0" * 64},
            r"its SHA-256 is [0-9a-f]{64}, not 0{64}",
        ),
        (
            {"content": archive()[:60], "length": len(archive())},
            r"IncompleteRead\(60 bytes read",
        ),
        ({"content": b"not found", "status": 404}, "Not Found"),
        ({"content": b"not an archive"}, "not a gzip file"),
        ({"content": archive(name="other")}, "filename 'kustomize' not found"),
        ({"content": archive(text="#!/nowhere")}, "does not run: No such file"),
    ],
    ids=["digest", "truncated", "404", "no archive", "other file", "other program"],
)
def test_download_of_anything_else(
    kwargs: dict[str, object], said: str, serve: Callable[..., list[str]], root: Path
) -> None:
    asked = serve(**kwargs)
    with pytest.raises(UserError, match=said):
        kustomize.ensure(root, no_progress)
    assert len(asked) == 1
    assert files_below(root) == []


def test_download_without_a_server(path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(kustomize, "RELEASES", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(UserError, match="Connection refused"):
            kustomize.ensure(root, no_progress)
    assert files_below(root) == []


def test_every_supported_platform_has_a_digest() -> None:
    assert set(kustomize.DIGESTS) == {f"{system}_{cpu}" for system in ("linux", "darwin") for cpu in ("amd64", "arm64")}
    assert all(len(digest) == 64 and int(digest, 16) for digest in kustomize.DIGESTS.values())
    assert len(set(kustomize.DIGESTS.values())) == 4


def test_a_removed_renderer_is_one_clear_error(root: Path) -> None:
    gone = kustomize.Renderer((str(root / "kustomize"), "build"), "5.8.1", "on PATH")
    with pytest.raises(UserError, match="No such file or directory"):
        gone.build(root)


def test_a_remote_base_never_asks_for_a_password(path: Path, root: Path) -> None:
    own = program(path, "kustomize", '#!/bin/sh\ntest "$GIT_TERMINAL_PROMPT" = 0 && read -r line; echo "$?"\n')
    found = kustomize.Renderer((str(own), "build"), "5.8.1", "on PATH")
    assert found.build(root) == "1\n"  # read found the end of its input
    assert os.environ.get("GIT_TERMINAL_PROMPT") != "0"
