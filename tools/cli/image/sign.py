"""Sign a pushed image by its digest, with cosign.

IMAGE is REPOSITORY@DIGEST, or the name of an image that was pushed from here. For such an image, its SBOM
and its provenance are attested as well: local/images/<name>.cdx.json and <name>.slsa.json. Both are public
for everyone who can pull the image.

--key names a file of `cosign generate-key-pair`, or a key of a KMS (awskms://...). The password is read from
COSIGN_PASSWORD, or asked for. Without --key, you log in to an identity provider, and Sigstore's public log
shows your address for ever. --offline writes to no log, and needs a key.

\b
Examples:
  yard image sign trainer-cpu --key cosign.key
  yard image sign registry.example.com/team/train@sha256:... --key awskms:///alias/images --offline

\b
Exit codes: 0 signed, 1 not signed, 2 bad input, 3 no cosign, or the registry or the log does not answer.
"""

import os
import sys
from pathlib import Path

import click

from tools.cli.image._options import OFFLINE, pushed
from tools.core import output
from tools.image import evidence, signing
from tools.image.build import load_record


@click.command(help=__doc__, short_help="sign a pushed image by its digest")
@click.argument("image", metavar="IMAGE")
@click.option("--key", default="", metavar="KEY", help="The private key: a file, or the address of a KMS.")
@OFFLINE
@click.option("--json", "as_json", is_flag=True, help="Print what was signed as JSON.")
def command(image: str, key: str, offline: bool, as_json: bool) -> None:
    if offline and not key:
        raise click.UsageError("--offline needs a --key: without one, the public log is the proof")
    name, digested = pushed(image)
    record = load_record(name)
    ours = record is not None and digested.partition("@")[2] in record.digests.values()
    paths = {kind: evidence.place(name, kind) for kind in evidence.KINDS} if ours else {}
    statements = {kind: path for kind, path in paths.items() if path.is_file()}
    variables = {}
    if Path(key).is_file() and "COSIGN_PASSWORD" not in os.environ and sys.stdin.isatty():
        variables["COSIGN_PASSWORD"] = output.ask("Password of the key", hidden=True)
    signing.sign(digested, signing.Signer(key, offline=offline), statements, output.note, variables)
    if as_json:
        output.data({"image": digested, "attested": sorted(statements)})
        return
    output.line(f"signed {digested}")
    for kind in statements:
        output.line(f"attested its {signing.SHOWN[kind]}")
