"""The answer of training/remote/run_probe.py, which runs in a pod: whoever made its image wrote it."""

from typing import Any

from tools.core.tables import load
from tools.kube import Object

LARGEST_INTEGER, LATEST = 2**53, 2e11  # the latest time that Python knows is 2.5e11 seconds
SHAPE: dict[str, Any] = load("job/snapshot/run_answer.yaml")


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
        named = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        return all(_fits(value.get(name), one) for name, one in named.items())
    if shape == "integer":
        return type(value) is int and abs(value) <= LARGEST_INTEGER
    if shape == "time":
        return type(value) in (int, float) and 0 <= value <= LATEST
    return isinstance(value, str if shape == "text" else bool)
