"""Write overlays/model/NAME for a script in an image of yours, and its cells."""

from tools.core import output
from tools.kube import manifests
from tools.new import component, start_command
from tools.new.script import Script, files_of, from_manifest


def command(
    name: str, image: str | None, words: str | None, nodes: int | None, hardware: tuple[str, ...], file: str | None
) -> None:
    script = from_manifest(manifests.read(file)) if file else Script()
    script.image = image or script.image
    given = start_command.words_of(words) if words is not None else script.command
    entry = {"nodes": nodes or script.nodes}
    script.command = start_command.for_pods(given, entry["nodes"], script.said)
    placed = component.write(component.project(), name, files_of(script), dict.fromkeys(hardware, lambda _: entry))
    output.line(f"written: overlays/model/{name}")
    for line in script.said:
        output.line(f"  {line}")
    for cell in placed:
        output.line(f"  cell overlays/{cell.name}: {output.count(cell.nodes, 'pod')}")
    output.line(f"next: yard wiring overlays/{placed[0].name}")
