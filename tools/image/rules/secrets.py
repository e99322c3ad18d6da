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

# The last words of a secret's name, and those behind which it is only about one: where it is, how long.
NAME = re.compile(
    r"(?:^|_|(?-i:(?<=[a-z])(?=[A-Z])))"
    r"(?:(?:API|ACCESS|SECRET|PRIVATE|AUTH|LICENSE|SSH|WANDB|ENCRYPTION|SIGNING)_?KEY(?:_ID)?"
    r"|(?:HF|GH|GITHUB|GITLAB|ACCESS|AUTH|API|NPM)?TOKEN|(?:[A-Z]{2})?PASSWORD|PASSWD|PASSPHRASE|PASS(?=$)"
    r"|PWD_HASH|MYSQL_PWD|SECRETS?|CREDENTIALS?|APIKEY|PAT)"
    r"(?:$|_(?!FILE|PATH|DIR|NAME|ARN|LENGTH|COUNT|LIMIT|TYPE|UR[LI]|ENDPOINT|TTL|TIMEOUT|EXPIR|SIZE|HEADER|STORE"
    r"|PROVIDER|BACKEND|MANAGER|REGION|VERSION|ALGORITHM|MOUNT|POLICY|COMMAND|CMD|HELPER|ENABLED|REQUIRED))",
    re.IGNORECASE,
)
# Words of a tokenizer and numbers of them, not credentials.
SPECIAL = re.compile(
    r"^(?:\w+_)?(?:PAD|EOS|BOS|UNK|CLS|SEP|MASK|SPECIAL|STOP|START|END|IMAGE|NEXT|FIRST|LAST|PER|NEW|MAX|MIN)_TOKEN(?:_IDS?)?$",
    re.IGNORECASE,
)
# Shapes that are nothing else. Sources: the issuers' documentation of their tokens' prefixes.
VALUES = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22,})"),
    "a GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "a Weights & Biases key": re.compile(r"\bWANDB_API_KEY=[\"']?[0-9a-f]{40}\b"),
    "an OpenAI key": re.compile(r"\bsk-(?:proj-)?[A-Za-z0-9_-]{20,}"),
    "a Weights & Biases key on a command line": re.compile(r"\bwandb\s+login\s+(?:--\S+\s+)*[0-9a-f]{40}\b"),
    "a Google API key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),
    "a Slack token": re.compile(r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}"),
    "an NVIDIA key": re.compile(r"\bnvapi-[A-Za-z0-9_-]{20,}"),
    "a PyPI token": re.compile(r"\bpypi-AgE[A-Za-z0-9_-]{16,}"),
    "an npm token": re.compile(r"\bnpm_[A-Za-z0-9]{36}\b"),
    "a Stripe key": re.compile(r"\b[rs]k_live_[0-9A-Za-z]{16,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|LS0tLS1CRUdJTi[A-Za-z0-9+/]"),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+]*://[^\s/:@$]+:[^\s/:@$]{3,}@"),
}
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


def masked(text: str) -> str:
    """Return `text` with *** for every value that looks like a secret or belongs to a secret's name."""
    for pattern in VALUES.values():
        text = pattern.sub("***", text)
    pair = re.compile(r"([A-Za-z_]\w*)(=|: )(\"[^\"]*\"|'[^']*'|\S+)")
    return pair.sub(lambda match: f"{match[1]}{match[2]}***" if secret_name(match[1]) else match[0], text)


def secret_name(name: str) -> bool:
    """Say whether a variable of this name holds a secret."""
    return bool(NAME.search(name)) and not SPECIAL.match(name)


def secret_value(text: str) -> str | None:
    """Return what kind of secret stands in `text`, or None."""
    return next((kind for kind, pattern in VALUES.items() if pattern.search(text)), None)


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
    hidden = Place(subject.source, one.line, f"{one.name} {masked(one.raw)}")
    if one.name in ("ARG", "ENV"):
        for name, value in one.pairs:
            if not secret_name(name) or (one.name == "ENV" and EMPTY.match(value)):
                continue
            yield bad(hidden, f"{one.name} {name}: its value stays in the image's history", REMEDY)
            return
    kind = secret_value("\n".join([one.raw, *one.heredocs]))
    if kind:
        yield bad(hidden, f"{kind} stands in the file", f"revoke it, and {REMEDY}")
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
            and secret_name(name)
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
        for leak in secret_patterns.of(subject.context / name):
            text = f"{leak.kind} stands in {name}, which {one.name} in line {one.line} puts into a layer"
            remedy = f"revoke it, and {REMEDY}"
            yield bad(Place(name, leak.line, masked(leak.text)), text, remedy)


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
