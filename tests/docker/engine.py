"""A private Docker engine and registry, in namespaces that end with the process that created them.

The sandbox is that of the test cluster. slirp4netns connects its network to the package index, without rules
or addresses on the machine. Clients run inside, where the registry is 127.0.0.1:5000. `yard` runs from a copy
of the tree, so that its records do not go to the checkout.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster.sandbox import Process, Sandbox, is_root
from tests.docker import base, packages
from tests.docker.packages import CannotStart
from tests.parts import tree
from tools.core import processes
from tools.core.wait import until

REGISTRY = "127.0.0.1:5000"
CLOSED = "127.0.0.1:5001"  # a registry with a login
LOGIN = ("team", "open-sesame")
LOGIN_HASH = "$2y$05$trainyardtrainyardtrae3SWrdDQDaQBSnQeQX3e7PNugEo/y4lm"  # bcrypt
# Amazon ECR of moto's account: the name leads to a local registry with moto's login.
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
ECR_LOGIN = ("AWS", "123456789012-auth-token")
ECR_HASH = "$2y$05$trainyardtrainyardtraeofGs3WQr90Xl/TwFfz7hG1NbebL7/YW"
MOTO = "127.0.0.1:5002"
KEEP = "TRAINYARD_TEST_DOCKER_ROOT"  # a directory that keeps the engine's images between runs
READY_SECONDS = 90
DNS = "10.0.2.3"  # slirp4netns' own
_TLS = {"certificate": "crt", "key": "key"}
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Harness:
    """One engine with a registry, ended by close()."""

    def __init__(self, say: Callable[[str], None]) -> None:
        if not is_root():
            raise CannotStart("a private dockerd needs namespaces, overlay mounts and control groups: run as root")
        self.packages = packages.ensure(say)
        self.archive = base.ensure(self.packages)
        self.sandbox = Sandbox()
        login = {
            "DOCKER_CONFIG": str(self.sandbox.root / "docker")
        }  # does not use or change the logins of this machine
        self.environment = self.packages.environment | login
        self.socket = self.sandbox.root / "docker.sock"
        self.trusted = self.sandbox.root / "certificates.crt"
        try:
            self.tree = tree.copy(self.sandbox.root / "tree")
            self._uplink()
            self._name_ecr()
            self.daemon = self.start_daemon()
            self.registry = self.start_registry()
            say("a private Docker engine and a registry are up")
        except BaseException:
            self.close()
            raise

    def start_daemon(self) -> Process:
        """Start the dockerd and wait for it."""
        keep = os.environ.get(KEEP)
        return self._daemon("dockerd", Path(keep) if keep else self.sandbox.root / "data", self.socket)

    def second_daemon(self, size: str) -> str:
        """Start another dockerd with its images on a file system of `size`; return its address."""
        room, socket = self.sandbox.root / "room", self.sandbox.root / "second.sock"
        room.mkdir()
        self.sandbox.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", room])
        self._daemon("second", room, socket)
        return f"unix://{socket}"

    def start_registry(self) -> Process:
        """Start the registry and wait for it."""
        return self._registry("registry", REGISTRY, {}, 200)

    def closed_registry(self) -> str:
        """Start a registry that only accepts LOGIN; return its address."""
        (self.sandbox.root / "htpasswd").write_text(f"{LOGIN[0]}:{LOGIN_HASH}\n")
        access = {"htpasswd": {"realm": "team", "path": str(self.sandbox.root / "htpasswd")}}
        self._registry("closed", CLOSED, {"auth": access}, 401)
        return CLOSED

    def start_ecr(self) -> dict[str, str]:
        """Start moto and the registry behind ECR's name; return the variables of their clients."""
        (self.sandbox.root / "ecr.htpasswd").write_text(f"{ECR_LOGIN[0]}:{ECR_HASH}\n")
        access = {"htpasswd": {"realm": "ecr", "path": str(self.sandbox.root / "ecr.htpasswd")}}
        tls = {name: str(self.sandbox.root / f"ecr.{end}") for name, end in _TLS.items()}
        more = {"auth": access, "http": {"addr": "127.0.0.1:443", "tls": tls}}
        self._registry("ecr", ECR, more, 401, "https")
        words = [sys.executable, "-m", "moto.server", "--host", MOTO.split(":")[0], "--port"]
        moto = self.sandbox.start("moto", [*words, MOTO.split(":")[1]])
        self.sandbox.wait("moto", lambda: self.get("/", host=MOTO)[0] > 0, READY_SECONDS, [moto])
        keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), "testing")
        return {"AWS_ENDPOINT_URL": f"http://{MOTO}", "SSL_CERT_FILE": str(self.trusted), **keys}

    def docker(self, *words: str, check: bool = True) -> str:
        """Run docker and return its output. Raises AssertionError if it fails."""
        done = self.run(["docker", *words])
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def yard(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `yard image` inside the network."""
        return self.run([*self._yard(), *words], variables)

    def begin(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start `yard image` inside the network."""
        return subprocess.Popen(
            self.words(*self._yard(), *words),
            env=self.environment | self._own() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, words: Sequence[str], variables: Mapping[str, str] | None = None, seconds: float = 1500
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside the network, with this engine."""
        return subprocess.run(
            self.words(*words),
            env=self.environment | self._own() | dict(variables or {}),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def words(self, *words: str) -> list[str]:
        """Return the words that run a command inside the network, in the copy of the tree."""
        return [*self.sandbox.enter(), "env", "-C", str(self.tree), *words]

    def get(
        self, path: str, method: str = "GET", host: str = REGISTRY, scheme: str = "http", login: str = ""
    ) -> tuple[int, dict[str, str]]:
        """Ask the registry without docker; return status and headers with lower-case names."""
        accept = "application/vnd.docker.distribution.manifest.v2+json"
        command = ["curl", "-s", "-o", "/dev/null", "-D", "-", "-H", f"Accept: {accept}", "--max-time", "5"]
        command += ["-I"] if method == "HEAD" else []
        command += ["--cacert", str(self.trusted)] if scheme == "https" else []
        command += ["--user", login] if login else []
        done = subprocess.run(
            self.words(*command, f"{scheme}://{host}{path}"), capture_output=True, text=True, check=False
        )
        lines = done.stdout.splitlines() or ["HTTP/1.1 0 none"]
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    def base(self) -> str:
        """Return the name of the base image, and import it if it is missing.

        It has this machine's certificates and package index, so it is never shipped.
        """
        if self.docker("image", "ls", "--quiet", base.NAME).strip():
            return base.NAME
        raw = base.NAME.replace(":test", ":raw")
        with subprocess.Popen(["zstd", "-dc", str(self.archive)], stdout=subprocess.PIPE) as unpacked:
            subprocess.run(
                ["docker", "import", "-", raw],
                stdin=unpacked.stdout,
                env=self.environment | self._own(),
                capture_output=True,
                check=True,
            )
        here = self.sandbox.root / "base"
        here.mkdir(exist_ok=True)
        bundle = next((os.environ[name] for name in CERTIFICATES if os.environ.get(name)), None)
        (here / "ca.crt").write_bytes(Path(bundle or "/etc/ssl/certs/ca-certificates.crt").read_bytes())
        index = os.environ.get("PIP_INDEX_URL")
        (here / "pip.conf").write_text("[global]\ntimeout = 120\n" + (f"index-url = {index}\n" if index else ""))
        (here / "Dockerfile").write_text(
            f"FROM {raw}\nCOPY ca.crt /etc/ssl/certs/ca-certificates.crt\nCOPY pip.conf /etc/pip.conf\n"
        )
        self.docker("build", "--quiet", "--tag", base.NAME, str(here))
        return base.NAME

    def base_with_apt(self) -> str:
        """Return the name of a base whose apt uses this machine's mirror, and build it if it is missing."""
        if not self.docker("image", "ls", "--quiet", base.WITH_APT).strip():
            here = self.sandbox.root / "apt"
            here.mkdir()
            options = "[check-valid-until=no check-date=no]"
            (here / "sources.list").write_text(f"deb {options} {base.mirror()} {base.SUITE} main\n")
            (here / "Dockerfile").write_text(f"FROM {self.base()}\nCOPY sources.list /etc/apt/sources.list\n")
            self.docker("build", "--quiet", "--tag", base.WITH_APT, str(here))
        return base.WITH_APT

    def close(self) -> None:
        """End everything, and wait until nothing is left."""
        self.sandbox.close()

    def kill(self, process: Process) -> None:
        """Kill one of the processes, and wait for its end."""
        process.kill(signal.SIGKILL)

    def _yard(self) -> list[str]:
        return [str(Path(sys.executable).with_name("yard")), "image"]

    def _own(self) -> dict[str, str]:
        """Return the variables with this engine, and the modules of the copy."""
        return {"DOCKER_HOST": f"unix://{self.socket}", "PYTHONPATH": str(self.tree)}

    def _daemon(self, name: str, data: Path, socket: Path) -> Process:
        root = self.sandbox.root
        (root / f"{name}.json").write_text("{}")
        words: list[str | Path] = ["dockerd", "--config-file", root / f"{name}.json", "--data-root", data]
        words += ["--exec-root", root / f"{name}-exec", "--pidfile", root / f"{name}.pid", "--dns", DNS]
        words += ["--host", f"unix://{socket}", "--cgroup-parent", f"/{self.sandbox.cgroup}docker"]
        words += ["--containerd", self._containerd(name, data)]
        trust = {"SSL_CERT_FILE": str(self.trusted)}
        process = self.sandbox.start(name, words, self.environment | trust)
        answers = self.environment | {"DOCKER_HOST": f"unix://{socket}"}

        def ready() -> bool:
            done = subprocess.run(["docker", "info"], env=answers, capture_output=True, check=False)
            return done.returncode == 0

        self.sandbox.wait(name, ready, READY_SECONDS, [process])
        return process

    def _containerd(self, name: str, data: Path) -> Path:
        """Return the socket of an engine's containerd. dockerd's own would have 15 s to start."""
        root, address = self.sandbox.root, self.sandbox.root / f"{name}-containerd.sock"
        if any(one.name == f"{name}-containerd" and one.alive() for one in self.sandbox.processes):
            return address
        (root / f"{name}-containerd.toml").write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
        words: list[str | Path] = ["containerd", "--config", root / f"{name}-containerd.toml"]
        words += ["--address", address, "--root", data / "containerd", "--state", root / f"{name}-containerd"]
        process = self.sandbox.start(f"{name}-containerd", words, self.environment)
        self.sandbox.wait(f"{name}-containerd", address.exists, READY_SECONDS, [process])
        return address

    def _registry(
        self, name: str, address: str, more: Mapping[str, object], status: int, scheme: str = "http"
    ) -> Process:
        config = self.sandbox.root / f"{name}.yml"
        files = {"rootdirectory": str(self.sandbox.root / name)}
        storage = {"filesystem": files, "delete": {"enabled": True}}
        config.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": address}, **more}))
        process = self.sandbox.start(name, ["docker-registry", "serve", config], self.environment)

        def ready() -> bool:
            return self.get("/v2/", host=address, scheme=scheme)[0] == status

        self.sandbox.wait(name, ready, READY_SECONDS, [process])
        return process

    def _name_ecr(self) -> None:
        """Make ECR's name lead to this network, with a certificate that is trusted in it."""
        root = self.sandbox.root
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        words += ["-subj", "/CN=ecr", "-addext", f"subjectAltName=DNS:{ECR}"]
        words += ["-keyout", str(root / "ecr.key"), "-out", str(root / "ecr.crt")]
        subprocess.run(words, capture_output=True, check=True)
        system = Path("/etc/ssl/certs/ca-certificates.crt")
        known = system.read_bytes() if system.is_file() else b""
        self.trusted.write_bytes(known + (root / "ecr.crt").read_bytes())
        (root / "hosts").write_text(f"127.0.0.1 localhost {ECR}\n")
        self.sandbox.run(["mount", "--bind", root / "hosts", "/etc/hosts"])

    def _uplink(self) -> None:
        words = [str(self.packages.root / "usr/bin/slirp4netns"), "--configure", "--mtu=1400"]
        words += ["--disable-host-loopback", str(self.sandbox.init.pid), "tap0"]
        log = self.sandbox.root / "log/uplink.log"
        with log.open("wb") as file:
            self._slirp = processes.start(words, self.environment, self.sandbox.root, file, file)
        (self.sandbox.root / "resolv.conf").write_text(f"nameserver {DNS}\n")
        self.sandbox.run(["mount", "--bind", self.sandbox.root / "resolv.conf", "/etc/resolv.conf"])
        route = self.words("ip", "route")

        def ended() -> bool:
            done = subprocess.run(route, capture_output=True, text=True, check=False)
            return "tap0" in done.stdout or self._slirp.poll() is not None

        if not until(ended, READY_SECONDS, 0.1) or self._slirp.poll() is not None:
            raise CannotStart(f"slirp4netns: {log.read_text(errors='replace')[-300:]}")
