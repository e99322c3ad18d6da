"""Start TensorBoard on the volume of a job's runs and open it on this machine, until Ctrl-C.

It reads all runs on the job's claim, read-only, with the job's image. It has no login, so that nothing but
the port-forward leads to it: 127.0.0.1 here, and a NetworkPolicy there that lets no pod in without a label.
With --expose a proxy stands before it that asks for a password and speaks TLS: port 8443 of its Service, for
an Ingress or a load balancer of yours. It takes two Secrets (base/services/README.md).

\b
Examples:
  yard job tensorboard cpu-llama-tiny-train
  yard job tensorboard --port 7007
  yard job tensorboard --expose --no-forward
  yard job tensorboard --stop

\b
Exit codes: 0 it answered, or was removed; 1 it does not get Ready or does not answer.
"""

from __future__ import annotations

import signal
import sys
import threading

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import submit, tensorboard
from tools.job.snapshot import lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="TensorBoard on the run's volume")
@_options.job
@_options.cluster
@click.option(
    "--port", type=click.IntRange(1, 65535), default=tensorboard.PORT, show_default=True, metavar="N",
    help="The port on this machine.",
)  # fmt: skip
@click.option("--expose", is_flag=True, help="With a proxy before it: a password, and TLS.")
@click.option("--stop", is_flag=True, help="Remove it.")
@click.option("--no-forward", is_flag=True, help="Return once it is Ready.")
@_options.as_json
def command(
    kubectl: Kubectl,
    job: str | None,
    port: int,
    expose: bool,
    stop: bool,
    no_forward: bool,
    as_json: bool,
) -> None:
    here = Kubectl(kubectl.context, submit.namespace_of(kubectl))
    if stop:
        _stop(here, as_json)
        return
    name = lookup.job_name(here, job)
    found = submit.existing(here, name)
    if found is None:
        raise UserError(f"no such job in namespace {here.namespace}: {name}", "yard job list -A")
    if expose:
        tensorboard.require_secrets(here)
    applied = tensorboard.start(here, tensorboard.manifests(found, expose), output.note)
    objects = [{"kind": one.kind, "name": one.name, "uid": one.uid} for one in applied]
    if not as_json:
        for one in applied:
            output.line(f"{here.namespace}/{one.kind}/{one.name} {one.uid}")
    if expose:
        name = f"{tensorboard.NAME}.{here.namespace}.svc:{tensorboard.HTTPS}"
        output.note(f"in the cluster: https://{name}, with a name and a password of tensorboard-login")
    if no_forward:
        words = here.words("port-forward", f"service/{tensorboard.NAME}", f"{port}:{tensorboard.PORT}")
        if as_json:
            output.data({"namespace": here.namespace, "objects": objects, "next": " ".join(words)})
        else:
            output.line(f"next: {' '.join(words)}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and take the port-forward along
    with tensorboard.forwarded(here, port, output.note) as (url, directory):
        if as_json:
            output.data({"namespace": here.namespace, "objects": objects, "url": url, "reads": directory})
        else:
            output.line(f"{url} (reads {directory}); Ctrl-C closes it, --stop removes it")
        threading.Event().wait()


def _stop(kubectl: Kubectl, as_json: bool) -> None:
    gone = tensorboard.stop(kubectl)
    if as_json:
        output.data({"namespace": kubectl.namespace, "removed": gone})
        return
    for one in gone:
        output.line(f"removed: {kubectl.namespace}/{one}")
    if not gone:
        output.line(f"there is no {tensorboard.NAME} in namespace {kubectl.namespace}")
