"""Extraction of the program from a response. Text is only cut and joined here, nothing is run."""

from __future__ import annotations

import ast
import re

from evolvent.grade.markdown import fenced_blocks
from evolvent.grade.thoughts import split_thoughts

__all__ = ["extract_program", "extract_source"]

_FUTURE = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)
_INDENT = "    "
_MAX_CUTS = 64  # places where a completion may be cut; each is parsed


def extract_source(text: str) -> str:
    """Returns the program in a text: its last fenced block, or else all of it. Thoughts are passed over."""
    return _fenced_blocks(text)[-1]


def _fenced_blocks(text: str) -> list[str]:
    """Returns the fenced blocks of a text; the whole text where it has none."""
    text = text.replace("\r\n", "\n")
    visible, thought = split_thoughts(text)
    text = visible if thought else text
    return [block.text for block in fenced_blocks(text)] or [text]


def extract_program(response: str, entry: str, *, prompt: str = "") -> str:
    """Builds the program of a response, for language models of both kinds.

    A chat model writes the whole function, fenced or not: it follows the imports and helpers of the prompt. A base
    model continues the prompt: its text is the body and whatever comes behind it, as HumanEval's own harness runs it.
    Where that is not valid Python, the text is cut before the last lines that are not indented, as a stop would.

    Args:
        response: the model's text.
        entry: the requested function.
        prompt: a program whose last function is to be completed; "": the response is the whole program.
    """
    blocks = _fenced_blocks(response)
    source = next((block for block in reversed(blocks) if _defines(block, entry)), blocks[-1])
    if not prompt or _defines(source, entry):
        return "".join((*_FUTURE.findall(source), _text_before(prompt, entry), _FUTURE.sub("", source)))
    lines = source.split("\n")
    if lines[0].strip() and not lines[0][0].isspace():
        lines[0] = _INDENT + lines[0]  # a grammar has taken the spaces around the response
    return "\n".join((prompt.rstrip("\n"), *_cut_completion(prompt, lines, entry), ""))


def _cut_completion(prompt: str, lines: list[str], entry: str) -> list[str]:
    """Returns the longest part of a completion that makes the prompt valid Python and ends before an unindented line.

    Without such a part it is the lines up to the first that is not indented. The function itself, written once more,
    ends the completion.
    """
    again = re.compile(rf"(?:async )?def {re.escape(entry)}\b")
    lines = lines[:-1] if len(lines) > 1 and not lines[-1] else lines
    lines = lines[: next((index for index, line in enumerate(lines) if again.match(line)), len(lines))]
    ends = [index for index, line in enumerate(lines) if line.strip() and not line[0].isspace()]
    head = prompt.rstrip("\n")
    for end in [len(lines), *ends[::-1][:_MAX_CUTS]]:
        if _parse_statements("\n".join((head, *lines[:end], ""))) is not None:
            return lines[:end]
    return lines[: ends[0]] if ends else lines


def _defines(source: str, entry: str) -> bool:
    """Returns whether a source defines the function at its top level.

    A body that another function follows does not: it has a `return` at its top level, or is indented. A source that
    is not valid Python defines the function where the text before the function is valid Python.
    """
    body = _parse_statements(source)
    if body is None:
        match = re.search(rf"^(?:async )?def {re.escape(entry)}\b", source, re.MULTILINE)
        statements_before = None if match is None else _parse_statements(source[: match.start()])
        return statements_before is not None and not any(isinstance(node, ast.Return) for node in statements_before)
    if any(isinstance(node, ast.Return) for node in body):
        return False
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, kinds) and node.name == entry for node in body) or any(
        isinstance(target, ast.Name) and target.id == entry
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def _parse_statements(source: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _text_before(prompt: str, entry: str) -> str:
    """Returns the text of a prompt before the requested function."""
    matches = list(re.finditer(rf"^(?:@.*\n)*(?:async )?def {re.escape(entry)}\b", prompt, re.MULTILINE))
    return prompt[: matches[-1].start()] if matches else ""
