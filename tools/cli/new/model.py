"""Write overlays/model/NAME from a published config.json: the architecture, and a recipe for its size."""

from tools.cells import published
from tools.core import output
from tools.new import component, model


def command(name: str, source: str, lora: bool, hardware: str | None) -> None:
    made = model.make(name, published.read(source), lora)
    placed = model.write(component.project(), made, hardware)
    output.line(f"written: overlays/model/{name}")
    for line in (*made.said, *placed):
        output.line(f"  {line}")
