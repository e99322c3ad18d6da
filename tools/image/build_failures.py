"""Why a build failed: one cause from the engine's output, with its line and a fix."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.core import secret_patterns


@dataclass(frozen=True)
class Cause:
    """Why a build failed. `line` is the line of the output that shows it, `step` the failed instruction."""

    kind: str
    line: str
    remedy: str
    retry: bool = False
    step: str | None = None


@dataclass(frozen=True)
class Pattern:
    """A line that shows a cause."""

    kind: str
    pattern: re.Pattern[str]
    remedy: str
    retry: bool = False


def _pattern(kind: str, pattern: str, remedy: str, retry: bool = False) -> Pattern:
    return Pattern(kind, re.compile(pattern, re.IGNORECASE), remedy, retry)


# The first match is the cause. Errors that always end a build come before those that it may survive: pip
# continues after a broken connection, but never after ResolutionImpossible. Without name resolution pip ends
# in "no matching distribution", so that the network comes before that.
PATTERNS = (
    _pattern(
        "no space", r"no space left on device|\[Errno 28\]|disk quota exceeded|You don't have enough free",
        "docker system df shows what uses the space; docker builder prune and docker image prune free it",
    ),
    _pattern(
        "out of memory",
        r"Killed signal terminated program|fatal error: Killed|Cannot allocate memory|MemoryError"
        r"|exit code: 137|returned a non-zero code: 137|virtual memory exhausted|signal: killed"
        r"|(?:^|\s)Killed$",
        "more memory for the engine, or fewer compilers at once: ARG MAX_JOBS=2",
    ),
    _pattern(
        "not allowed", r"permission denied while trying to connect to the docker (?:daemon|API)",
        "you are not in the group docker: sudo usermod -aG docker $USER, then log in again",
    ),
    _pattern(
        "engine stopped",
        r"unexpected EOF$|Cannot connect to the Docker daemon|error during connect|transport is closing"
        r"|error reading from server: EOF",
        "is the engine running (docker info)? Its log shows why it stopped",
    ),
    _pattern(
        "package not found",
        r"Because (?:there is no version of|only) \S+ (?:is available )?and you require"
        r"|was not found in the package registry and you require|Version '\S+' for '\S+' was not found"
        r"|nothing provides requested|ResolvePackageNotFound",
        "is the name right, and does the version exist for this Python? pip index versions <name>",
    ),
    _pattern(
        "dependency conflict",
        r"ResolutionImpossible|conflicting dependencies|No solution found when resolving"
        r"|incompatible packages|THESE PACKAGES DO NOT MATCH THE HASHES|requires a different Python"
        r"|unmet dependencies|held broken packages|In --require-hashes mode|UnsatisfiableError"
        r"|SolverProblemError|version solving failed|lockfile at \S+ needs to be updated"
        r"|changed significantly since poetry\.lock",
        "pins that match: yard image check names those of torch; make lock resolves all",
    ),
    _pattern(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate signed by unknown authority|SSL certificate problem"
        r"|self-signed certificate|InRelease' is not signed|NO_PUBKEY",
        "the proxy's certificate in the base image, or --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt",
    ),
    _pattern(
        "base not found", r"pull access denied",
        "is the name right? A private image needs docker login. Another base: --build-arg BASE=<image>",
    ),
    _pattern(
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
    _pattern(
        "too many requests", r"toomanyrequests|429 Too Many Requests",
        "docker login, or a mirror of the registry: --build-arg BASE=<your registry>/...",
    ),
    _pattern(
        "not allowed",
        r"no basic auth credentials|authorization failed|unauthorized:|401 Unauthorized|403 Forbidden",
        "docker login <registry>; for ECR: aws ecr get-login-password",
    ),
    _pattern(
        "not allowed",
        r"Permission denied \(publickey|could not read Username|Host key verification failed"
        r"|Authentication failed for|remote: Repository not found",
        "RUN --mount=type=ssh with docker build --ssh default, or a token by --mount=type=secret",
    ),
    _pattern(
        "missing secret", r"failed to solve: secret \S+: not found|secret \S+ not found",
        "--secret id=NAME,src=FILE, with the id of the RUN's --mount=type=secret",
    ),
    _pattern(
        "no BuildKit", r"requires BuildKit|buildx component is missing",
        "DOCKER_BUILDKIT=1, or install buildx: the classic builder has no --mount and no heredocs",
    ),
    _pattern(
        "missing file",
        r"COPY failed: |ADD failed: |failed to (?:compute|calculate) (?:cache key|checksum)|no source files"
        r"|\"/\S+\" not found|forbidden path outside the build context|failed to read dockerfile"
        r"|Could not open requirements file|can't open file '|Unable to find lockfile at",
        "is the file in the context, and not in .dockerignore? yard image check names it",
    ),
    _pattern(
        "base not found",
        r"manifest (?:for \S+ )?(?:unknown|not found)|repository does not exist"
        r"|failed to resolve source metadata|invalid reference format|base name \(.*\) should not be blank"
        r"|failed to (?:create LLB definition|solve): \S+[:@]\S+: not found",
        "is the name right, and does its digest exist? Another base: --build-arg BASE=<image>",
    ),
    _pattern(
        "syntax", r"dockerfile parse error|unknown instruction|Error response from daemon: .*line \d+: ",
        "yard image check names the line",
    ),
    _pattern(
        "architecture", r"exec format error|no match for platform|does not match the specified platform",
        "the base is for another architecture: --platform linux/amd64",
    ),
    _pattern(
        "managed Python", r"externally-managed-environment",
        "install into a virtual environment: python3 -m venv /opt/venv; apt manages the system's Python",
    ),
    _pattern(
        "address not found",
        r"returned error: 404|404 +Not Found|HTTP Error 404|does not have a Release file",
        "is the address right, and does the release exist? With apt: apt-get update in the same RUN",
    ),
    _pattern(
        "package not found",
        r"No matching distribution found|Could not find a version that satisfies|Unable to locate package"
        r"|has no installation candidate|PackagesNotFoundError",
        "is the name right, and does the version exist for this Python? pip index versions <name>",
    ),
    _pattern(
        "missing library",
        r"cannot open shared object file|error while loading shared libraries|cannot find -l\w",
        "install its package before this step: apt-file search <name>; libGL.so.1 is in libgl1",
    ),
    _pattern(
        "compiler",
        r"error: command '[^']*(?:gcc|g\+\+|nvcc|cc|ninja)[^']*' failed|Failed building wheel|nvcc fatal"
        r"|CUDA_HOME environment variable is not set|make sure nvcc has|fatal error: \S+\.h: No such file"
        r"|nvcc: (?:command )?not found|No CMAKE_\w+_COMPILER could be found|ninja: build stopped|\['ninja',"
        r"|can(?:'t| ?not) find Rust compiler|Rust package manager, is not installed",
        "a release with wheels for this Python, or a base with compilers (-devel)",
    ),
    _pattern(
        "missing module",
        r"ModuleNotFoundError: No module named|Unable to pre-compile ops without torch",
        "install it before; if the build of a package imports it: pip install --no-build-isolation",
    ),
    _pattern(
        "permission", r"Permission denied|are you root\?|Read-only file system|Operation not permitted",
        "USER root before this step and the image's own user after it; COPY --chown for files",
    ),
    _pattern(
        "program not found", r": not found$|command not found|executable file not found",
        "is it installed before this step?",
    ),
    _pattern("missing file", r"No such file or directory", "is it created or copied before this step?"),
)  # fmt: skip
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FAILED_STEP = re.compile(r"(?m)^#(\d+) ERROR: ")
STEP = re.compile(r"(?m)^Step (\d+/\d+ : .*)$")
BUILDER = re.compile(
    r"^(?:-+$|>|\s*\d+ \||ERROR: failed to|#\d+ ERROR|The command '|executor failed|Dockerfile)"
)
CODE = re.compile(r"(?:exit code: |returned a non-zero code: )(\d+)")


def cause(output: str) -> Cause:
    """Return the cause of a failed build, from the output of the failed step."""
    text, step = _failing(COLOUR.sub("", output))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for one in PATTERNS:
        found = [line for line in lines if one.pattern.search(line)]
        if found:
            line = min(reversed(found), key=len)  # the one without the builder's prefix
            return Cause(one.kind, secret_patterns.mask(_plain(line)), one.remedy, one.retry, step)
    code, last = CODE.search(output), secret_patterns.mask(_last_words(lines))
    kind = f"a command ended with {code[1]}" if code else "unknown"
    return Cause(kind, last, "the lines above show why; the whole output is in the log", step=step)


def _failing(output: str) -> tuple[str, str | None]:
    """Return the output of the failed step and its instruction; the whole output if no step is known."""
    failed = FAILED_STEP.search(output)
    if failed:
        number = failed[1]
        lines = [line for line in output.splitlines() if line.startswith(f"#{number} ")]
        title = next((line.split(" ", 1)[1] for line in lines if line.split(" ", 1)[1].startswith("[")), None)
        return "\n".join(lines) + output[failed.end() :], title
    steps = list(STEP.finditer(output))
    if steps:
        return output[steps[-1].end() :], steps[-1][1]
    return output, None


def _plain(line: str) -> str:
    """Return a line without BuildKit's step number and time."""
    return re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", line)


def _last_words(lines: list[str]) -> str:
    """Return the last line of the failed command itself, without the builder's lines around it."""
    inner = [_plain(line) for line in lines if not BUILDER.match(line)]
    return (inner or [_plain(line) for line in lines] or ["the builder printed nothing"])[-1]
