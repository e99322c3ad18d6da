"""Bring data or weights onto a claim, with digests, by a pod on a CPU node."""

import click

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job.snapshot import lookup
from tools.kube import Kubectl
from tools.stage import bring
from tools.stage.request import LOCAL, request

VARIABLES = (
    *("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help=f"Set {', '.join(VARIABLES)} in the pod.")
@_options.cluster
def command(
    kubectl: Kubectl,
    source: str,
    to: str | None,
    include: tuple[str, ...],
    keep_packed: bool,
    replace: bool,
    no_sign_request: bool,
    service_account: str | None,
    image: str | None,
    variables: tuple[str, ...],
    timeout: int,
    as_json: bool,
) -> None:
    asked = request(source, to, include=include, packed=keep_packed, replace=replace, unsigned=no_sign_request)
    if asked.claim == LOCAL:
        if service_account or image or variables:
            raise UserError("--service-account, --image and --env are for a pod, not for this machine")
        found = bring.here(asked)
    else:
        environment = dict(_variable(each) for each in variables)
        here = lookup.in_namespace(kubectl)
        with output.activity(f"staging {asked.place}") as now:
            found = bring.on_cluster(here, asked, image, service_account, environment, timeout, now.at)
    files, size = output.count(found["files"], "file"), output.size(found["bytes"])
    line = f"{asked.place}: {files}, {size}, {output.size(found['fetched'])} fetched now"
    lines = [line, f"  from {found['source']}", f"  digest {found['digest']}"]
    output.answer({"place": asked.place, **found}, lines, as_json)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or name not in VARIABLES:
        raise UserError(f"--env {name}: not one of the variables for a pod", f"known: {', '.join(VARIABLES)}")
    return name, value
