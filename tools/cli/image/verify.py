"""Verify who signed an image, with cosign."""

import click

from tools.cli.image._options import OFFLINE, exit_with, pushed
from tools.core import output
from tools.image import signing


@click.command()
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
