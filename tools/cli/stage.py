"""Bring data or weights onto a claim, with digests, by a pod on a CPU node.

SOURCE is s3://bucket/prefix, https://host/file-{00..07}, hf://organisation/model[@revision],
hf://datasets/organisation/name[@revision][/pattern], a path of this machine, or claim:path. The
files appear at the place when all of them are there and verified; .staged.json in it lists size and SHA-256
of each. After an interruption, the same command continues. Archives (tar, zip, gz, zst, bz2, xz) are
unpacked, except .jsonl.gz and .json.gz, which the trainer reads.

The place is claim:path, by default trainyard:models/NAME for a model and trainyard:text/NAME for data. With
local: it is below local/ of this machine, for `yard run`.

\b
Examples:
  yard stage hf://meta-llama/Llama-3.1-8B -n team-a
  yard stage "hf://datasets/allenai/c4/en/c4-train.{00000..00007}-of-01024.json.gz" --to trainyard:text/c4
  yard stage s3://bucket/corpus --service-account p5-llama-3-1-8b-train
  yard stage corpus/ --to local:text/corpus

\b
Exit codes: 0 the files are there, 1 refused or failed, 2 bad input, 3 not done in time.
"""

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job.snapshot import lookup
from tools.kube.kubectl import Kubectl
from tools.stage import bring
from tools.stage.request import LOCAL, request

VARIABLES = (
    *("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


@click.command(help=__doc__, short_help="bring data or weights onto a claim")
@click.argument("source")
@click.option("--to", metavar="CLAIM:PATH", help="The place. It must be empty or hold the same.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Only files whose path matches.")
@click.option("--keep-packed", is_flag=True, help="Do not unpack archives.")
@click.option("--replace", is_flag=True, help="Replace what is at the place, once the new files are complete.")
@click.option("--no-sign-request", is_flag=True, help="Read a public bucket without credentials.")
@click.option("--service-account", metavar="NAME", help="The pod's identity, for S3.")
@click.option("--image", metavar="IMAGE", help="Run this image instead of the toolbox.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help=f"Set {', '.join(VARIABLES)} in the pod.")
@_options.cluster
@_options.timeout("How long to follow the pod.")
@_options.as_json
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
        found = bring.on_cluster(here, asked, image, service_account, environment, timeout, output.note)
    if as_json:
        output.data({"place": asked.place, **found})
        return
    files, size = output.count(found["files"], "file"), found["bytes"] / 1e6
    output.line(f"{asked.place}: {files}, {size:,.1f} MB, {found['fetched'] / 1e6:,.1f} MB fetched now")
    output.line(f"  from {found['source']}")
    output.line(f"  digest {found['digest']}")


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or name not in VARIABLES:
        raise UserError(f"--env {name}: not one of the variables for a pod", f"known: {', '.join(VARIABLES)}")
    return name, value
