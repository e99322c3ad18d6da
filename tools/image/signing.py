"""Signatures of images, and attestations of what they hold, by cosign (2.6 or newer).

An image is named by its digest, because a signature of a tag would be one of whatever the tag names later.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.core import Say, State, UserError, Verdict, command_line, output
from tools.image.engine import FOREIGN, Engine, understood
from tools.image.evidence import KINDS
from tools.image.registry import DIGEST, split

CANNOT_SEE = 3
UNSIGNED = (10, 12, 13)  # cosign's exit codes: no signature, no matching one, one without a certificate
UNSEEN = re.compile(r"(?i)connection refused|no such host|timeout|UNAUTHORIZED|denied|\bTUF\b|certificate signed by")
SHOWN = {"cyclonedx": "SBOM", "slsaprovenance1": "provenance"}
NO_LOG = "the transparency log was not asked: nothing proves when the image was signed, or that the key was used"


@dataclass(frozen=True)
class Signer:
    """Who signs, or has to have signed: the holder of a key, or an identity that an issuer confirms."""

    key: str = ""
    identity: str = ""
    issuer: str = ""
    offline: bool = False  # without the transparency log

    def for_signing(self) -> list[str]:
        log = ["--use-signing-config=false", "--tlog-upload=false"] if self.offline else []
        return ["--yes", *([f"--key={self.key}"] if self.key else []), *log]

    def for_verifying(self) -> list[str]:
        who = [f"--certificate-identity={self.identity}", f"--certificate-oidc-issuer={self.issuer}"]
        return [*([f"--key={self.key}"] if self.key else who), f"--insecure-ignore-tlog={self.offline}".lower()]

    def __str__(self) -> str:
        if not self.key:
            return f"{self.identity}, confirmed by {self.issuer}"
        file = Path(self.key)
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        return f"the key {self.key}" + (f" (SHA-256 of the file {digest})" if digest else "")


def sign(image: str, signer: Signer, statements: Mapping[str, Path], say: Say, variables: Mapping[str, str]) -> None:
    """Sign an image, and attest the files of `statements`. Raises UserError with cosign's last line."""
    commands = [["sign", *signer.for_signing()]]
    for kind, path in statements.items():
        commands.append(["attest", *signer.for_signing(), f"--type={kind}", f"--predicate={path}"])
    for words in commands:
        code, said = _cosign([*words, _digested(image)], say, variables)
        if code != 0:
            unseen = CANNOT_SEE if _unseen(said) else 1
            raise UserError(f"cosign {words[0]}: {_last(said)}", "--offline signs without a log", unseen)


def verify(image: str, signer: Signer) -> Verdict:
    """Return whether `signer` signed the image. Digest, signer and attestations are the evidence."""
    digest = split(_digested(image))[1]
    code, said = _cosign(["verify", "--output=json", *signer.for_verifying(), image])
    if code not in (0, *UNSIGNED) and _unseen(said):
        return Verdict(State.CANNOT_TELL, f"{image} cannot be verified", [_last(said)], "see --offline in --help")
    if code != 0 or digest not in _signed(said):
        remedy = "do not run it; find out who pushed it"
        return Verdict(State.FAIL, f"{image} is not signed by {signer}", [_last(said)], remedy)
    evidence = [f"digest {digest}", f"signed by {signer}"]
    for kind in KINDS:
        code, _ = _cosign(["verify-attestation", f"--type={kind}", *signer.for_verifying(), image])
        evidence.append(f"{SHOWN[kind]} {'attested by the same signer' if code == 0 else 'not attested'}")
    evidence += [NO_LOG] if signer.offline else []
    return Verdict(State.PASS, f"{image} is signed", evidence)


def _digested(image: str) -> str:
    if not DIGEST.fullmatch(split(image)[1]):
        raise UserError(f"{image}: not <repository>@sha256:<digest>", "a tag can name another image tomorrow")
    return command_line.operand(image, "an image")


def _signed(said: str) -> set[str]:
    """Return the digests of the signatures that cosign found to be good."""
    text = next((line for line in said.splitlines() if line.startswith("[")), "")
    with understood("cosign verify"):
        return {one["critical"]["image"]["docker-manifest-digest"] for one in json.loads(text)}


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("Error")] or said.strip().splitlines()
    return output.short(lines[-1]) if lines else "cosign printed nothing"


def _unseen(said: str) -> bool:
    """Return whether no registry, or something else than one, answered."""
    return bool(UNSEEN.search(_last(said)) or FOREIGN.search(said))


def _cosign(words: list[str], say: Say = lambda _: None, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    if shutil.which("cosign") is None:
        hint = "install cosign 2.6 or newer (https://docs.sigstore.dev/cosign/system_config/installation)"
        raise UserError("no cosign on PATH", hint, CANNOT_SEE)
    return Engine("cosign").stream(words, say, variables)
