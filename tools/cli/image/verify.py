"""Verify who signed an image, with cosign."""

import click

from tools.cli.image._options import exit_code, pushed
from tools.core import output
from tools.image import signing


def command(image: str, key: str, identity: str, issuer: str, offline: bool, as_json: bool) -> int:
    if bool(key) == bool(identity) or bool(identity) != bool(issuer):
        raise click.UsageError("give a --key, or an --identity with its --issuer")
    if offline and not key:
        raise click.UsageError("--offline needs a --key: without one, the public log is the proof")
    verdict = signing.verify(pushed(image)[1], signing.Signer(key, identity, issuer, offline))
    output.verdict(verdict, as_json)
    return exit_code([verdict])
