"""A real control plane: etcd, API server, controller manager, scheduler, the training operator and kwok.

The flags and the order were found by trying: the controller manager ends when it comes before the API
server's RBAC bootstrap, and the API server holds its port for a
minute when etcd ends first and it is asked politely.
"""

from __future__ import annotations

import base64
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.cluster.api import listens
from tests.cluster.build import Programs
from tests.cluster.kube import Kube, condition
from tests.cluster.pki import Pki
from tests.cluster.sandbox import BRIDGE_ADDRESS, UP_SECONDS, CannotStart, Process, Sandbox
from tools.core import repo

SERVICES = "10.96.0.0/16"
DNS_SERVICE = "10.96.0.10"
OPERATOR_NAMESPACE = "kubeflow"
OPERATOR_PORT = 19443
OPERATOR_SECRET = "training-operator-webhook-cert"
CERTIFICATES = "k8s-webhook-server/serving-certs"  # below a controller's /tmp
TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"  # of a pod; /var/run is /run
# Without cloud, routes and the bootstrap of nodes by tokens, which nothing here does.
CONTROLLERS = "*,-node-route-controller,-cloud-node-lifecycle-controller,-bootstrap-signer-controller"
# By default each holds itself back to 20 to 50 requests a second, for which hundreds of jobs wait minutes.
HASTE = ("--kube-api-qps=400", "--kube-api-burst=800")
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
# C has the same results as the Python loader in a tenth of the time: the operator's CRDs are 4 MB.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class ControlPlane:
    """The processes of a control plane in a sandbox. `kube` talks to it."""

    def __init__(self, sandbox: Sandbox, programs: Programs) -> None:
        self.sandbox, self.programs = sandbox, programs
        self._started = time.monotonic()
        self._server = f"https://{BRIDGE_ADDRESS}:6443"
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        names = [*(f"DNS:{name}" for name in names), "IP:127.0.0.1", "IP:10.96.0.1", f"IP:{BRIDGE_ADDRESS}"]
        self.pki = Pki(sandbox.root / "pki", self._server, names)
        self.kube = Kube(self._kubectl(), self.pki.path("admin.kubeconfig"), self._proxy)

    @property
    def age(self) -> float:
        """Return the seconds since the cluster started."""
        return time.monotonic() - self._started

    def start(self) -> None:
        """Start everything in dependency order. Raises CannotStart."""
        self.start_etcd()
        self.start_api_server()
        self.start_controllers()
        self.start_operator()
        self.start_kwok()

    def start_etcd(self) -> Process:
        """Start etcd. Its data is in the sandbox and is not synced to disk."""
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return self._start(
            "etcd",
            *("--name=default", f"--data-dir={self.sandbox.root / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster=default={peer}", "--log-level=warn"),
        )

    def start_api_server(self) -> Process:
        """Start the API server and wait until it is ready."""
        pki = self.pki
        process = self._start(
            "kube-apiserver",
            *("--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443"),
            *(f"--bind-address={BRIDGE_ADDRESS}", f"--advertise-address={BRIDGE_ADDRESS}"),
            *(f"--tls-cert-file={pki.path('apiserver.crt')}", f"--client-ca-file={pki.path('ca.crt')}"),
            f"--tls-private-key-file={pki.path('apiserver.key')}",
            f"--kubelet-client-certificate={pki.path('kubelet-client.crt')}",
            f"--kubelet-client-key={pki.path('kubelet-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={self._server}",
            f"--service-account-key-file={pki.path('sa.key')}",
            f"--service-account-signing-key-file={pki.path('sa.key')}",
            *(f"--service-cluster-ip-range={SERVICES}", "--authorization-mode=Node,RBAC"),
            *("--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"),
            *("--endpoint-reconciler-type=lease", "--max-requests-inflight=2000"),
        )
        self._wait("the API server", self._is_ready, process)
        return process

    def start_controllers(self) -> None:
        """Start the controller manager and the scheduler. Wait for the first ServiceAccount."""
        pki = self.pki
        manager = self._start(
            "kube-controller-manager",
            *self._identity("admin"),
            *(f"--root-ca-file={pki.path('ca.crt')}", f"--controllers={CONTROLLERS}"),
            f"--service-account-private-key-file={pki.path('sa.key')}",
            *("--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=10257", *HASTE),
            f"--cluster-signing-cert-file={pki.path('ca.crt')}",
            f"--cluster-signing-key-file={pki.path('ca.key')}",
        )
        scheduler = self._start(
            "kube-scheduler",
            *self._identity("scheduler"),
            *("--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=10259", *HASTE),
        )
        self._wait(
            "the default ServiceAccount",
            lambda: self.kube.get("serviceaccount", "default") is not None,
            manager,
            scheduler,
        )

    def start_operator(self) -> None:
        """Apply base/plugins/training-operator and start the operator beside the API server.

        Not applied is its Deployment, for it runs here with the Deployment's ServiceAccount.
        """
        self.kube.apply(self.operator_manifests(), None, "--force-conflicts")
        crd = ("crd", "pytorchjobs.kubeflow.org")
        self._wait("the PyTorchJob's CRD", lambda: bool(condition(self.kube.get(*crd) or {}, "Established")))
        operator = self._run_operator()
        certificate = ("training-operator", OPERATOR_SECRET, OPERATOR_NAMESPACE)
        self._wait("the operator's certificate", lambda: self.put_certificate(*certificate), operator)
        self._wait("the operator's webhook", self._webhook_answers, operator)

    def restart_operator(self) -> None:
        """Kill the operator and start it again. Its certificate exists already."""
        self.process("training-operator").kill()
        operator = self._run_operator()
        self._wait("the operator's webhook", self._webhook_answers, operator)

    def restart_api_server(self) -> None:
        """Kill the API server and start it again on the same etcd."""
        self.process("kube-apiserver").kill()
        self.start_api_server()

    def start_kwok(self) -> None:
        """Start kwok, which plays the kubelet of every node that has its annotation."""
        stages = ["node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease"]
        stages += ["pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete"]
        texts = [(self.programs.kwok_stages / f"{name}.yaml").read_text(encoding="utf-8") for name in stages]
        config = self.sandbox.root / "kwok.yaml"
        # Pods of a Job of Kubernetes end at once. kwok looks at the kind, which Volcano's Job has too.
        text = "\n---\n".join(texts).replace("ownerReferences.[].kind", "ownerReferences.[].apiVersion")
        config.write_text(text.replace("'Job'", "'batch/v1'"), encoding="utf-8")
        kwok = self._start(
            "kwok",
            *(f"--kubeconfig={self.kube.kubeconfig}", f"--config={config}"),
            f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
            # Where no kubelet listens: whoever asks for logs is refused at once.
            *(f"--node-ip={BRIDGE_ADDRESS}", "--node-lease-duration-seconds=40"),
        )
        time.sleep(0.1)
        if not kwok.alive():
            raise CannotStart(f"kwok: {kwok.tail()}")

    def process(self, name: str) -> Process:
        return next(one for one in self.sandbox.processes if one.name == name)

    def _start(self, name: str, *words: str) -> Process:
        return self.sandbox.start(name, [self.programs.path(name), *words])

    def _identity(self, client: str) -> Sequence[str]:
        kubeconfig = self.pki.path(f"{client}.kubeconfig")
        flags = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        return [f"--{flag}={kubeconfig}" for flag in flags]

    def _wait(self, what: str, ready: Any, *needs: Process) -> None:
        self.sandbox.wait(what, ready, UP_SECONDS, needs)

    def _is_ready(self) -> bool:
        return self.kube.call("get", "--raw=/readyz", "--request-timeout=5s").out.strip() == "ok"

    def _kubectl(self) -> Path:
        """Write the `kubectl` that reaches this cluster from outside its network."""
        script = self.sandbox.root / "bin/kubectl"
        command = [*self.sandbox.enter("net"), str(self.programs.path("kubectl"))]
        kubeconfig = shlex.quote(str(self.pki.path("admin.kubeconfig")))
        variable = f'export KUBECONFIG="${{KUBECONFIG:-{kubeconfig}}}"'
        lines = ("#!/bin/sh", variable, f'exec {shlex.join(command)} "$@"')
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        script.chmod(0o755)
        return script

    def _proxy(self) -> Path:
        """Start the proxy through which tests use the API server, and return its socket."""
        path = self.sandbox.root / "api"
        words = ("proxy", f"--kubeconfig={self.pki.path('admin.kubeconfig')}", f"--unix-socket={path}")
        self._wait("kubectl proxy", lambda: listens(path), self._start("kubectl", *words))
        return path

    def operator_manifests(self) -> str:
        """Return our manifests, with the webhook where the operator runs and without the Deployment.

        Upstream's directory, which they name by address and commit, is that of the operator's Go module.
        """
        ours = repo.root() / "base/plugins/training-operator"
        build = yaml.safe_load((ours / "kustomization.yaml").read_text(encoding="utf-8"))
        target = self.sandbox.root / "manifests"
        target.mkdir(exist_ok=True)
        folders = (ours / "namespace", self.programs.operator_manifests / "base")
        build["resources"] = [os.path.relpath(one.resolve(), target.resolve()) for one in folders]
        (target / "kustomization.yaml").write_text(yaml.safe_dump(build), encoding="utf-8")
        text = self.kube.run("kustomize", str(target))
        kept = []
        for item in yaml.load_all(text, Loader=_LOADER):
            if item["kind"] == "Deployment":
                continue
            if item["kind"] == "Service":
                item["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            for webhook in item.get("webhooks") or []:
                webhook["clientConfig"]["service"]["port"] = OPERATOR_PORT
            kept.append(item)
        return str(yaml.dump_all(kept, Dumper=_DUMPER))

    def _run_operator(self) -> Process:
        flags = ["--enable-scheme=pytorchjob", *HASTE]
        flags += [f"--webhook-server-port={OPERATOR_PORT}"]
        flags += ["--metrics-bind-address=127.0.0.1:18090"]
        flags += ["--health-probe-bind-address=127.0.0.1:18091"]
        return self.start_controller("training-operator", "training-operator", OPERATOR_NAMESPACE, *flags)

    def start_controller(self, program: str, account: str, namespace: str, *flags: str) -> Process:
        """Start a controller with its ServiceAccount, where a pod has its token, and with its own /tmp.

        There, the folder of its certificate is fixed.
        """
        home = self.home_of(program)
        (home / CERTIFICATES).mkdir(parents=True, exist_ok=True)
        token = self.kube.run("create", "token", account, "-n", namespace, "--duration=24h")
        self.pki.kubeconfig(home / "kubeconfig", {"token": token.strip()})
        (home / "token").write_text(token, encoding="utf-8")
        script = 'exec 3<"$1"; mount --bind "$2" /tmp; mount -t tmpfs run /run; mkdir -p "$3"; ln -s /tmp/token "$3"'
        script += '; shift 3; exec /proc/self/fd/3 "$@"'
        argv: list[str | Path] = ["unshare", "--mount", "sh", "-c", script, program]
        argv += [self.programs.path(program), home, TOKENS, "--kubeconfig=/tmp/kubeconfig", *flags]
        return self.sandbox.start(program, argv, {**os.environ, "MY_POD_NAMESPACE": namespace})

    def home_of(self, program: str) -> Path:
        """Return the folder that is a controller's /tmp."""
        return self.sandbox.root / f"home-{program}"

    def put_certificate(self, program: str, name: str, namespace: str) -> bool:
        """Do the kubelet's part: put the Secret's certificate into the controller's folder."""
        data = (self.kube.get("secret", name, namespace) or {}).get("data") or {}
        if "tls.crt" not in data:
            return False
        for key in ("ca.crt", "tls.key", "tls.crt"):
            part = self.home_of(program) / CERTIFICATES / f"{key}.part"
            part.write_bytes(base64.b64decode(data[key]))
            part.rename(part.with_suffix(""))
        return True

    def _webhook_answers(self) -> bool:
        """Return whether the operator itself refuses a job without its container."""
        template = {"spec": {"containers": [{"name": "other", "image": "none"}]}}
        job = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "probe", "namespace": "default"},
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}},
        }
        done = self.kube.call("create", "--dry-run=server", "-f", "-", given=yaml.safe_dump(job))
        return "denied the request" in done.err and "failed calling webhook" not in done.err
