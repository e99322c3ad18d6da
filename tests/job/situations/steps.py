"""Situations that are data: steps in a family's YAML file. A step calls a method of World or changes objects.

With `pods`, the method is called for each of these pods. `lines` are lines of a log: {index} is the pod's
number, {rank} its first rank with eight ranks in each pod, {peer} the message of a rank that lost its peer.
`torchrun: true` adds torchrun's own lines.

A step `job`, `objects`, `unseen`, `pods` or `nodes` is a JSON merge patch (RFC 7386). It changes each pod or
node, or those in `only`. `70 s ago` is a time before the snapshot. `keep` keeps the first pods or nodes.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.job.corpus import CPU, PEER, TORCHRUN, planted
from tests.job.world import Object, World, ago

AGO = re.compile(r"(\d+) s ago")


def call(
    world: World,
    method: str,
    *,
    pods: list[int] | None = None,
    code: int | None = None,
    lines: str = "",
    torchrun: bool = False,
    **arguments: Any,
) -> None:
    """Call a method of World, once or for each of the pods."""
    if method == "pending":
        world.pending(*pods or (), **arguments)
    elif pods is None:
        getattr(world, method)(**arguments)
    elif method == "event":
        for index in pods:
            world.event("Pod", world.name(index), **arguments)
    else:
        first = () if code is None else (code,)
        last = TORCHRUN if torchrun else ()
        for index in pods:
            text = lines.replace("{index}", str(index)).replace("{rank}", str(8 * index))
            text = text.replace("{peer}", PEER)
            getattr(world, method)(index, *first, *text.splitlines(), *last, **arguments)


def changed(value: Any, patch: Any) -> Any:
    """Return the value after a merge patch."""
    if isinstance(patch, dict):
        kept = value if isinstance(value, dict) else {}
        merged = kept | {key: changed(kept.get(key), part) for key, part in patch.items()}
        return {key: part for key, part in merged.items() if key not in patch or patch[key] is not None}
    if isinstance(patch, list):
        return [changed(None, part) for part in patch]
    time = AGO.fullmatch(patch) if isinstance(patch, str) else None
    return ago(float(time[1])) if time else patch


def take(world: World, step: str, given: Any) -> None:
    """Take one step."""
    if step == "keep":
        for kind, number in given.items():
            setattr(world, kind, getattr(world, kind)[:number])
    elif step in ("job", "objects", "unseen"):
        setattr(world, step, changed(getattr(world, step), given))
    elif step in ("pods", "nodes"):
        patch = {key: part for key, part in given.items() if key != "only"}
        present = getattr(world, step)
        chosen = given.get("only", range(len(present)))
        setattr(world, step, [changed(o, patch) if i in chosen else o for i, o in enumerate(present)])
    elif step == "others":
        world.others += changed([], given)
    else:
        call(world, step, **changed({}, given))


def plant(world: World, steps: list[Object]) -> None:
    for each in steps:
        for step, given in each.items():
            take(world, step, given)


for _family in sorted(Path(__file__).parent.glob("*.yaml")):
    if _family.stem != "messages":
        for _name, _row in YAML(typ="safe", pure=True).load(_family).items():
            planted(_name, _row["cause"], partial(plant, steps=_row["plant"]), _row.get("cell", CPU))
