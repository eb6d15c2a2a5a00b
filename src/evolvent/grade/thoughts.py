"""Finds the thoughts of a reply: text between `<think>` and `</think>`, or another model's marks for the same.

A thought is one only where it is not inside a call. A reply may lack the first mark, because the prompt wrote it: then
everything before the first closing mark is a thought. A thought that does not end is a thought to the end of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = ["FindCall", "find_thoughts", "mask_thoughts", "opens_thought", "remove_thoughts", "split_thoughts"]

FindCall = Callable[[str, int], tuple[int, int] | None]
"""A function that returns the start and the end of the first complete call from a position; None without a call."""

_MARKS: dict[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "◁think▷": "◁/think▷",
}
_MARK = re.compile("|".join(re.escape(mark) for pair in _MARKS.items() for mark in pair))
_CLOSING = re.compile("|".join(re.escape(mark) for mark in _MARKS.values()))
_MAX_SEARCHES = 256  # for calls in one reply, each of which looks at all that is left of it
_OPEN_AT_END = re.compile(f"(?:{'|'.join(re.escape(mark) for mark in _MARKS)})\\s*\\Z")


def opens_thought(prompt: str) -> bool:
    """Returns whether a prompt ends with the mark that opens a thought, so that the reply begins inside it."""
    return _OPEN_AT_END.search(prompt[-64:]) is not None


def find_thoughts(
    text: str, *, is_open: bool = False, find_call: FindCall | None = None, implied: bool = True
) -> list[tuple[int, int]]:
    """Returns the start and the end of each thought with its marks, in order and apart from one another.

    Args:
        text: The reply.
        is_open: Whether the prompt opened a thought.
        find_call: Finds calls, inside of which there are no thoughts; None: the reply has no calls.
        implied: Whether a closing mark alone ends a thought that the prompt opened.
    """
    spans, position = list[tuple[int, int]](), 0
    if is_open:
        closing = _CLOSING.search(text)
        position = closing.end() if closing else len(text)
        spans.append((0, position))
    call, num_searches = (-1, -1), 0
    while match := _MARK.search(text, position):
        if call[0] < position and find_call is not None and num_searches < _MAX_SEARCHES:
            call = find_call(text, position) or (-1, -1)
            num_searches += 1
        if position <= call[0] < match.start():
            position = call[1]
            continue
        if match[0] in _MARKS:
            end = text.find(_MARKS[match[0]], match.end())
            position = len(text) if end < 0 else end + len(_MARKS[match[0]])
            spans.append((match.start(), position))
        else:
            position = match.end()
            spans = [(0, position)] if implied else spans
    return spans


def mask_thoughts(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Replaces every character of the thoughts with a space, so that positions stay the same."""
    parts, position = list[str](), 0
    for start, end in spans:
        parts += [text[position:start], " " * (end - start)]
        position = end
    return "".join([*parts, text[position:]])


def remove_thoughts(text: str, *, is_open: bool = False, find_call: FindCall | None = None) -> str:
    """Returns a reply without its thoughts, and without white space at its ends.

    Args:
        text: The reply.
        is_open: Whether the prompt opened a thought.
        find_call: Finds calls, inside of which there are no thoughts; None: the reply has no calls.
    """
    parts, position = list[str](), 0
    for start, end in find_thoughts(text, is_open=is_open, find_call=find_call):
        parts.append(text[position:start])
        position = end
    return "".join([*parts, text[position:]]).strip()


def split_thoughts(text: str, *, leading: bool = True) -> tuple[str, str]:
    """Returns a reply without its thoughts, and the thoughts without their marks, apart by empty lines.

    Args:
        text: The reply.
        leading: Whether only thoughts before all other text count, so that an argument or a program may hold the marks.
            A closing mark alone then counts only at the beginning or the end of a line.
    """
    spans = find_thoughts(text)
    if not spans:
        return text.strip(), ""
    if leading:
        position, first, closing_marks = 0, list[tuple[int, int]](), tuple(_MARKS.values())
        for start, end in spans:
            mark_line = text[text.rfind("\n", 0, end) + 1 :].split("\n", 1)[0].strip()
            is_opened = _MARK.match(text[start:].lstrip()) is not None
            is_alone = is_opened or mark_line.startswith(closing_marks) or mark_line.endswith(closing_marks)
            if text[position:start].strip() or not is_alone:
                break
            first.append((start, end))
            position = end
        spans = first
    thoughts = [_MARK.sub("", text[start:end]).strip() for start, end in spans]
    parts, position = list[str](), 0
    for start, end in spans:
        parts.append(text[position:start])
        position = end
    return "".join([*parts, text[position:]]).strip(), "\n\n".join(filter(None, thoughts))
