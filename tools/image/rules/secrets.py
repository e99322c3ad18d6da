"""The rule on secrets: what is in ARG, ENV, RUN or a copied file stays in the image for whoever pulls it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from tools.core import secret_patterns
from tools.core.verdict import Verdict, bad, good
from tools.image.dockerfile.dockerignore import files
from tools.image.dockerfile.parse import Instruction
from tools.image.rules.rule import Place, Subject, at, rule

# What a command is given in words: only literal values, none that a variable or a file holds.
SPOKEN = {
    "a password for .netrc": re.compile(r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+[^\s$'\"]{3,}"),
    "an authorization header": re.compile(r"(?i)authorization:\s*(?:bearer|basic|token)\s+[^\s$'\"]{8,}"),
    "a password of a command": re.compile(
        r"\bcurl\b[^|;&\n]*\s(?:-u|--user)[ =][\"']?[^\s:$\"']+:[^\s$\"']{3,}"
        r"|\bdocker\s+login\b[^|;&\n]*\s(?:-p|--password)[ =][\"']?[^\s$\"']{3,}"
        r"|\s--password=[\"']?[^\s$\"'<]{3,}"
    ),
    "an AWS secret key": re.compile(r"(?i)aws_secret_access_key\s*(?:=|\s)\s*[\"']?[A-Za-z0-9/+]{20,}"),
}
# A secret's mount ends with its RUN; what is written elsewhere does not.
KEPT = re.compile(r"(?:\bcat\s+/run/secrets/\S+\s*>>?\s*|\bcp\s+(?:-\S+\s+)*/run/secrets/\S+\s+)(\S+)")
ASSIGNED = re.compile(r"(?:^|[\s;&|(])(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s;&|]+)")
FILES = (
    *(
        "*.env",
        ".env",
        ".env.*",
        "*.pem",
        "*.p12",
        "*.pfx",
        "*.key",
        "id_rsa",
        "id_ed25519",
        "id_ecdsa",
        ".netrc",
    ),
    *("service[-_]account*.json", "application_default_credentials.json", "kaggle.json", ".vault-token"),
    *(
        "secret.yaml",
        "secret.yml",
        "secrets.yaml",
        "secrets.yml",
        "secrets.json",
        "secrets.toml",
        "secrets.env",
    ),
    *("token", "token.txt", "*.tfstate", "*.keytab"),
    *(".git-credentials", ".pgpass", ".htpasswd", "credentials.json", "kubeconfig", ".pypirc", ".npmrc"),
)
DIRECTORIES = frozenset({".aws", ".ssh", ".kube", ".docker", ".gnupg", ".huggingface", ".kaggle"})
HARMLESS = (
    "*.pub",
    "*.example",
    "*.sample",
    "*.template",
    "example.env",
    "sample.env",
    "template.env",
    "*.crt.pem",
    "ca*.pem",
    "cert.pem",
)
EMPTY = re.compile(r"^$|^\$|^<|^(?:changeme|none|null|false|true|0|1|unset)$", re.IGNORECASE)
REMEDY = "RUN --mount=type=secret,id=NAME at build time, a Secret of the cluster at run time"


@rule("secrets", "what is in ARG, ENV or a layer is read from the image's history by whoever pulls it")
def secrets(subject: Subject) -> Iterator[Verdict]:
    """Names and values of ARG and ENV, literal tokens anywhere, and files that hold credentials: copied by
    name, or with a directory that .dockerignore does not keep them out of; and tokens in the text of copied
    files, where they are no examples. Values are never printed.
    """
    found = False
    for one in [*_before(subject), *(one for _, one in subject.dockerfile.instructions())]:
        for verdict in _instruction(subject, one):
            found = True
            yield verdict
    if not found:
        yield good(at(subject, subject.dockerfile.stages[0]), "no secret in ARG, ENV, RUN or a copied file")


def _before(subject: Subject) -> list[Instruction]:
    """Return the ARGs before the first FROM, which belong to no stage."""
    first = subject.dockerfile.stages[0].line
    found = []
    for number, line in enumerate(subject.dockerfile.text.splitlines()[: first - 1], 1):
        words = line.split(maxsplit=1)
        if len(words) == 2 and words[0].upper() == "ARG":
            found.append(Instruction("ARG", words[1], words[1], number, number))
    return found


def _instruction(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    hidden = Place(subject.source, one.line, f"{one.name} {secret_patterns.mask(one.raw)}")
    if one.name in ("ARG", "ENV"):
        for name, value in one.pairs:
            if not secret_patterns.is_secret_name(name) or (one.name == "ENV" and EMPTY.match(value)):
                continue
            yield bad(hidden, f"{one.name} {name}: its value stays in the image's history", REMEDY)
            return
    secrets_in = secret_patterns.find("\n".join([one.raw, *one.heredocs]))
    if secrets_in:
        yield bad(hidden, f"{secrets_in[0].kind} stands in the file", f"revoke it, and {REMEDY}")
    elif one.name == "RUN" and (said := _said("\n".join([one.raw, *one.heredocs]))):
        yield bad(Place(subject.source, one.line, one.name), said, REMEDY)
    if one.name in ("COPY", "ADD"):
        yield from _copied(subject, one)


def _said(text: str) -> str | None:
    """Return what secret a command is given in words, or leaves in the layer; None where there is none."""
    kind = next((kind for kind, pattern in SPOKEN.items() if pattern.search(text)), None)
    if kind:
        return f"{kind} stands in the file"
    for name, value in ASSIGNED.findall(text):
        bare = value.strip("\"'")
        if (
            name.isupper()
            and secret_patterns.is_secret_name(name)
            and len(bare) > 3
            and not EMPTY.match(bare)
            and bare[:1] != "`"
        ):
            return f"the value of {name} stands in the file"
    kept = next(
        (path for path in KEPT.findall(text) if not re.search(rf"\brm\b[^;&|]*{re.escape(path)}", text)), None
    )
    return f"a secret is copied from its mount to {kept}, which is in the layer" if kept else None


def _copied(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    sources = [word.strip("/").removeprefix("./") for word in (one.words or one.value.split())[:-1]]
    named = [word for word in sources if _credentials(word)]
    if named:
        yield bad(at(subject, one), f"{named[0]} holds credentials, and is copied into a layer", REMEDY)
        return
    if one.flag("from") is not None:
        return
    sent = _sent(subject, sources)
    for name in sent:
        if _credentials(name):
            remedy = f"{PurePosixPath(name).name} in .dockerignore (**/{PurePosixPath(name).name})"
            yield bad(at(subject, one), f"{name} is copied with its directory", remedy)
            return
    for name in sent:
        if any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in HARMLESS):
            continue
        for leak in secret_patterns.in_file(subject.context / name):
            text = f"{leak.kind} stands in {name}, which {one.name} in line {one.line} puts into a layer"
            remedy = f"revoke it, and {REMEDY}"
            yield bad(Place(name, leak.line, leak.text), text, remedy)


def _sent(subject: Subject, sources: list[str]) -> list[str]:
    """Return the files of the context that a COPY takes: those below its sources, by name or by pattern."""
    every = [name for name, _ in files(subject.context, subject.ignore)]
    found: dict[str, None] = {}
    for source in sources:
        whole = source in ("", ".")
        found |= {name: None for name in every if whole or _below(name, source)}
    return list(found)


def _below(name: str, source: str) -> bool:
    """Say whether a file is what `source` names, or lies in a directory that it names."""
    parts, wanted = name.split("/"), source.split("/")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted))


def _credentials(path: str) -> bool:
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    if any(fnmatchcase(name, pattern) for pattern in HARMLESS):
        return False
    return any(fnmatchcase(name, pattern) for pattern in FILES) or bool(DIRECTORIES & set(parts))
