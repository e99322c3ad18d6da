"""Which pod of a job a host name means."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.core.nested import mapping
from tools.workload.pod import Pod
from tools.workload.workload import Workload

OWN_ADDRESSES = ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0")


class NoSuchHost(Exception):
    """A host name that no pod of the job has: the reason, the remedy, and whether it is `certain`."""

    def __init__(self, reason: str, remedy: str, certain: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.certain = reason, remedy, certain


@dataclass(frozen=True)
class Hosts:
    """The names under which the pods of one job can be reached."""

    job: Workload
    pods: Sequence[Pod]

    def pod_of(self, host: str, pod: Pod) -> str:
        """Return the name of the pod that `host` means in `pod`.

        It is the pod itself for a loopback name, a pod with this host name, or the only pod that a Service of
        the same file selects. Raises NoSuchHost for any other host.
        """
        if host in OWN_ADDRESSES or host in (pod.name, pod.full_name, pod.spec.get("hostname")):
            return pod.name
        bare = _without_domain(host, pod.namespace)
        whole = host.rstrip(".")  # a subdomain may be called svc, or as the namespace
        found = next((one for name in (whole, bare) for one in self.pods if name in one.hosts), None)
        if found is not None:
            return found.name
        selected = self._selected(bare, pod.namespace)
        if len(selected) == 1:
            return selected[0].name
        raise self._missing(host, pod, selected)

    def _selected(self, name: str, namespace: str) -> list[Pod]:
        """Return the job's pods that the Service of this name selects."""
        service = self.job.manifests.named("Service", name, namespace) or {}
        selector = mapping(mapping(service.get("spec")).get("selector"))
        return [pod for pod in self.pods if selector and selector.items() <= pod.labels.items()]

    def _missing(self, host: str, pod: Pod, selected: Sequence[Pod]) -> NoSuchHost:
        if selected:
            reason = f"the Service {host} stands for {len(selected)} pods, so they meet in different places"
            return NoSuchHost(f"{pod.name}: {reason}", "name the first pod of the job")
        if self.job.nameless:
            why = self.job.nameless
            reason = f"{why.reason}: the pods cannot find each other by name"
            return NoSuchHost(reason, why.remedy, why.possible is None)
        known = [one.hosts[0] for one in self.pods if one.hosts] or [one.name for one in self.pods]
        if unsure := self._unsure(host, pod, known):
            reason = f"whether {host} leads to a pod of the job depends on {unsure}"
            return NoSuchHost(f"{pod.name}: {reason}", f"name a pod of the job, such as {known[0]}", certain=False)
        full = next((name for name in known if name.startswith(f"{host}.")), "")
        if full:
            return NoSuchHost(f"{pod.name}: {host} is not a name in DNS without its subdomain", f"use {full}")
        names = ", ".join(known[:2]) + (", ..." if len(known) > 2 else "")
        reason = f"the rendezvous host {host} is not one of the job's pods ({names})"
        return NoSuchHost(f"{pod.name}: {reason}", f"name a pod of the job, such as {known[0]}")

    def _unsure(self, host: str, pod: Pod, known: Sequence[str]) -> str:
        """Return what decides whether a host name is one of the job, an empty text if nothing outside of it does."""
        if pod.spec.get("dnsConfig") or pod.spec.get("hostAliases"):
            return "the pod's own dnsConfig or hostAliases"
        named = [str(one["metadata"]["name"]) for one in self.job.manifests.of_kind("Service")]
        spaces = [
            host.removeprefix(f"{name}.").split(".")[0] for name in (*known, *named) if host.startswith(f"{name}.")
        ]
        own = self.job.item["metadata"].get("namespace")
        if spaces and not own:
            return f"the namespace, which the manifest does not set: {spaces[0]}"
        return "the domain of the cluster" if own in spaces else ""


def _without_domain(host: str, namespace: str) -> str:
    """Return a host name without `.<namespace>`, `.svc` and the cluster's domain."""
    bare = host.rstrip(".").removesuffix(".cluster.local").removesuffix(".svc")
    return bare.removesuffix(f".{namespace}")
