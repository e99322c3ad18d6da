"""Whether the answer of a server is one of AWS: its form, and the types of its parts.

A proxy's login page, or another implementation of AWS's API, may answer instead. botocore reads a page as an
answer without content, for example as an empty listing, so that the body is looked at before it is parsed.
"""

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tools.core.output import short

START = 2000  # bytes of a body in which its first element is
PAGE = re.compile(rb"\s{0,99}(?:<!--[^>]{0,999}>\s{0,99})?<(?:!doctype html|html|head|body)\b", re.IGNORECASE)
ELEMENT = re.compile(rb"<(?:\w{1,40}:)?(\w{1,80})")
TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    **dict.fromkeys(("integer", "long", "float", "double"), (int, float)),
}


class Unreadable(Exception):
    """An answer that is not one of AWS."""


class Answer(dict[str, Any]):
    """A part of an answer. A missing key is the error that `problem` makes of a reason, and no KeyError."""

    problem: Callable[[str], Exception] = KeyError

    def __missing__(self, key: str) -> Any:
        raise self.problem(f"it lacks {key}")


def watch(client: Any) -> None:
    """Make a client raise Unreadable for an answer that is not one of AWS."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", _check_body)


def _check_body(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    status, body = response_dict["status_code"], response_dict["body"]
    if status >= 500 or not isinstance(body, bytes):
        return  # botocore repeats the request
    service = operation_model.service_model
    if 300 <= status < 400 and service.service_name != "s3":
        target = urlsplit(response_dict["headers"].get("location", "")).hostname
        raise Unreadable(f"HTTP status {status}" + (f", a redirect to {target}" if target else ""))
    if PAGE.match(body[:START]):
        raise Unreadable(f"HTTP status {status} and an HTML page")
    protocol = service.resolved_protocol
    if status >= 300 and protocol in ("ec2", "query") and body.lstrip()[:1] != b"<":
        raise Unreadable(f"HTTP status {status}: {short(body[:START].decode(errors='replace'))}")
    if status < 300 and operation_model.output_shape is not None:
        _check_content(body, protocol, operation_model)


def _check_content(body: bytes, protocol: str, operation: Any) -> None:
    if protocol in ("json", "rest-json"):
        try:
            found = json.loads(body or b"{}")
        except ValueError:
            raise Unreadable("it is not JSON") from None
        if not body and operation.output_shape.members:
            raise Unreadable("it is empty")
        _check_types(found, operation.output_shape)
    elif protocol in ("ec2", "query"):
        first = ELEMENT.search(body[:START])
        if not first or first[1].decode() != f"{operation.name}Response":
            raise Unreadable(f"it is not a {operation.name}Response in XML")


def _check_types(value: Any, shape: Any) -> None:
    """Raise Unreadable if a part of a JSON text has another type than in botocore's model."""
    expected = TYPES.get(shape.type_name)
    if expected and not isinstance(value, expected):
        raise Unreadable(f"{short(repr(value), 40)} is not of the type {shape.type_name} ({shape.name})")
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            part = value.get(member.serialization.get("name", name))
            if part is not None:
                _check_types(part, member)
    elif shape.type_name in ("list", "map"):
        inner = shape.member if shape.type_name == "list" else shape.value
        for part in value if shape.type_name == "list" else value.values():
            _check_types(part, inner)


def strict(value: Any, problem: Callable[[str], Exception]) -> Any:
    """Return an answer whose parts raise `problem` for a key that they lack."""
    if isinstance(value, list):
        return [strict(one, problem) for one in value]
    if not isinstance(value, dict):
        return value
    answer = Answer((key, strict(one, problem)) for key, one in value.items())
    answer.problem = problem
    return answer
