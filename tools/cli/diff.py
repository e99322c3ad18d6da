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

from tools.cells import kustomize, locate
from tools.core import output, repo
from tools.core.errors import UserError
from tools.kube.kubectl import HINTS, Kubectl, missing

FIELD_MANAGER = "kubectl"  # that of `kubectl apply --server-side`


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
    path = locate.cell_path(cell)
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
    words = Kubectl(context, namespace).words(
        "diff", "--server-side", f"--field-manager={manager}", "-f", "-"
    )
    environment = {**os.environ, "KUBECTL_EXTERNAL_DIFF": "diff -u -N"}
    try:
        return subprocess.run(
            words, input=manifests, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise missing() from None
    except OSError as problem:
        raise UserError(f"kubectl does not run: {problem.strerror}") from problem


def _failure(stderr: str) -> UserError:
    """Return kubectl's last complaint as one error, with what is usually behind it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = (lines or ["kubectl diff failed without a word"])[-1].removeprefix("error: ")
    hint = next((hint for sign, hint in HINTS.items() if sign in stderr), None)
    return UserError(f"kubectl diff: {message}", hint)
