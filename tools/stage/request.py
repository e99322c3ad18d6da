"""What `yard stage` is asked for: a source, and the place on a claim."""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.core import UserError, command_line, repo

LOCAL, CLAIM = "local", "trainyard"
_WEB = (re.compile(r"https?://[^/\s]+/\S*[^/\s]\S*"), "https://host/file-{00..07}")
# How a source begins, its whole form, and an example.
_FORMS = {
    "s3://": (re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?"), "s3://bucket/prefix"),
    "https://": _WEB,
    "http://": _WEB,
    "hf://": (
        re.compile(r"hf://(datasets/)?[\w.-]+/[\w.-]+(@[^/@]+)?(/.+)?"),
        "hf://organisation/model@revision or hf://datasets/organisation/name/pattern",
    ),
}
REMOTE = tuple(_FORMS)
_PATH = re.compile(r"\w[\w.+-]{0,127}(/\w[\w.+-]{0,127}){0,15}")
_PACKED = re.compile(r"(\.(tar|tgz|tzst|txz|zip|gz|zst|bz2|xz|jsonl|ndjson|json|parquet|csv|tsv|txt|hdf5|h5)){1,4}$")
_MODEL = re.compile(r"hf://[\w.-]+/([\w.-]+?)(@[^/]+)?")


@dataclass(frozen=True)
class Request:
    """A source and its place: `path` on the claim `claim`, or below local/ for the claim LOCAL.

    `from_claim` is the claim that holds the source, with `source` as the path on it. `include` are patterns
    for names; `packed` keeps archives; `replace` allows other content at the place to be replaced.
    """

    source: str
    claim: str
    path: str
    from_claim: str | None = None
    include: tuple[str, ...] = ()
    packed: bool = False
    replace: bool = False
    unsigned: bool = False

    @property
    def place(self) -> str:
        return f"{self.claim}:{self.path}"

    @property
    def is_here(self) -> bool:
        """Whether the source is a path of this machine."""
        return self.from_claim is None and not self.source.startswith(REMOTE)

    def options(self) -> list[str]:
        """Return the options of training.stage, but for the directory."""
        flags = {"--keep-packed": self.packed, "--replace": self.replace, "--no-sign-request": self.unsigned}
        given = [name for name, value in flags.items() if value]
        sends = self.is_here and self.claim != LOCAL  # what is sent has been chosen here
        return given + [f"--include={pattern}" for pattern in self.include if not sends]


def request(source: str, to: str | None, **options: object) -> Request:
    """Return the request for a source and the option --to. Raises UserError."""
    from_claim, inside = _claim_of(source)
    if options.get("unsigned") and not source.startswith("s3://"):
        raise UserError(f"--no-sign-request is for S3, not for {source}")
    claim, separator, path = (to or f"{CLAIM}:").partition(":")
    if not separator or not (claim == LOCAL or command_line.is_subdomain(claim)):
        hint = f"for example {CLAIM}:models/NAME, or {LOCAL}: for this machine"
        raise UserError(f"--to {to}: not CLAIM:PATH", hint)
    path = path.strip("/") or _default(inside)
    if not _PATH.fullmatch(path) or ".." in path:
        raise UserError(f"--to {claim}:{path}: not a plain path", "for example text/c4: letters, digits, . _ -")
    if from_claim and claim == LOCAL:
        raise UserError(f"{source} is on a claim, which this machine does not see", "yard job cp copies a run")
    return Request(inside, claim, path, from_claim, **options)  # type: ignore[arg-type]


def _claim_of(source: str) -> tuple[str | None, str]:
    """Return the claim of a source and the path on it; None and the source itself for others."""
    for start, (form, example) in _FORMS.items():
        if source.startswith(start):
            if not form.fullmatch(source):
                raise UserError(f"{source}: not a whole {start} source", f"for example {example}")
            return None, source
    claim, separator, path = source.partition(":")
    if Path(source).exists():
        return None, str(Path(source).resolve())
    if separator and command_line.is_subdomain(claim) and _PATH.fullmatch(path.rstrip("/")):
        return claim, path.rstrip("/")
    known = ", ".join((*REMOTE, "a path", "CLAIM:PATH"))
    hint = repo.did_you_mean(f"{claim}://", REMOTE) if ":/" in source else None
    raise UserError(f"{source}: no such file or directory", hint or f"a source is one of {known}")


def _default(source: str) -> str:
    """Return the place where cells look for such a source: /shared/models/NAME or /shared/text/NAME."""
    model = _MODEL.fullmatch(source)
    name = re.sub(r"@[^/]*", "", source) if source.startswith("hf://") else source
    last = re.split(r"[{*?\[]", name.rstrip("/").rpartition("/")[2])[0]
    stem = last if Path(source).is_dir() else _PACKED.sub("", last)
    plain = re.sub(r"[^\w.+-]", "-", stem).strip("-.") or "data"
    top = "models" if model or (Path(source) / "config.json").is_file() else "text"
    return f"{top}/{plain}"
