"""Building blocks of every section: number types without silent conversion, errors that name their key."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class ConfigError(Exception):
    """The configuration cannot be used. The message is one sentence for a person."""

    failure_class = "config"


LARGEST = 2**63 - 1  # of a whole number: products of a model's sizes stay within the range of a float
TRIED = 100_000  # divisors


def divisor_near(number: int, most: int) -> int:
    """Return the largest divisor of `number` up to `most`, or 1 after TRIED candidates."""
    start = min(number, most)
    return next((n for n in range(start, max(0, start - TRIED), -1) if number % n == 0), 1)


Count = Annotated[int, Field(strict=True, gt=0, le=LARGEST)]
Whole = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
Several = Annotated[int, Field(strict=True, ge=2, le=LARGEST)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, ge=0, lt=1)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Inside = Annotated[float, Field(strict=True, gt=0, lt=1)]


def wrong(key: str, message: str) -> PydanticCustomError:
    """Return an error about a dotted key, which may be in another section than the one being checked."""
    return PydanticCustomError("key", "{message}", {"key": key, "message": message})


def with_tuple(value: Any, key: str) -> Any:
    """Turn the YAML list at `key` into the tuple that a frozen section holds."""
    if isinstance(value, dict) and isinstance(value.get(key), list):
        return {**value, key: tuple(value[key])}
    return value


class Section(BaseModel):
    """One mapping of the configuration: no unknown keys, no silent conversion, no change once read.

    The docstring below each key is its description in docs/reference/configuration.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
