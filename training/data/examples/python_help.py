"""The demonstration's data: questions and answers from this Python's own help.

A question asks about a topic of the language reference (`pydoc_data.topics`, the text of `help("for")`), or
what a function of the standard library does. The answer is a section of the topic or the first paragraph of
the docstring. Only the topics are imported; signatures and docstrings are read from the library's sources.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import warnings
from collections.abc import Iterator

from training.data.errors import DataError
from training.data.examples.example import Message
from training.data.readers import read_file_as_document
from training.data.sources import STDLIB, SourceFile, open_source

_LONGEST_SIGNATURE, _SHORTEST_ANSWER = 200, 20  # characters
_TESTS = re.compile(r"(^|/)(tests?|idlelib|lib2to3)/")
_HEADING = re.compile(r"\n\n\n")


def fingerprint() -> list[list[object]]:
    """Return name, size and time of change of each source file, including that of the topics."""
    return open_source(STDLIB).fingerprint()


@functools.cache
def chats() -> tuple[tuple[str, list[Message]], ...]:
    """Return (place, messages) in a fixed order: the topics, then the library's modules; about 2 MB."""
    files = [file for file in open_source(STDLIB).files if not _TESTS.search(file.name)]
    return *_topics(), *(chat for file in files for chat in _module(file))


def _topics() -> Iterator[tuple[str, list[Message]]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError("data source python-help: this Python has no pydoc_data.topics") from None
    for name, text in sorted(topics.items()):
        for number, section in enumerate(_HEADING.split(text.strip()), start=1):
            if len(section) >= _SHORTEST_ANSWER:
                part = "" if number == 1 else f", part {number}"
                yield f"topic {name}{part}", _asked(f"Explain {name}{part}.", section.strip())


def _module(file: SourceFile) -> Iterator[tuple[str, list[Message]]]:
    document = read_file_as_document(file.path)
    if document is None:
        return
    module = file.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(document.text)
    except SyntaxError:  # the library contains templates and samples that are not modules
        return
    yield from _definitions(tree, module, module)


def _definitions(node: ast.Module | ast.ClassDef, prefix: str, module: str) -> Iterator[tuple[str, list[Message]]]:
    for item in node.body:
        if isinstance(item, ast.ClassDef):
            yield from _definitions(item, f"{prefix}.{item.name}", module)
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            signature = f"{prefix}.{item.name}({ast.unparse(item.args)})"
            answer = _first_paragraph(item)
            if len(signature) <= _LONGEST_SIGNATURE and len(answer) >= _SHORTEST_ANSWER:
                yield f"{module}, line {item.lineno}", _asked(f"What does {signature} do?", answer)


def _first_paragraph(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return inspect.cleandoc(ast.get_docstring(function) or "").partition("\n\n")[0].strip()


def _asked(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
