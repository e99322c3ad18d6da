"""Show what applying a cell would change on the current cluster.

The cell is rendered and given to `kubectl diff --server-side`: the API server itself says what the objects
would become, with its defaults and with the fields that others own, so that a cell that is applied already
shows no difference. Nothing is changed. What Flux has applied is asked for as Flux.

\b
Examples:
  yard diff overlays/p5/llama-3-1-8b
  yard diff cpu/llama-tiny -n team-a --context staging
  yard diff cpu/llama-tiny --field-manager kustomize-controller

\b
Exit codes: 0 no difference, 1 differences, 2 it could not be found out.
"""

from __future__ import annotations

import os
import subprocess

import click

from tools import kustomize, output, repo
from tools.errors import UserError

FIELD_MANAGER = "kubectl"  # that of `kubectl apply --server-side`
HINTS = {
    "connection refused": "is the cluster up, and its address in the kubeconfig right?",
    "no such host": "is the cluster's address in the kubeconfig right?",
    "no configuration has been provided": "this machine has no kubeconfig with a current context",
    "current-context is not set": "choose a context: kubectl config use-context NAME",
    "does not exist": "kubectl config get-contexts lists the contexts that there are",
    "no matches for kind": "the training operator's CRD is not installed on this cluster",
    "ensure CRDs are installed": "the training operator's CRD is not installed on this cluster",
    "conflict": "another manager owns these fields; ask as that one: --field-manager kustomize-controller",
    "orbidden": "the user of this context may not do that: kubectl auth can-i patch pytorchjobs",
    "nauthorized": "the credentials of this context have run out",
    'namespaces "': "make the namespace first",
}


@click.command(help=__doc__, short_help="what a cell would change on the cluster")
@click.argument("cell")
@click.option("-n", "--namespace", metavar="NAME", help="The namespace to look in.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option(
    "--field-manager",
    "manager",
    metavar="NAME",
    default=FIELD_MANAGER,
    show_default=True,
    help="Who would apply it; Flux is kustomize-controller.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(cell: str, namespace: str | None, context: str | None, manager: str, as_json: bool) -> None:
    path = repo.cell_path(cell)
    text = kustomize.ensure(repo.root(), output.note).build(path)
    done = _kubectl_diff(text, namespace, context, manager)
    if done.returncode not in (0, 1) or (done.returncode == 1 and not done.stdout.strip()):
        raise _failure(done.stderr)
    differs = done.returncode == 1
    if as_json:
        output.data({"cell": repo.shown(path), "differs": differs, "diff": done.stdout})
    else:
        click.echo(done.stdout, nl=False)
        output.line(f"{repo.shown(path)}: " + ("differs from the cluster" if differs else "no difference"))
    if done.stderr.strip():
        output.note(done.stderr.rstrip())  # the API server's warnings
    if differs:
        raise click.exceptions.Exit(1)


def _kubectl_diff(
    manifests: str, namespace: str | None, context: str | None, manager: str
) -> subprocess.CompletedProcess[str]:
    """Run kubectl; its exit code is 0 for no difference, 1 for differences, more for an error."""
    words = ["kubectl", "diff", "--server-side", f"--field-manager={manager}", "-f", "-"]
    words += [f"--namespace={namespace}"] if namespace else []
    words += [f"--context={context}"] if context else []
    environment = {**os.environ, "KUBECTL_EXTERNAL_DIFF": "diff -u -N"}
    try:
        return subprocess.run(
            words, input=manifests, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        hint = "install kubectl 1.31 or newer (https://kubernetes.io/docs/tasks/tools/)"
        raise UserError("no kubectl on PATH", hint) from None
    except OSError as problem:
        raise UserError(f"kubectl does not run: {problem.strerror}") from problem


def _failure(stderr: str) -> UserError:
    """Return kubectl's last complaint as one error, with what is usually behind it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = (lines or ["kubectl diff failed without a word"])[-1].removeprefix("error: ")
    hint = next((hint for sign, hint in HINTS.items() if sign in stderr), None)
    return UserError(f"kubectl diff: {message}", hint)
