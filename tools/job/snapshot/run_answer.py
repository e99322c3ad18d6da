"""The answer of tools/job/snapshot/remote_probe.py, which runs in a pod: whoever made its image wrote it."""

from __future__ import annotations

from typing import Any

from tools.kube.manifests import Object

LARGEST_INTEGER, LATEST = 2**53, 2e11  # the latest time that Python knows is 2.5e11 seconds
# The type of each value, which may also be None. {str: ...} stands for any names.
_BEAT = {
    **dict.fromkeys(("rank", "step", "pid", "beats", "count"), int),
    **dict.fromkeys(("time", "longest_s"), float),
    **dict.fromkeys(("host", "phase", "attempt"), str),
}
_FAILURE = {**dict.fromkeys(("rank", "step", "pid"), int), "time": float, "phase": str}
SHAPE: dict[str, Any] = {
    "directory": str,
    "exists": bool,
    "now": float,
    "steps": int,
    "world_size": int,
    "heartbeats": {str: _BEAT},
    "failures": {str: _FAILURE},
    "end": {},
    "report": {},
    "checkpoints": [{"step": int, "time": float, "bytes": int}],
    "quarantined": [str],
    "metrics": [str],
    "memory": {str: int},
}


def checked(answer: Any) -> Object | None:
    """Return the parts of the answer whose values have their types; None for another answer."""
    if not isinstance(answer, dict):
        return None
    known = {name: shape for name, shape in SHAPE.items() if name in answer}
    return {name: answer[name] for name, shape in known.items() if _fits(answer[name], shape)}


def _fits(value: Any, shape: Any) -> bool:
    if value is None:
        return True
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        named = dict.fromkeys(value, shape[str]) if str in shape else shape
        return all(_fits(value.get(name), one) for name, one in named.items())
    if shape is int:
        return type(value) is int and abs(value) <= LARGEST_INTEGER
    if shape is float:
        return type(value) in (int, float) and 0 <= value <= LATEST
    return isinstance(value, shape)
