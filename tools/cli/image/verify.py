"""Verify who signed an image, with cosign.

IMAGE is REPOSITORY@DIGEST, or the name of an image that was pushed from here. Give the public key, or the
identity that has to have signed with the issuer that confirms it. PASS prints the digest, the signer, and
whether an SBOM and a provenance of the same signer are attested.

--offline is for images that were signed with --offline. It does not ask the transparency log. Nobody then
notices a stolen key, and nothing proves when the image was signed.

\b
Examples:
  yard image verify trainer-cpu --key cosign.pub
  yard image verify registry.example.com/team/train@sha256:... \\
    --identity https://github.com/team/train/.github/workflows/release.yml@refs/heads/main \\
    --issuer https://token.actions.githubusercontent.com

\b
Exit codes: 0 PASS, 1 FAIL, 2 bad input, 3 no cosign, or the registry or the log does not answer.
"""

import click

from tools.cli.image._options import OFFLINE, exit_with, pushed
from tools.core import output
from tools.image import signing


@click.command(help=__doc__, short_help="verify who signed an image")
@click.argument("image", metavar="IMAGE")
@click.option("--key", default="", metavar="KEY", help="The public key: a file, or the address of a KMS.")
@click.option("--identity", default="", metavar="WHO", help="The identity of the signer.")
@click.option("--issuer", default="", metavar="URL", help="The provider that confirms the identity.")
@OFFLINE
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def command(image: str, key: str, identity: str, issuer: str, offline: bool, as_json: bool) -> None:
    if bool(key) == bool(identity) or bool(identity) != bool(issuer):
        raise click.UsageError("give a --key, or an --identity with its --issuer")
    if offline and not key:
        raise click.UsageError("--offline needs a --key: without one, the public log is the proof")
    verdict = signing.verify(pushed(image)[1], signing.Signer(key, identity, issuer, offline))
    output.verdict(verdict, as_json)
    exit_with([verdict])
