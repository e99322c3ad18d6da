"""The one way to AWS: clients with bounded retries, whole listings, and one sentence for each failure.

Credentials, profile, region and endpoint are found as boto3 finds them (environment, ~/.aws, instance role,
AWS_ENDPOINT_URL), so that what works in the AWS CLI works here. Nothing of boto3 is imported before the first
call: `yard --help` must not pay for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tools.aws.retry_budget import Patience
from tools.core.errors import UserError
from tools.core.repo import nearest

CANNOT_TELL = 3
# Five attempts of botocore's standard mode wait at most about 15 s together.
ATTEMPTS, CONNECT_SECONDS, READ_SECONDS = 5, 5, 15
POLL_SECONDS = 5

EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
# A request whose time is not AWS's: Signature Version 4 allows five minutes, some services fifteen.
SKEWED = {"RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"}
SKEW = re.compile(r"Signature (?:expired|not yet current)|is now (?:earlier|later) than|Request has expired")
INVALID = {
    *("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "InvalidAccessKeyId"),
    *(
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "IncompleteSignature",
        "MissingAuthenticationToken",
    ),
}
DENIED = {
    *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError"),
    *("Client.UnauthorizedOperation", "NotAuthorized", "UnauthorizedException"),
}
THROTTLED = {
    *("Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded", "SlowDown"),
    *("TooManyRequestsException", "RequestThrottled", "RequestThrottledException", "BandwidthLimitExceeded"),
}
OPT_IN = {"OptInRequired", "InvalidRegion", "UnknownRegion", "SubscriptionRequiredException"}
# How a message names what was wanted: `... is not authorized to perform: eks:DescribeCluster on resource: A`.
# IAM's resources are two words: `on resource: role dev because no identity-based policy allows ...`.
WANTED = re.compile(
    r"not authorized to perform:?\s+(?P<action>[\w-]+:\w+)"
    r"(?:\s+on resource:?\s+(?P<resource>(?:(?:role|policy|user|group)\s+)?\S+))?"
)
VARIANTS = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
# The prefixes of IAM actions that are not the name that boto3 gives the service.
PREFIXES = {"service-quotas": "servicequotas", "resourcegroupstaggingapi": "tag"}


class AwsError(UserError):
    """AWS did not do what was asked. `kind` says why, `code` what the process exits with.

    Kinds: credentials, expired, clock, denied, throttled, region, endpoint, missing, refused, usage.
    """

    def __init__(self, kind: str, message: str, hint: str | None, aws_code: str = "") -> None:
        super().__init__(message, hint, 2 if kind in ("missing", "refused", "usage") else CANNOT_TELL)
        self.kind = kind
        self.aws_code = aws_code
        # Nothing else will be seen either; a region that AWS refuses may be one service's.
        self.hides_all = kind in ("expired", "clock", "credentials", "usage") or (
            kind == "region" and not aws_code
        )


class Session:
    """An account and region, as the user's AWS configuration or the arguments name them."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        import boto3
        from botocore.exceptions import BotoCoreError, ProfileNotFound

        self.profile = profile
        try:
            # boto3 itself looks at AWS_DEFAULT_REGION only; the AWS CLI and every other SDK know AWS_REGION.
            region = region or os.environ.get("AWS_REGION") or None
            self._boto = boto3.Session(region_name=region, profile_name=profile)
        except ProfileNotFound:
            raise _no_profile(profile or os.environ.get("AWS_PROFILE", "")) from None
        except BotoCoreError as problem:
            raise AwsError("credentials", f"AWS configuration: {problem}", "aws configure list") from None
        self._region: str | None = self._boto.region_name
        self._clients: dict[str, Any] = {}
        self._patience = Patience("AWS", ATTEMPTS)
        self._unreachable: dict[
            str, AwsError
        ] = {}  # by service: what was not reached is not waited for twice
        self._answered = False

    @property
    def region(self) -> str:
        """Return the region; AwsError where none is set."""
        if not self._region:
            hint = "--region NAME, AWS_REGION in the environment or in the cluster's cluster.env"
            raise AwsError("usage", "no AWS region is set", hint)
        return self._region

    @property
    def partition(self) -> str:
        """Return the partition that ARNs of the region name. Raises AwsError where no region is set."""
        return str(self._boto.get_partition_for_region(self.region))

    def client(self, service: str) -> Any:
        """Return the client of a service, made once. Raises AwsError for a region that does not exist."""
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
            self._patience.watch(client)
            self._clients[service] = client
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer of `operation`, in boto3's spelling (`describe_cluster`). Raises AwsError."""
        client = self.client(service)
        with self._asking(service, client.meta.method_to_api_mapping[operation]):
            answer: dict[str, Any] = getattr(client, operation)(**parameters)
        return answer

    def pages(self, service: str, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
        """Yield the items under `key` of all pages of a listing. Raises AwsError."""
        client = self.client(service)
        if not client.can_paginate(operation):
            yield from self.call(service, operation, **parameters).get(key) or []
            return
        asked = client.meta.method_to_api_mapping[operation]
        pages = iter(client.get_paginator(operation).paginate(**parameters))
        while True:
            with self._asking(service, asked):
                page = next(pages, None)
            if page is None:
                return
            yield from page.get(key) or []

    def wait(self, service: str, waiter: str, operation: str, seconds: int, **parameters: Any) -> bool:
        """Return whether a waiter, which asks by `operation`, saw its end in time. Raises AwsError."""
        from botocore.exceptions import WaiterError

        often = {"Delay": POLL_SECONDS, "MaxAttempts": seconds // POLL_SECONDS}
        client = self.client(service)
        with self._asking(service, operation):
            try:
                client.get_waiter(waiter).wait(**parameters, WaiterConfig=often)
            except WaiterError:
                return False
        return True

    def identity(self) -> dict[str, str]:
        """Return the caller's account and ARN, as STS tells them. Raises AwsError."""
        answer = self.call("sts", "get_caller_identity")
        return {"account": answer["Account"], "arn": answer["Arn"], "user": answer["UserId"]}

    @contextmanager
    def _asking(self, service: str, operation: str) -> Iterator[None]:
        """Show what is waited for, and make one error of whatever botocore raises."""
        from botocore.exceptions import BotoCoreError, ClientError

        if service in self._unreachable:
            raise self._unreachable[service]
        try:
            with self._patience.during(f"{_action(service, operation)} in {self._region}"):
                yield
        except (BotoCoreError, ClientError, OSError, EOFError) as problem:
            error = self._error(problem, service, operation)
            if error.kind == "endpoint" and not error.aws_code:
                self._unreachable[service] = error
            error.hides_all |= error.kind in ("endpoint", "throttled") and not self._answered
            self._answered |= error.kind in ("denied", "missing", "refused")
            raise error from None
        self._answered = True

    def _error(self, problem: Exception, service: str, operation: str) -> AwsError:
        from botocore.exceptions import ClientError

        action = _action(service, operation)
        if isinstance(problem, ClientError):
            return self._refusal(problem.response, action)
        return self._unreached(problem, action)

    def _refusal(self, response: dict[str, Any], action: str) -> AwsError:
        """Name what AWS answered."""
        code = str(response.get("Error", {}).get("Code", ""))
        text = str(response.get("Error", {}).get("Message", "")).strip() or code
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
        where = f"{action} in {self._region}"
        if code in SKEWED or SKEW.search(text):
            message = f"this machine's clock is not AWS's ({where}): {text}"
            return AwsError("clock", message, "set the clock: timedatectl, chronyc tracking", code)
        if code in EXPIRED or "token included in the request is expired" in text:
            return AwsError("expired", f"the AWS credentials have expired ({where})", self._login(), code)
        if code in INVALID:
            # A region that the account has not enabled answers so, too.
            hint = "aws configure list shows which are used; is the region enabled for the account?"
            return AwsError(
                "credentials", f"AWS does not know these credentials ({where}): {text}", hint, code
            )
        if code in DENIED or (status == 403 and "not authorized" in text):
            return self._denied(text, action, code)
        if code in THROTTLED or status == 429:
            tries = int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0) or 0) + 1
            attempts = "1 attempt" if tries == 1 else f"{tries} attempts"
            message = f"AWS throttles {where}: no answer after {attempts}"
            return AwsError("throttled", message, "wait a minute and repeat it", code)
        if code in OPT_IN:
            hint = "another --region, or enable this one for the account"
            return AwsError(
                "region", f"{where}: the account cannot use this region or service: {text}", hint, code
            )
        if "NotFound" in code or code.startswith("NoSuch") or code == "ResourceNotFoundException":
            return AwsError("missing", f"{where}: {text}", f"is it another region than {self._region}?", code)
        if status >= 500:
            return AwsError("endpoint", f"{where}: AWS failed: {text}", "repeat it later", code)
        return AwsError("refused", f"{where}: {text}", None, code)

    def _denied(self, text: str, action: str, code: str) -> AwsError:
        wanted = WANTED.search(text)
        named = wanted["action"] if wanted else action
        resource = (wanted["resource"] or "").rstrip(".,") if wanted else ""
        on = f" on {resource}" if resource else ""
        cause = " (an explicit deny forbids it)" if "explicit deny" in text else ""
        hint = f"ask for a policy that allows {named}{on}"
        return AwsError("denied", f"missing permission: {named}{on} in {self._region}{cause}", hint, code)

    def _unreached(self, problem: Exception, action: str) -> AwsError:
        """Name what kept the question from being asked."""
        from botocore import exceptions

        name = type(problem).__name__
        if isinstance(problem, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            hint = "aws sso login, aws configure, or AWS_PROFILE; in a pod: Pod Identity"
            half = f": {problem}" if isinstance(problem, exceptions.PartialCredentialsError) else ""
            return AwsError("credentials", f"no AWS credentials were found ({action}){half}", hint)
        if "SSO" in name or "TokenRetrieval" in name or "LoginRefresh" in name:
            return AwsError("expired", f"the AWS login has expired ({action}): {problem}", self._login())
        if isinstance(problem, EOFError):
            message = f"the profile asks for an MFA code, and nobody is there to type it ({action})"
            return AwsError("credentials", message, "run it in a terminal, or get a session token")
        if isinstance(problem, OSError) and not isinstance(problem, exceptions.BotoCoreError):
            where = f": {problem.filename}" if problem.filename else ""
            message = f"the AWS credentials cannot be had ({action}): {problem.strerror}{where}"
            return AwsError("credentials", message, "credential_process in ~/.aws/config names a program")
        if isinstance(problem, _configuration_errors()):
            return AwsError("credentials", f"AWS configuration: {problem}", "aws configure list")
        if isinstance(problem, ValueError) and "endpoint" in str(problem):
            return AwsError("usage", f"{action}: {problem}", "AWS_ENDPOINT_URL=http://HOST:PORT")
        if isinstance(problem, exceptions.CredentialRetrievalError | exceptions.MetadataRetrievalError):
            return AwsError(
                "credentials", f"the AWS credentials cannot be had ({action}): {problem}", self._login()
            )
        if isinstance(problem, exceptions.InvalidRegionError) or self._is_unknown_region():
            return AwsError("region", f"no such AWS region: {self._region}", self._nearest_region())
        if isinstance(problem, exceptions.HTTPClientError | exceptions.ConnectionError):
            hint = "is the region's name right, and does a proxy, VPN or firewall stand in the way?"
            asked = [one for one in VARIANTS if os.environ.get(one, "").lower() == "true"]
            if asked and not isinstance(problem, exceptions.ProxyConnectionError):
                hint = f"{asked[0]} is set: has {self._region} such an endpoint of this service?"
            detail = str(problem).partition(": (")[0]
            return AwsError(
                "endpoint", f"AWS cannot be reached for {action} in {self._region}: {detail}", hint
            )
        return AwsError("refused", f"{action}: {problem}", None)

    def _is_unknown_region(self) -> bool:
        """Say whether botocore's own list lacks the region; a newer one than it is unknown too."""
        known = self._known_regions()
        return bool(known) and self._region not in known

    def _known_regions(self) -> list[str]:
        partitions = self._boto.get_available_partitions()
        return [name for one in partitions for name in self._boto.get_available_regions("ec2", one)]

    def _nearest_region(self) -> str:
        match = nearest(self._region or "", self._known_regions())
        return f"did you mean {match}?" if match else "aws ec2 describe-regions lists them"

    def _login(self) -> str:
        return "log in again: aws sso login" + (f" --profile {self.profile}" if self.profile else "")


def _no_profile(name: str) -> AwsError:
    """Return that there is no such profile, with the nearest one."""
    import botocore.session

    match = nearest(name, botocore.session.Session().available_profiles)
    hint = f"did you mean {match}?" if match else "aws configure list-profiles"
    return AwsError("credentials", f"AWS configuration: there is no profile {name}", hint)


def _configuration_errors() -> tuple[type[Exception], ...]:
    """Return what botocore raises where profiles contradict one another, or name what is not there."""
    from botocore import exceptions

    return (
        exceptions.InvalidConfigError,  # also InfiniteLoopConfigError
        exceptions.UnknownCredentialError,
        exceptions.ConfigParseError,
        exceptions.ConfigNotFound,
        exceptions.ProfileNotFound,
    )


def _action(service: str, operation: str) -> str:
    """Return an operation as IAM names it; the service alone where there is none yet."""
    return f"{PREFIXES.get(service, service)}:{operation}" if operation else service
