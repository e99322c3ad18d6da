"""Reading overlays/matrix.yaml: which cells exist, and on which machines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from tools.core.errors import UserError
from tools.core.repo import did_you_mean
from tools.facts.instances import Instance, instance
from tools.kube.manifests import LARGEST
from training import config
from training.config import bounds
from training.run.files import read_bounded

MATRIX = "overlays/matrix.yaml"
SECTIONS = tuple(section for section, owner in config.OWNER.items() if owner == "cell")
KEYS = ("nodes", "instance", *SECTIONS)
INSTANCE_ANNOTATION = "trainyard/instance"  # of a hardware Component: the size that its cells have by default
JOB = "train"  # the PyTorchJob's name in base/pytorchjob
LONGEST_SUFFIX = "-worker-999"  # of a pod and of its Service
LONGEST_NAME = 63  # of a Service: DNS-1035


@dataclass(frozen=True)
class Cell:
    """One pair of hardware and model."""

    hardware: str
    model: str
    nodes: int  # worker pods
    instance: Instance | None  # the machine that a pod takes whole; None: any node with room
    sections: Mapping[str, Any]  # the cell's own part of the trainer's configuration
    line: int  # in the matrix
    source: tuple[str, str]  # the matrix's name, and the sections' text with its line numbers

    @property
    def name(self) -> str:
        """`<hardware>/<model>`, the leaf's directory below overlays/."""
        return f"{self.hardware}/{self.model}"


@dataclass(frozen=True)
class Matrix:
    """All cells in the order of their names, all models, and the default machine of each hardware."""

    cells: list[Cell]
    models: list[str]
    machines: Mapping[str, Instance | None]


def load(root: Path) -> list[Cell]:
    """Return the cells of the checkout `root`; raises UserError as `read` does."""
    return read(root).cells


def read(root: Path) -> Matrix:
    """Read and check the matrix of the checkout `root`.

    Raises UserError with file, line and key: invalid YAML, an unknown hardware, model, key or instance type,
    a name that cannot be a Service's, or nodes that are not a number.
    """
    text = text_of(root / MATRIX, root)
    entries = _entries(text)
    models = _components(root, "model")
    machines = {name: _default_machine(root, name) for name in _components(root, "hardware")}
    cells = []
    for hardware, line, row in _rows(entries, "cells", list(machines), "hardware"):
        for model, line_of_model, entry in _rows(row, f"cells.{hardware}", models, "model", line):
            cells.append(_Entry(hardware, model, line_of_model, entry, text, machines[hardware]).cell())
    return Matrix(sorted(cells, key=lambda cell: cell.name), models, machines)


@dataclass(frozen=True)
class _Entry:
    """One pair's mapping in the matrix, and its place in the file."""

    hardware: str
    model: str
    line: int
    entry: CommentedMap
    text: str
    machine: Instance | None  # the hardware's default

    @property
    def where(self) -> str:
        return f"cells.{self.hardware}.{self.model}"

    def at(self, key: str | None = None) -> str:
        """Return `file:line: dotted key` of the pair, or of one of its keys."""
        line = _line(self.entry, key) if key in self.entry else self.line
        return f"{MATRIX}:{line}: {self.where}"

    def cell(self) -> Cell:
        self._check_keys()
        self._check_name()
        sections = {key: _plain(self.entry[key]) for key in SECTIONS if key in self.entry}
        source = (MATRIX, _in_place(self.entry, sections, self.line, self.text))
        machine = self._machine()
        return Cell(self.hardware, self.model, self._nodes(), machine, sections, self.line, source)

    def _check_keys(self) -> None:
        for key in self.entry:
            if key in KEYS:
                continue
            owner = config.OWNER.get(str(key))
            if owner is not None:
                raise UserError(f"{self.at(key)}: {key} belongs in {owner}.yaml; each key has one owner")
            raise UserError(
                f"{self.at(key)}: unknown key {key}",
                did_you_mean(str(key), KEYS) or f"known here: {', '.join(KEYS)}",
            )

    def _nodes(self) -> int:
        nodes = self.entry.get("nodes")
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= 1000:
            said = f"is {nodes!r}" if "nodes" in self.entry else "is missing"
            raise UserError(f"{self.at('nodes')}.nodes {said}: a number of pods from 1 to 1000 is needed")
        return nodes

    def _machine(self) -> Instance | None:
        """Return the cell's own machine or its hardware's. Both must have the same kind of device."""
        if "instance" not in self.entry:
            return self.machine
        where = f"{self.at('instance')}.instance"
        try:
            own = instance(str(self.entry["instance"]))
        except UserError as problem:
            raise UserError(f"{where}: {problem.message}", problem.hint) from problem
        device = self.machine.device_resource if self.machine else None
        if own.device_resource != device:
            has, needs = own.device_resource or "no accelerator", device or "none"
            raise UserError(
                f"{where}: {own.name} has {has}, and the trainer of {self.hardware} needs {needs}",
                "that machine is another hardware: write a Component for it",
            )
        return own

    def _check_name(self) -> None:
        """Refuse a name that would fail only on the cluster, when its Services are created."""
        name = f"{self.hardware}-{self.model}"
        if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
            raise UserError(
                f"{self.at()}: {name} cannot be a Service's name (DNS-1035)",
                "lower-case letters, digits and dashes, a letter first: llama-3-1-8b",
            )
        longest = f"{name}-{JOB}{LONGEST_SUFFIX}"
        if len(longest) > LONGEST_NAME:
            room = LONGEST_NAME - len(f"-{JOB}{LONGEST_SUFFIX}")
            raise UserError(
                f"{self.at()}: {longest} has {len(longest)} characters; a Service's name has at most "
                f"{LONGEST_NAME}",
                f"<hardware>-<model> may have {room} characters",
            )


def text_of(path: Path, root: Path) -> str:
    """Return a file's text. Raises UserError with its path below `root` when it cannot be read."""
    try:
        text = read_bounded(path, LARGEST, follow=True).decode()
        bounds.check(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        return text
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror or str(problem) if isinstance(problem, OSError) else "not UTF-8"
        raise UserError(f"{path.relative_to(root)}: {reason}") from problem
    except bounds.UnboundedError as problem:
        raise UserError(f"{path.relative_to(root)}:{problem.line}: {problem}") from None
    except yaml.YAMLError:
        return text  # the caller's reader says what is wrong


def _default_machine(root: Path, hardware: str) -> Instance | None:
    """Return the instance type that a hardware Component is annotated with, or None."""
    path = root / "overlays/hardware" / hardware / "kustomization.yaml"
    where = path.relative_to(root)
    try:
        document = YAML(typ="safe", pure=True).load(text_of(path, root))
    except YAMLError as problem:
        raise UserError(f"{where}: not valid YAML: {str(problem).splitlines()[0]}") from problem
    metadata = document.get("metadata") if isinstance(document, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict) or INSTANCE_ANNOTATION not in annotations:
        return None
    try:
        return instance(str(annotations[INSTANCE_ANNOTATION]))
    except UserError as problem:
        raise UserError(f"{where}: {INSTANCE_ANNOTATION}: {problem.message}", problem.hint) from problem


def _entries(text: str) -> CommentedMap:
    try:
        document = YAML(typ="rt").load(text)
    except YAMLError as problem:
        raise UserError(_yaml_message(problem)) from problem
    if not isinstance(document, CommentedMap) or not isinstance(document.get("cells"), CommentedMap):
        raise UserError(f"{MATRIX}: a mapping `cells:` is needed")
    for key in document:
        if key != "cells":
            raise UserError(f"{MATRIX}:{_line(document, key)}: unknown key {key}", "known here: cells")
    entries: CommentedMap = document["cells"]
    return entries


def _yaml_message(problem: YAMLError) -> str:
    if not isinstance(problem, MarkedYAMLError):
        return f"{MATRIX}: not valid YAML: {str(problem).splitlines()[0]}"
    mark = problem.problem_mark or problem.context_mark
    line = f":{mark.line + 1}" if mark else ""
    return f"{MATRIX}{line}: not valid YAML: {(problem.problem or problem.context).splitlines()[0]}"


def _rows(
    mapping: Any, where: str, known: list[str], kind: str, line: int = 1
) -> Iterator[tuple[str, int, CommentedMap]]:
    """Yield name, line and value of each entry; each name must be that of a Component."""
    if not isinstance(mapping, CommentedMap):
        raise UserError(f"{MATRIX}:{line}: {where}: a mapping of {kind} names is needed")
    for name, value in mapping.items():
        at = _line(mapping, name)
        if name not in known:
            raise UserError(
                f"{MATRIX}:{at}: {where}.{name}: overlays/{kind}/{name} does not exist",
                did_you_mean(str(name), known) or f"known: {', '.join(known)}",
            )
        if not isinstance(value, CommentedMap):
            raise UserError(f"{MATRIX}:{at}: {where}.{name}: a mapping is needed")
        yield str(name), at, value


def _in_place(entry: CommentedMap, sections: Mapping[str, Any], line: int, text: str) -> str:
    """Return a cell's sections as a document with the matrix's line numbers, so that errors point there.

    A cell in flow style ({...}) is on one line.
    """
    if entry.fa.flow_style():
        return "\n" * (line - 1) + json.dumps(sections)
    lines = text.splitlines()
    kept = [""] * len(lines)
    for section in sections:
        start, column = entry.lc.key(section)
        kept[start] = lines[start][column:]
        for number in range(start + 1, len(lines)):
            if lines[number].strip() and not lines[number].startswith(" " * (column + 1)):
                break
            kept[number] = lines[number][column:]
    return "\n".join(kept)


def _components(root: Path, kind: str) -> list[str]:
    return sorted(path.parent.name for path in (root / "overlays" / kind).glob("*/kustomization.yaml"))


def _plain(value: Any) -> Any:
    """Return YAML as plain types, without the matrix's comments."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _line(mapping: CommentedMap, key: Any) -> int:
    line: int = mapping.lc.key(key)[0]
    return line + 1
