"""Failures of AWS as HTTP answers, which botocore parses, retries and raises.

Requests without a planted failure go to moto. Each protocol has its own format of errors (botocore,
parsers.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError

QUERY = "<ErrorResponse><Error><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>"
EC2 = "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors></Response>"
XML = {"ec2": EC2, "iam": QUERY, "sts": QUERY, "cloudformation": QUERY}  # the others speak JSON

Handler = Callable[..., Any]


@dataclass(frozen=True)
class Trouble:
    """An error of AWS. `{action}` in its text becomes IAM's name of the operation."""

    code: str
    status: int
    text: str

    def answer(self, request: Any, service: str, operation: str) -> AWSResponse:
        text = self.text.format(action=action(service, operation))
        form = XML.get(service)
        body = form.format(self.code, text) if form else json.dumps({"message": text})
        headers = {"content-type": "text/xml" if form else "application/json", "x-amzn-errortype": self.code}
        return AWSResponse(request.url, self.status, headers, _Body(body.encode()))


class Unreached:
    """No connection at all."""

    def answer(self, request: Any, service: str, operation: str) -> AWSResponse:
        raise EndpointConnectionError(endpoint_url=request.url)


class _Body(io.BytesIO):
    """A body with the interface of urllib3."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


@dataclass
class Wire:
    """A trouble for all actions that are not allowed, and the requested actions in order."""

    trouble: Trouble | Unreached | None = None
    allowed: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def has_trouble(self, service: str, operation: str) -> bool:
        return self.trouble is not None and action(service, operation) not in self.allowed

    def before(self, handlers: list[Any]) -> list[Any]:
        """Return botocore's handlers with the wire in front of the one that sends, moto's."""
        return [(one[0], self._around(one[1])) if one[0] == "before-send" else one for one in handlers]

    def _around(self, moto: Handler) -> Handler:
        def answer(request: Any, event_name: str, **rest: Any) -> Any:
            _, service, operation = event_name.split(".")
            self.asked.append(action(service, operation))
            if self.trouble and self.has_trouble(service, operation):
                return self.trouble.answer(request, service, operation)
            return moto(event_name=event_name, request=request, **rest)

        return answer


def action(service: str, operation: str) -> str:
    """Return an operation in IAM's spelling."""
    return f"{service.replace('-', '')}:{operation}"
