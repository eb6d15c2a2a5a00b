"""Markdown in replies: fenced blocks and code spans as CommonMark 0.31 defines them, labels, and marks of emphasis.

Only what carries an answer is read. A fence ends at a line with at least as many marks as it began with and at most
three spaces before them (section 4.5), or with the list item or quotation that holds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FencedBlock", "fenced_blocks", "find_code_span", "split_at_label", "strip_markdown", "unwrap"]

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)$")
_ITEM = re.compile(r"( {0,3})([-+*]|\d{1,9}[.)])( {1,4}(?=\S)|(?= {5})| *$)")
_QUOTATION = re.compile(r" {0,3}> ?")
_RULE = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*|(?<=\n) {0,3}=+ *")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_BACKQUOTES = re.compile(r"`+")
_EMPHASIS = re.compile(r"^(?:\*\*|__|`)+|(?:\*\*|__|`)+(?=[.,;:]*$)|(?<=[.,;:])(?:\*\*|__|`)+$")
_LABEL = r"(?<![A-Za-z])(?:\*\*|__|[*_])?{label}(?:\*\*|__|[*_])?[ \t]*:(?:\*\*|__|[*_](?![*_\w]))?"
_WRAPPERS = ("**", "__", "`", "*", '"', "'", "“”")


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """A fenced block of code.

    Args:
        language: The first word behind the opening fence, in lowercase.
        text: Its lines, each with its line end.
    """

    language: str
    text: str


def fenced_blocks(text: str) -> list[FencedBlock]:
    """Returns the fenced blocks of a text, in order. A block without an end goes on to the end of the text."""
    blocks, lines = list[FencedBlock](), list[str]()
    containers = list[int]()  # the width of each list item, 0 for a quotation
    fence: tuple[str, int, str] | None = None
    in_paragraph = is_empty_item = False
    for line in re.split(r"\r\n|\n|\r", text.expandtabs(4) if "\t" in text and _has_tabbed_fence(text) else text):
        rest, depth = _enter(line, containers)
        if is_empty_item and not rest.strip() and containers:
            depth = min(depth, len(containers) - 1)  # an item begins with at most one empty line
        is_lazy = in_paragraph and depth < len(containers) and not _begins_block(rest)
        in_paragraph = in_paragraph and (is_lazy or depth == len(containers))
        if depth < len(containers) and (fence is not None or rest.strip() or is_empty_item) and not is_lazy:
            if fence is not None:
                blocks.append(FencedBlock(fence[2], "".join(f"{one}\n" for one in lines)))
            fence, lines, in_paragraph = None, [], False
            del containers[depth:]
        is_empty_item = False
        if fence is not None:
            if _closes(rest, fence[0]):
                blocks.append(FencedBlock(fence[2], "".join(f"{one}\n" for one in lines)))
                fence, lines = None, []
            else:
                lines.append(rest[min(fence[1], len(rest) - len(rest.lstrip(" "))) :])
            continue
        depth = len(containers)
        if not is_lazy:
            rest = _open_containers(rest, containers, in_paragraph=in_paragraph)
        in_paragraph = in_paragraph and len(containers) == depth
        is_empty_item = len(containers) > depth and containers[-1] > 0 and not rest.strip()
        match = None if is_lazy else _FENCE.match(rest)
        if match is not None:
            words = match[3].split()
            fence, lines = (match[2], len(match[1]), words[0].lower() if words else ""), []
        is_text = rest.strip() != "" and (in_paragraph or not rest.startswith("    "))
        in_paragraph = match is None and is_text and _RULE.fullmatch(rest) is None and _HEADING.match(rest) is None
    if fence is not None:
        blocks.append(FencedBlock(fence[2], "\n".join(lines)))
    return blocks


def _begins_block(line: str) -> bool:
    """Returns whether a line cannot go on a paragraph of an item or a quotation that it is not inside."""
    if (
        not line.strip()
        or _FENCE.match(line)
        or _QUOTATION.match(line)
        or _RULE.fullmatch(line)
        or _HEADING.match(line)
    ):
        return True
    return _ITEM.match(line) is not None


def _has_tabbed_fence(text: str) -> bool:
    return re.search(r"^[ >]*\t[ \t]*(?:`{3}|~{3})", text, re.MULTILINE) is not None


def _enter(line: str, containers: list[int]) -> tuple[str, int]:
    """Returns a line inside of its containers, and how many of them go on."""
    for depth, width in enumerate(containers):
        if width == 0:
            match = _QUOTATION.match(line)
            if match is None:
                return line, depth
            line = line[match.end() :]
        elif line.startswith(" " * width):
            line = line[width:]
        elif line.strip():
            return line, depth
        else:
            line = ""
    return line, len(containers)


def _open_containers(line: str, containers: list[int], *, in_paragraph: bool) -> str:
    """Enters list items and quotations that begin on a line. Only an item with text, numbered 1, ends a paragraph."""
    while True:
        quotation, item = _QUOTATION.match(line), _ITEM.match(line)
        if item is not None and in_paragraph and not (item[3] and (item[2] in "-+*" or item[2][:-1] == "1")):
            item = None
        if quotation is not None:
            containers.append(0)
            line = line[quotation.end() :]
        elif item is not None and _RULE.fullmatch(line) is None:
            width = item.end() if item[3] and line[item.end() :].strip() else item.end(2) + 1
            containers.append(width)
            line = line[width:]
        else:
            return line
        in_paragraph = False


def _closes(line: str, opening: str) -> bool:
    stripped = line.strip(" \t")
    indent = len(line) - len(line.lstrip(" "))
    return indent <= 3 and len(stripped) >= len(opening) and not stripped.strip(opening[0])


def find_code_span(text: str) -> tuple[int, int, str] | None:
    """Returns the bounds of the first code span with its back quotes, and its content; None where there is none.

    A span ends at the next run of as many back quotes as began it, so that two back quotes may hold one.
    """
    runs = list(_BACKQUOTES.finditer(text))
    positions: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        positions.setdefault(len(run[0]), []).append(number)
    for number, run in enumerate(runs):
        later = positions[len(run[0])]
        if later[-1] > number:
            closing = runs[next(other for other in later if other > number)]
            content = text[run.end() : closing.start()]
            if content.strip():
                is_padded = content[0] == content[-1] == " "
                return run.start(), closing.end(), content[1:-1] if is_padded and len(content) > 2 else content
    return None


def split_at_label(text: str, label: str, *, last: bool = True) -> tuple[str, str] | None:
    """Splits a text at a `label:`, which may be emphasized; None where there is none.

    Args:
        text: The text.
        label: A word such as "Action".
        last: Whether the last label counts, or else the first.
    """
    matches = list(re.finditer(_LABEL.format(label=re.escape(label)), text))
    match = matches[-1 if last else 0] if matches else None
    return None if match is None else (text[: match.start()], text[match.end() :])


def strip_markdown(text: str) -> str:
    """Removes marks of emphasis and code around a text, also where only one end of it has them."""
    text = text.strip()
    while True:
        stripped = _EMPHASIS.sub("", text).strip()
        if stripped.startswith(("*", "_")) and stripped.endswith(stripped[0]) and len(stripped) > 2:
            stripped = stripped[1:-1].strip()
        if stripped == text or not stripped:
            return stripped
        text = stripped


def unwrap(text: str, wrappers: tuple[str, ...] = _WRAPPERS) -> str:
    """Removes marks that stand around a whole text, once or nested, where none of them is inside."""
    text = text.strip()
    for _ in range(len(wrappers)):
        for wrapper in wrappers:
            opening, closing = (wrapper[0], wrapper[1]) if wrapper == "“”" else (wrapper, wrapper)
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and inner.strip() and opening not in inner:
                text = inner.strip()
    return text
