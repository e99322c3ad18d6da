"""Why a build failed: one cause out of the engine's output, with its line and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.core import secret_patterns


@dataclass(frozen=True)
class Cause:
    """One cause. `line` is the output's line that says it, `step` the instruction that failed, if known."""

    kind: str
    line: str
    remedy: str
    retry: bool = False
    step: str | None = None


@dataclass(frozen=True)
class Sign:
    """What a cause is known by."""

    kind: str
    pattern: re.Pattern[str]
    remedy: str
    retry: bool = False


def _sign(kind: str, pattern: str, remedy: str, retry: bool = False) -> Sign:
    return Sign(kind, re.compile(pattern, re.IGNORECASE), remedy, retry)


# In the order in which they are believed. What decides comes before what may have been survived: pip goes on
# after a broken connection, but never after ResolutionImpossible; and with no name resolution it ends in "no
# matching distribution", which is then not the cause.
SIGNS = (
    _sign(
        "no space", r"no space left on device|\[Errno 28\]|disk quota exceeded|You don't have enough free",
        "docker system df shows what uses it; docker builder prune and docker image prune give it back",
    ),
    _sign(
        "out of memory",
        r"Killed signal terminated program|fatal error: Killed|Cannot allocate memory|MemoryError"
        r"|exit code: 137|returned a non-zero code: 137|virtual memory exhausted|signal: killed"
        r"|(?:^|\s)Killed$",
        "more memory for the engine, or fewer compilers at a time: ARG MAX_JOBS=2",
    ),
    _sign(
        "not allowed", r"permission denied while trying to connect to the docker (?:daemon|API)",
        "you are not of the group docker: sudo usermod -aG docker $USER, and log in again",
    ),
    _sign(
        "engine stopped",
        r"unexpected EOF$|Cannot connect to the Docker daemon|error during connect|transport is closing"
        r"|error reading from server: EOF",
        "is the engine running? docker info; its log says why it ended",
    ),
    _sign(
        "package not found",
        r"Because (?:there is no version of|only) \S+ (?:is available )?and you require"
        r"|was not found in the package registry and you require|Version '\S+' for '\S+' was not found"
        r"|nothing provides requested|ResolvePackageNotFound",
        "is the name right, and the version there for this Python? pip index versions <name>",
    ),
    _sign(
        "dependency conflict",
        r"ResolutionImpossible|conflicting dependencies|No solution found when resolving"
        r"|incompatible packages|THESE PACKAGES DO NOT MATCH THE HASHES|requires a different Python"
        r"|unmet dependencies|held broken packages|In --require-hashes mode|UnsatisfiableError"
        r"|SolverProblemError|version solving failed|lockfile at \S+ needs to be updated"
        r"|changed significantly since poetry\.lock",
        "pins that go together: yard image check names torch's; make lock resolves all of them",
    ),
    _sign(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate signed by unknown authority|SSL certificate problem"
        r"|self-signed certificate|InRelease' is not signed|NO_PUBKEY",
        "the proxy's certificate in the base image, or --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt",
    ),
    _sign(
        "base not found", r"pull access denied",
        "is the name right? A private one: docker login <registry>. --build-arg BASE=<image> names another",
    ),
    _sign(
        "network",
        r"Temporary failure (?:in name resolution|resolving)|Could not resolve host|Name or service not known"
        r"|Connection (?:timed out|reset by peer|refused)|Network is unreachable|TLS handshake timeout"
        r"|i/o timeout|Read timed out|ReadTimeoutError|no route to host|502 Bad Gateway"
        r"|503 Service Unavailable|504 Gateway|IncompleteRead|lookup \S+ on \S+: "
        r"|request canceled while waiting for connection|network timeout|Connection failed|no such host"
        r"|Operation timed out|Failed to connect to|Could not connect to|client error \(Connect\)"
        r"|RemoteDisconnected|Hash Sum mismatch|invalid status response \d"
        r"|failed to fetch (?:anonymous|oauth) token(?!.*40[13])",
        "does the engine reach the index? docker run --rm <base> getent hosts <host>",
        retry=True,
    ),
    _sign(
        "too many requests", r"toomanyrequests|429 Too Many Requests",
        "docker login, or a mirror of the registry: --build-arg BASE=<your registry>/...",
    ),
    _sign(
        "not allowed",
        r"no basic auth credentials|authorization failed|unauthorized:|401 Unauthorized|403 Forbidden",
        "docker login <registry>; for ECR: aws ecr get-login-password",
    ),
    _sign(
        "not allowed",
        r"Permission denied \(publickey|could not read Username|Host key verification failed"
        r"|Authentication failed for|remote: Repository not found",
        "RUN --mount=type=ssh with docker build --ssh default, or a token by --mount=type=secret",
    ),
    _sign(
        "missing secret", r"failed to solve: secret \S+: not found|secret \S+ not found",
        "--secret id=NAME,src=FILE, with the id of the RUN's --mount=type=secret",
    ),
    _sign(
        "no BuildKit", r"requires BuildKit|buildx component is missing",
        "DOCKER_BUILDKIT=1, or install buildx: the classic builder has no --mount and no heredocs",
    ),
    _sign(
        "missing file",
        r"COPY failed: |ADD failed: |failed to (?:compute|calculate) (?:cache key|checksum)|no source files"
        r"|\"/\S+\" not found|forbidden path outside the build context|failed to read dockerfile"
        r"|Could not open requirements file|can't open file '|Unable to find lockfile at",
        "is it in the context, and not in .dockerignore? yard image check says which",
    ),
    _sign(
        "base not found",
        r"manifest (?:for \S+ )?(?:unknown|not found)|repository does not exist"
        r"|failed to resolve source metadata|invalid reference format|base name \(.*\) should not be blank"
        r"|failed to (?:create LLB definition|solve): \S+[:@]\S+: not found",
        "is the name right, and its digest still there? --build-arg BASE=<image> names another",
    ),
    _sign(
        "syntax", r"dockerfile parse error|unknown instruction|Error response from daemon: .*line \d+: ",
        "yard image check names the line",
    ),
    _sign(
        "architecture", r"exec format error|no match for platform|does not match the specified platform",
        "the base is of another architecture: --platform linux/amd64",
    ),
    _sign(
        "managed Python", r"externally-managed-environment",
        "a virtual environment: python3 -m venv /opt/venv, and its pip; the system's Python is apt's",
    ),
    _sign(
        "address not found",
        r"returned error: 404|404 +Not Found|HTTP Error 404|does not have a Release file",
        "is the address right, and the release still there? apt's: apt-get update in the same RUN",
    ),
    _sign(
        "package not found",
        r"No matching distribution found|Could not find a version that satisfies|Unable to locate package"
        r"|has no installation candidate|PackagesNotFoundError",
        "is the name right, and the version there for this Python? pip index versions <name>",
    ),
    _sign(
        "missing library",
        r"cannot open shared object file|error while loading shared libraries|cannot find -l\w",
        "the package that holds it, before this step: apt-file search <name>; libGL.so.1 is in libgl1",
    ),
    _sign(
        "compiler",
        r"error: command '[^']*(?:gcc|g\+\+|nvcc|cc|ninja)[^']*' failed|Failed building wheel|nvcc fatal"
        r"|CUDA_HOME environment variable is not set|make sure nvcc has|fatal error: \S+\.h: No such file"
        r"|nvcc: (?:command )?not found|No CMAKE_\w+_COMPILER could be found|ninja: build stopped|\['ninja',"
        r"|can(?:'t| ?not) find Rust compiler|Rust package manager, is not installed",
        "a release with wheels for this Python, or a base with compilers (-devel)",
    ),
    _sign(
        "missing module",
        r"ModuleNotFoundError: No module named|Unable to pre-compile ops without torch",
        "install it before; what a package imports while it is built: pip install --no-build-isolation",
    ),
    _sign(
        "permission", r"Permission denied|are you root\?|Read-only file system|Operation not permitted",
        "USER root before it, and the image's own user again after it; COPY --chown for files",
    ),
    _sign(
        "program not found", r": not found$|command not found|executable file not found",
        "is it installed before?",
    ),
    _sign("missing file", r"No such file or directory", "is it made or copied before?"),
)  # fmt: skip
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FAILED_STEP = re.compile(r"(?m)^#(\d+) ERROR: ")
STEP = re.compile(r"(?m)^Step (\d+/\d+ : .*)$")
CODE = re.compile(r"(?:exit code: |returned a non-zero code: )(\d+)")


def cause(output: str) -> Cause:
    """Return the one cause of a failed build, out of the output of the step that failed."""
    text, step = _failing(COLOUR.sub("", output))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sign in SIGNS:
        said = [line for line in lines if sign.pattern.search(line)]
        if said:
            line = min(reversed(said), key=len)  # without what the builder puts before it
            return Cause(sign.kind, secret_patterns.mask(_plain(line)), sign.remedy, sign.retry, step)
    code = CODE.search(output)
    last = _last_words(lines)
    kind = f"a command ended with {code[1]}" if code else "unknown"
    return Cause(
        kind,
        secret_patterns.mask(last),
        "the lines above it say why; the whole output is in the log",
        step=step,
    )


def _failing(output: str) -> tuple[str, str | None]:
    """Return the output of the step that failed and its instruction; all of it where no step is known."""
    failed = FAILED_STEP.search(output)
    if failed:
        number = failed[1]
        own = [line for line in output.splitlines() if line.startswith(f"#{number} ")]
        title = next((line.split(" ", 1)[1] for line in own if line.split(" ", 1)[1].startswith("[")), None)
        return "\n".join(own) + output[failed.end() :], title
    steps = list(STEP.finditer(output))
    if steps:
        return output[steps[-1].end() :], steps[-1][1]
    return output, None


def _plain(line: str) -> str:
    """Return a line without BuildKit's step number and time."""
    return re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", line)


def _last_words(lines: list[str]) -> str:
    """Return the last line of the failing command itself, not what the builder says around it."""
    around = re.compile(
        r"^(?:-+$|>|\s*\d+ \||ERROR: failed to|#\d+ ERROR|The command '|executor failed|Dockerfile)"
    )
    own = [_plain(line) for line in lines if not around.match(line)]
    return (own or [_plain(line) for line in lines] or ["the builder said nothing"])[-1]
