"""The program that a response stands for. Text is only cut and joined here, nothing is run."""

from __future__ import annotations

import ast
import re

__all__ = ["program_of", "source_in"]

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_FUTURE = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)
_INDENT = "    "


def source_in(text: str) -> str:
    """The program in a text: its last fenced block, or else all of it."""
    return _blocks(text)[-1]


def _blocks(text: str) -> list[str]:
    """The fenced blocks of a text; the whole text where it has none."""
    text = text.replace("\r\n", "\n")
    return _FENCED.findall(text) or [text]


def program_of(said: str, entry: str, *, prompt: str = "") -> str:
    """The program that a response makes, as language models of both kinds answer.

    A chat model writes the whole function, in a fence or not: it stands behind the imports and helpers of the prompt. A
    base model goes on from the prompt: its text is the body, up to the first line that is not indented any more.

    Args:
        said: the response.
        entry: the function that is asked for.
        prompt: a program whose last function is to be completed; "": the response is all there is.
    """
    blocks = _blocks(said)
    source = next((block for block in reversed(blocks) if _defines(block, entry)), blocks[-1])
    if not prompt or _defines(source, entry):
        return "".join((*_FUTURE.findall(source), _before(prompt, entry), _FUTURE.sub("", source)))
    lines = source.split("\n")
    if lines[0].strip() and not lines[0][0].isspace():
        lines[0] = _INDENT + lines[0]  # a grammar has taken the spaces around the response
    end = next((place for place, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
    return "\n".join((prompt.rstrip("\n"), *lines[:end], ""))


def _defines(source: str, entry: str) -> bool:
    """Whether a source defines the function at its top level.

    A body that another function follows does not: it has a `return` at its top, or is indented. A source that is no
    Python defines it where what stands before the function is Python.
    """
    body = _parsed(source)
    if body is None:
        found = re.search(rf"^(?:async )?def {re.escape(entry)}\b", source, re.MULTILINE)
        before = None if found is None else _parsed(source[: found.start()])
        return before is not None and not any(isinstance(node, ast.Return) for node in before)
    if any(isinstance(node, ast.Return) for node in body):
        return False
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, kinds) and node.name == entry for node in body) or any(
        isinstance(target, ast.Name) and target.id == entry
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def _parsed(source: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _before(prompt: str, entry: str) -> str:
    """What stands in a prompt before the function that is asked for."""
    found = list(re.finditer(rf"^(?:@.*\n)*(?:async )?def {re.escape(entry)}\b", prompt, re.MULTILINE))
    return prompt[: found[-1].start()] if found else ""
