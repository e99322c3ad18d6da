"""What a person sees while a job trains on this machine: its phase, its steps, its loss and its speed."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tools.core import Say, output
from training.run import heartbeat, trainer_logs
from training.run.directory import RunDir

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 20  # characters of a curve
FORMS = {
    "loss": "loss {:.3f}",
    "tokens_per_s": "{:,.0f} tokens/s",
    "samples_per_s": "{:,.1f} samples/s",
    "mfu": "MFU {:.1%}",
}


@contextmanager
def shown(run: RunDir, started: float, say: Say) -> Iterator[Say]:
    """Yield what takes the lines of the first pod: steps move a bar where a person looks, other lines are printed."""

    def phase() -> str:
        beat = heartbeat.read(heartbeat.path_of(run.heartbeat, 0))
        return beat.phase if beat is not None and beat.time >= started else "starting"

    with output.activity("starting", look=phase) as now:
        yield _relay(now, say) if output.watched() else say


def _relay(now: output.Activity, say: Say) -> Callable[[str], None]:
    losses: deque[float] = deque(maxlen=WIDTH)

    def take(text: str) -> None:
        found = trainer_logs.read(text)
        values = found.values if found else None
        if not values or values.get("step") is None or values.get("loss") is None:
            say(text)
            return
        losses.append(float(values["loss"]))
        told = [form.format(float(values[key])) for key, form in FORMS.items() if values.get(key) is not None]
        steps = values.get("steps")
        where = f"step {values['step']}" + (f"/{steps}" if steps else "")
        now.at("  ".join([where, sparkline(losses), *told]), values["step"], steps)

    return take


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a line of blocks, the largest as the highest; those that are not finite are gaps."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)
