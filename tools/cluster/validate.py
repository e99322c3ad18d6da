"""Checks whether a cluster has everything that a job needs, and fixes what can be fixed with one change.

Most checks read a Snapshot. The last three ask the cluster: what the caller may do, whether the API server
accepts a job, and whether a policy keeps two pods apart. They are left out for a saved snapshot.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.aws.retry_budget import Waiting
from tools.cluster import component_checks, isolation, node_checks, platform
from tools.cluster.component_checks import FIX, FSX
from tools.cluster.finding import Finding, bad, good, unknown
from tools.cluster.snapshot import CLAIMS, CRD, DAEMONS, DEPLOYMENTS, MUTATING, OPERATOR_WEBHOOK, SLICES, Snapshot
from tools.cluster.spec import Spec
from tools.core import State, UserError, output, repo, tables, wait
from tools.kube import Kubectl, Object
from tools.kube.kubectl import each

NAMESPACE = "base/plugins/namespace"
_TABLES = tables.load("cluster/tables.yaml")
JOB_KINDS: dict[str, Any] = _TABLES["jobs"]
WEBHOOK_SECONDS, WEBHOOK_POLL = 12.0, 3.0
# The API server's messages about webhooks: of admission, in two spellings, and of conversion.
WEBHOOK_DOWN = ("failed calling webhook", "failed to call webhook", "conversion webhook for")

WEBHOOKS = (CRD, OPERATOR_WEBHOOK, MUTATING, DEPLOYMENTS, SLICES)
Check = Callable[[Spec, Snapshot], Finding | None]
# The name of each check, the kinds it reads, and the check.
CHECKS: tuple[tuple[str, tuple[str, ...], Check], ...] = (
    ("nodes", ("nodes",), node_checks.ready),
    ("devices", ("nodes",), node_checks.devices),
    ("room", ("nodes",), node_checks.room),
    ("efa", ("nodes",), node_checks.efa),
    ("device plugins", (DAEMONS, "pods"), component_checks.device_plugins),
    ("operator", WEBHOOKS, component_checks.operator),
    ("controllers", WEBHOOKS, component_checks.controllers),
    ("queue", (CRD,), component_checks.queue),
    ("dns", (SLICES,), component_checks.dns),
    ("fsx", ("csidrivers", "csinodes", "nodes"), component_checks.fsx_driver),
    ("namespace", ("namespaces",), component_checks.namespace),
    ("claim", (CLAIMS,), component_checks.claim),
    ("health agents", ("nodes",), node_checks.health_agents),
    ("hyperpod operator", (CRD, "nodes", DEPLOYMENTS), component_checks.hyperpod_operator),
    ("auto-resume", (), component_checks.auto_resume),
    ("bucket", (), component_checks.bucket),
    ("pods", ("nodes", "pods"), node_checks.pod_capacity),
)


def check(spec: Spec, snapshot: Snapshot) -> list[Finding]:
    """Return the findings of all checks that read a snapshot."""
    found: list[Finding | None] = []
    for name, kinds, run in CHECKS:
        hidden = [snapshot.unseen[kind] for kind in kinds if kind in snapshot.unseen]
        found.append(unknown(name, hidden[0]) if hidden else run(spec, snapshot))
    return [one for one in found if one is not None]


def ask(kubectl: Kubectl, spec: Spec, snapshot: Snapshot) -> list[Finding]:
    """Return the findings of the checks that only the API server can answer, for the kind of jobs that it serves."""
    kind = "TrainJob" if component_checks.serves_only_trainjobs(snapshot) else "PyTorchJob"
    questions: list[Callable[[], Finding]] = [
        lambda: rights(kubectl, spec, kind),
        lambda: admission(kubectl, spec, kind),
        lambda: isolation.probe(kubectl, spec.namespace),
    ]
    return each(lambda question: question(), questions)


def wanted_rights(kind: str) -> list[tuple[str, str]]:
    """Return the permissions, verb and type, that jobs of a kind need."""
    row = JOB_KINDS[kind]
    own = [(verb, name) for name in row["types"] for verb in row["verbs"]]
    return own + [(verb, name) for verb, name in _TABLES["rights"]]


def rights(kubectl: Kubectl, spec: Spec, kind: str) -> Finding:
    """Check by access reviews that the caller has the permissions that jobs need in the team's namespace."""
    needed = wanted_rights(kind)
    items = [_review(spec.namespace, verb, resource) for verb, resource in needed]
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    answer = "{.status.allowed}{'\\n'}"
    words = ("create", "--filename=-", f"--output=jsonpath={answer}")
    with Waiting("the cluster").during("access reviews"):
        done = kubectl.run(*words, stdin=json.dumps(listing))
    allowed = done.stdout.split()
    if done.returncode != 0 or len(allowed) != len(needed):
        return unknown("rights", (done.stderr.strip().splitlines() or ["no answer"])[-1])
    missing = [" ".join(one) for one, said in zip(needed, allowed, strict=True) if said != "true"]
    if missing:
        remedy = "ask an administrator for the Role of base/plugins/namespace/team.yaml"
        if spec.get("CLUSTER_NAME"):
            remedy = f"yard cluster access {spec.title} PRINCIPAL --policy team --namespace {spec.namespace}"
        return bad("rights", f"in {spec.namespace} you may not {', '.join(missing)}", remedy)
    return good("rights", f"in {spec.namespace} you may do all that a job needs ({len(needed)} access reviews)")


def _review(namespace: str, verb: str, resource: str) -> Object:
    """Return the access review of a resource in the spelling of `kubectl auth can-i`."""
    name, _, group = resource.partition(".")
    name, _, part = name.partition("/")
    asked = {"namespace": namespace, "verb": verb, "resource": name, "group": group, "subresource": part}
    spec = {"resourceAttributes": {key: value for key, value in asked.items() if value}}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}


def admission(kubectl: Kubectl, spec: Spec, kind: str) -> Finding:
    """Check by a dry run that the API server accepts a job. Waits for a webhook that is not ready yet."""

    job = tables.filled(JOB_KINDS[kind]["dry run"], {"namespace": spec.namespace})
    title = f"a {job['kind']}"

    def dry_run() -> str | None:
        words = ("create", "--dry-run=server", "--filename=-")
        with Waiting("the cluster").during(f"the dry run of {title}"):
            done = kubectl.run(*words, stdin=json.dumps(job))
        if done.returncode == 0:
            return None
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1]

    reason = _when_ready(dry_run)
    if reason is None:
        return good("admission", f"{title} is accepted (dry run)")
    if "orbidden" in reason:
        return unknown("admission", reason)
    waited = f" for {WEBHOOK_SECONDS:.0f} s" if _is_down(reason) else ""
    summary = f"{title} is rejected{waited}: {reason}"
    return bad("admission", summary, "see the findings `operator`, `controllers` and `namespace`")


def _when_ready(attempt: Callable[[], str | None]) -> str | None:
    """Repeat `attempt` while a webhook is not ready. Return why it failed, or None."""

    def report(waited: float) -> None:
        output.note(f"a webhook is not ready yet ({waited:.0f} of {WEBHOOK_SECONDS:.0f} s)")

    return wait.settled(attempt, lambda reason: not _is_down(reason or ""), WEBHOOK_SECONDS, WEBHOOK_POLL, report)


def _is_down(reason: str) -> bool:
    return any(words in reason for words in WEBHOOK_DOWN)


@dataclass(frozen=True)
class Fix:
    """A change of one object: the arguments of kubectl, and its input."""

    line: str
    words: tuple[str, ...]
    stdin: str | None = None


def fixes(spec: Spec, findings: list[Finding]) -> list[Fix]:
    """Return the changes that would fix failed findings."""
    wanted = {one.name for one in findings if one.state is State.FAIL and one.remedy == FIX}
    found = []
    if "namespace" in wanted:
        files = sorted((repo.root() / NAMESPACE).glob("[!k]*.yaml"))
        text = "---\n".join(path.read_text(encoding="utf-8") for path in files)
        words = ("apply", "--server-side", "--filename=-")
        found.append(Fix(f"create the namespace {spec.namespace}", words, platform.substitute(text, spec.facts)))
    if "fsx" in wanted:
        patch = '{"spec":{"fsGroupPolicy":"File"}}'
        patched = ("patch", "csidriver", FSX, "--type=merge", f"--patch={patch}")
        found.append(Fix(f"set fsGroupPolicy of {FSX} to File", patched))
    return found


def apply(kubectl: Kubectl, fix: Fix) -> str | None:
    """Make a change. Return why it failed, or None. Waits for a webhook that is not ready yet."""

    def change() -> str | None:
        try:
            kubectl.text(*fix.words, stdin=fix.stdin)
        except UserError as problem:
            return problem.message
        return None

    return _when_ready(change)
