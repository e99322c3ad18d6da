"""Sign a pushed image by its digest, with cosign."""

import os
import sys
from pathlib import Path

import click

from tools.cli.image._options import pushed
from tools.core import output
from tools.image import evidence, signing
from tools.image.build import load_record


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
    lines = [f"signed {digested}", *(f"attested its {signing.SHOWN[kind]}" for kind in statements)]
    output.answer({"image": digested, "attested": sorted(statements)}, lines, as_json)
