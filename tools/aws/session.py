"""Access to AWS: clients with bounded retries, complete listings, and one sentence for each failure.

boto3 finds credentials, profile, region and endpoint (environment, ~/.aws, instance role, AWS_ENDPOINT_URL),
so that the same configuration works here and in the AWS CLI. boto3 is imported only by the first call, so
that `yard --help` stays fast.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tools.aws.answers import Unreadable, strict, watch
from tools.aws.retry_budget import RetryBudget
from tools.core import UserError, did_you_mean, output, tables

CANNOT_TELL = 3
# Between five attempts, botocore's standard mode waits at most about 15 s together.
ATTEMPTS, CONNECT_SECONDS, READ_SECONDS = 5, 5, 15
POLL_SECONDS = 5
MOST_PAGES = 1000  # of one listing
LONGEST = 400  # characters of a message of AWS

# Action and resource in a message: `... is not authorized to perform: eks:DescribeCluster on resource: A`.
# Resources of IAM are two words: `on resource: role dev because no identity-based policy allows ...`.
ACTION = re.compile(
    r"not authorized to perform:?\s+(?P<action>[\w-]+:\w+)"
    r"(?:\s+on resource:?\s+(?P<resource>(?:(?:role|policy|user|group)\s+)?\S+))?"
)
ADDRESS = re.compile(r"\bhttps?://[^\s\"']{1,2048}")
VARIANTS = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
# Services whose prefix in IAM actions differs from boto3's name.
PREFIXES = {"service-quotas": "servicequotas", "resourcegroupstaggingapi": "tag"}


class AwsError(UserError):
    """A request that AWS refused or did not answer.

    `kind` is credentials, expired, clock, denied, throttled, region, endpoint, unreadable, missing, refused
    or usage.
    """

    def __init__(self, kind: str, message: str, hint: str | None, aws_code: str = "") -> None:
        super().__init__(message, hint, 2 if kind in ("missing", "refused", "usage") else CANNOT_TELL)
        self.kind = kind
        self.aws_code = aws_code
        # Whether all other requests would fail too. A region that AWS refuses may concern one service.
        self.hides_all = kind in ("expired", "clock", "credentials", "usage") or (kind == "region" and not aws_code)
        # CloudFormation answers with a ValidationError.
        self.is_missing = kind == "missing" or "does not exist" in message


class Session:
    """An account and region, from the arguments or the user's AWS configuration."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        import boto3
        import botocore.session
        from botocore.exceptions import BotoCoreError, ProfileNotFound

        self.profile = profile
        try:
            # boto3 reads only AWS_DEFAULT_REGION; the AWS CLI v2 and other SDKs also read AWS_REGION.
            region = region or os.environ.get("AWS_REGION") or None
            self._boto = boto3.Session(region_name=region, profile_name=profile)
        except ProfileNotFound:
            name = profile or os.environ.get("AWS_PROFILE", "")
            hint = did_you_mean(name, botocore.session.Session().available_profiles) or "aws configure list-profiles"
            raise AwsError("credentials", f"AWS configuration: the profile {name} does not exist", hint) from None
        except BotoCoreError as problem:
            raise AwsError("credentials", f"AWS configuration: {problem}", "aws configure list") from None
        self._region: str | None = self._boto.region_name
        self._clients: dict[str, Any] = {}
        self._budget = RetryBudget("AWS", ATTEMPTS)
        self._unreachable: dict[str, AwsError] = {}  # by service, which is not tried again
        self._answered = False

    @property
    def region(self) -> str:
        """The region. Raises AwsError where none is set."""
        if not self._region:
            hint = "use --region NAME, or set AWS_REGION in the environment or in cluster.env"
            raise AwsError("usage", "no AWS region is set", hint)
        return self._region

    @property
    def partition(self) -> str:
        """The partition in the ARNs of the region. Raises AwsError where no region is set."""
        return str(self._boto.get_partition_for_region(self.region))

    def client(self, service: str) -> Any:
        """Return the client of a service. Raises AwsError for a region that does not exist."""
        if service not in self._clients:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError

            config = Config(
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
            )
            try:
                client = self._boto.client(service, region_name=self.region, config=config)
            except (BotoCoreError, ValueError, OSError, EOFError) as problem:
                raise self._error(problem, service, "") from None
            self._budget.watch(client)
            watch(client)
            self._clients[service] = client
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer of `operation`, such as `describe_cluster`. Raises AwsError."""
        client = self.client(service)
        asked = client.meta.method_to_api_mapping[operation]
        with self._asking(service, asked):
            answer = getattr(client, operation)(**parameters)
        return self._strict(answer, service, asked)

    def find(self, service: str, operation: str, **parameters: Any) -> dict[str, Any] | None:
        """Return the answer of `operation`, or None where the resource does not exist. Raises AwsError."""
        try:
            return self.call(service, operation, **parameters)
        except AwsError as problem:
            if not problem.is_missing:
                raise
        return None

    def get(self, service: str, operation: str, key: str, **parameters: Any) -> Any:
        """Return what the answer of `operation` has under `key`, as `find` does."""
        found = self.find(service, operation, **parameters)
        return found[key] if found else None

    def pages(self, service: str, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """Yield the items under `key` in all pages of a listing. Raises AwsError."""
        client = self.client(service)
        if not client.can_paginate(operation):
            yield from self.call(service, operation, **parameters).get(key) or []
            return
        asked = client.meta.method_to_api_mapping[operation]
        pages = iter(client.get_paginator(operation).paginate(**parameters))
        for number in itertools.count():
            if number == MOST_PAGES:
                raise self._unreadable(service, asked, f"the listing has more than {MOST_PAGES:,} pages")
            with self._asking(service, asked):
                page = next(pages, None)
            if page is None:
                return
            yield from self._strict(page, service, asked).get(key) or []

    def ec2(self, key: str, filters: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
        """Yield EC2's resources under `key`, such as `Subnets`, that match filters. Raises AwsError."""
        name = "Instances" if key == "Reservations" else key
        operation = "describe" + re.sub("([A-Z])", r"_\1", name).lower()
        rows = [{"Name": name, "Values": values} for name, values in filters.items()]
        yield from self.pages("ec2", operation, key, Filters=rows)

    def wait(self, service: str, waiter: str, operation: str, seconds: int, **parameters: Any) -> bool:
        """Return whether a waiter, which calls `operation`, succeeded within `seconds`. Raises AwsError."""
        from botocore.exceptions import WaiterError

        often = {"Delay": POLL_SECONDS, "MaxAttempts": seconds // POLL_SECONDS}
        client = self.client(service)
        with self._asking(service, operation):
            try:
                client.get_waiter(waiter).wait(**parameters, WaiterConfig=often)
            except WaiterError:
                return False
        return True

    def _strict(self, answer: dict[str, Any], service: str, operation: str) -> dict[str, Any]:
        """Return an answer that raises AwsError for a key that it lacks."""
        found: dict[str, Any] = strict(answer, functools.partial(self._unreadable, service, operation))
        return found

    def identity(self) -> dict[str, str]:
        """Return account, ARN and user id of the caller. Raises AwsError."""
        answer = self.call("sts", "get_caller_identity")
        return {"account": answer["Account"], "arn": answer["Arn"], "user": answer["UserId"]}

    @contextmanager
    def _asking(self, service: str, operation: str) -> Iterator[None]:
        """Report long waits, and convert the errors of botocore to AwsError."""
        if service in self._unreachable:
            raise self._unreachable[service]
        try:
            with self._budget.during(f"{_action(service, operation)} in {self._region}"):
                yield
        except Exception as problem:  # noqa: BLE001 botocore's parsers raise any kind for a foreign answer
            error = problem if isinstance(problem, AwsError) else self._error(problem, service, operation)
            if error.kind == "endpoint" and not error.aws_code:
                self._unreachable[service] = error
            unanswered = error.kind in ("endpoint", "throttled", "unreadable")
            error.hides_all |= unanswered and not self._answered
            self._answered |= error.kind in ("denied", "missing", "refused")
            raise error from None
        self._answered = True

    def _error(self, problem: Exception, service: str, operation: str) -> AwsError:
        from botocore.exceptions import BotoCoreError, ClientError, PaginationError

        action = _action(service, operation)
        if isinstance(problem, ClientError):
            found = self._refusal(problem.response, action)
            if found.kind != "refused" or found.aws_code.strip("0123456789"):
                return found
            said = problem.response.get("Error", {}).get("Message", "")
            return self._unreadable(service, operation, f"HTTP status {found.aws_code}: {said}")
        if isinstance(problem, Unreadable | PaginationError):
            return self._unreadable(service, operation, str(problem))
        if isinstance(problem, BotoCoreError | OSError | EOFError):
            return self._unreached(problem, service, operation)
        if not operation and isinstance(problem, ValueError):
            return AwsError("usage", f"{action}: {problem}", "AWS_ENDPOINT_URL=http://HOST:PORT")
        said = f"{type(problem).__name__}: {output.short(problem)}"
        return self._unreadable(service, operation, f"it has another form than AWS's answers ({said})")

    def _unreadable(self, service: str, operation: str, reason: str) -> AwsError:
        """Return the error for an answer that is not one of AWS."""
        known = self._clients.get(service)
        host = _host(known.meta.endpoint_url) if known else "AWS"
        message = f"{_action(service, operation)} in {self._region}: the answer of {host} cannot be read"
        hint = "a proxy may have answered: check AWS_ENDPOINT_URL, HTTPS_PROXY and the network"
        return AwsError("unreadable", f"{message}: {output.short(reason, LONGEST)}", hint)

    def _refusal(self, response: dict[str, Any], action: str) -> AwsError:
        error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
        code, status = str(error.get("Code", "")), int(metadata.get("HTTPStatusCode", 0) or 0)
        text = output.short(error.get("Message") or code, LONGEST)
        named = ACTION.search(text)
        resource = (named["resource"] or "").rstrip(".,") if named else ""
        return self._told(
            _first("refusals", code, f"{status} {code}: {text}"),
            code,
            text=text,
            where=f"{action} in {self._region}",
            attempts=output.count(int(metadata.get("RetryAttempts", 0) or 0) + 1, "attempt"),
            right=(named["action"] if named else action) + (f" on {resource}" if resource else ""),
            cause=" (denied explicitly)" if "explicit deny" in text else "",
        )

    def _unreached(self, problem: Exception, service: str, operation: str) -> AwsError:
        from botocore.exceptions import ProxyConnectionError

        classes = " ".join(f"{one.__module__}.{one.__name__}" for one in type(problem).__mro__)
        row = _first("failures", "", classes)
        if row is None or row["kind"] in ("endpoint", "refused"):
            known = self._known_regions()  # a region that botocore does not list may also be newer than botocore
            if known and self._region not in known:
                row = _first("failures", "", "botocore.exceptions.InvalidRegionError")
        if row is None:
            return self._unreadable(service, operation, f"{type(problem).__name__}: {problem}")
        network = "check the name of the region, and any proxy, VPN or firewall"
        asked = [one for one in VARIANTS if os.environ.get(one, "").lower() == "true"]
        if asked and not isinstance(problem, ProxyConnectionError):
            network = f"{asked[0]} is set: does this service have such an endpoint in {self._region}?"
        reason = [str(part) for name in ("strerror", "filename") if (part := getattr(problem, name, None))]
        return self._told(
            row,
            action=_action(service, operation),
            problem=problem,
            reason=": ".join(reason),
            network=network,
            detail=ADDRESS.sub(lambda found: _host(found[0]), str(problem).partition(": (")[0]),
        )

    def _told(self, row: Any, code: str = "", **words: Any) -> AwsError:
        """Return the error of a row of errors.yaml with its words filled in."""
        login = "log in again: aws sso login" + (f" --profile {self.profile}" if self.profile else "")
        if row["kind"] == "region":
            nearest = did_you_mean(self._region or "", self._known_regions())
            words["nearest"] = nearest or "aws ec2 describe-regions lists them"
        words |= {"login": login, "region": self._region}
        hint = row["hint"].format(**words) if "hint" in row else None
        return AwsError(row["kind"], row["message"].format(**words), hint, code)

    def _known_regions(self) -> list[str]:
        partitions = self._boto.get_available_partitions()
        return [name for one in partitions for name in self._boto.get_available_regions("ec2", one)]


def _first(part: str, code: str, text: str) -> Any:
    """Return the first row of a part of errors.yaml that has the code, or whose pattern is in the text."""
    rows = tables.load("aws/errors.yaml")[part]
    return next((one for one in rows if code in one.get("codes", ()) or _said(one, text)), None)


def _said(row: dict[str, Any], text: str) -> bool:
    pattern = row.get("said", row.get("class"))
    return pattern is not None and re.search(pattern, text) is not None


def _host(address: str) -> str:
    """Return the host and port of an address, without user, path and query."""
    return urlsplit(address).netloc.rpartition("@")[2]


def _action(service: str, operation: str) -> str:
    """Return an operation in IAM's spelling, or only the service without an operation."""
    return f"{PREFIXES.get(service, service)}:{operation}" if operation else service
