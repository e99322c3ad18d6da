"""The certificates of a test cluster, made with openssl: one authority, one server, the clients."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.sandbox import Unsupported

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
}


class Pki:
    """A directory of keys, certificates and kubeconfigs for the API server at `server` (https://...)."""

    def __init__(self, directory: Path, server: str, names: Sequence[str]) -> None:
        if shutil.which("openssl") is None:
            raise Unsupported("no openssl on PATH: install openssl")
        self.directory, self.server = directory, server
        directory.mkdir(parents=True)
        subject = ("-subj", "/CN=trainyard-test", "-days", "30")
        self._openssl("req", "-x509", *_KEY, *subject, "-keyout", "ca.key", "-out", "ca.crt")
        self._openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "sa.key")
        self._certificate("apiserver", "/CN=kube-apiserver", names)
        for name, who in CLIENTS.items():
            self.client(name, who)

    def path(self, name: str) -> Path:
        return self.directory / name

    def client(self, name: str, subject: str) -> Path:
        """Create a client certificate and return its kubeconfig."""
        self._certificate(name, subject, ())
        user = {
            "client-certificate-data": self._data(f"{name}.crt"),
            "client-key-data": self._data(f"{name}.key"),
        }
        return self.kubeconfig(self.path(f"{name}.kubeconfig"), user)

    def for_server(self, name: str, host: str) -> dict[str, bytes]:
        """Create a certificate for a server and return it as the files of a TLS Secret."""
        self._certificate(name, f"/CN={host}", (f"DNS:{host}",))
        files = {"ca.crt": "ca.crt", "tls.crt": f"{name}.crt", "tls.key": f"{name}.key"}
        return {key: self.path(file).read_bytes() for key, file in files.items()}

    def kubeconfig(self, path: Path, user: dict[str, str]) -> Path:
        """Write a self-contained kubeconfig. JSON is YAML."""
        cluster = {"server": self.server, "certificate-authority-data": self._data("ca.crt")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "trainyard-test",
            "contexts": [{"name": "trainyard-test", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        }
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return path

    def _certificate(self, name: str, subject: str, names: Sequence[str]) -> None:
        extensions = "extendedKeyUsage=serverAuth,clientAuth\n"
        extensions += f"subjectAltName={','.join(names)}\n" if names else ""
        self.path(f"{name}.ext").write_text(extensions, encoding="utf-8")
        self._openssl("req", *_KEY, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        issuer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", *issuer, "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        )

    def _data(self, name: str) -> str:
        return base64.b64encode(self.path(name).read_bytes()).decode()

    def _openssl(self, *words: str) -> None:
        subprocess.run(
            ["openssl", *words],
            cwd=self.directory,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
