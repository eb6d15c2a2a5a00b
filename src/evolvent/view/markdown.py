"""Text that others wrote, made safe inside Markdown and YAML: it shows as text, and becomes no markup, link or key.

Everything is brought to one line with its hidden characters named, then either put in a code span, where it is plain
enough for one, or escaped character by character. No HTML is ever written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from evolvent.view.escape import clip, plain

__all__ = ["escaped", "grid", "named", "one_line", "quoted"]

_SIMPLE = re.compile(r"[\w .,:;/=+()%?'\"-]+")  # no character that a code span or a cell of a table could take amiss
_ACTIVE = re.compile(r"[\\`*_\[\]<>&|~$@#!]|:(?=/)|(?<=www)\.", re.IGNORECASE)
_MOST = 120


def one_line(text: str, limit: int = _MOST) -> str:
    """The text on one line of at most `limit` characters (and a note of how many are left out), nothing hidden."""
    return clip(" ".join(plain(text).split()), limit)


def escaped(text: str, limit: int = _MOST) -> str:
    """The text as running Markdown text. Begin no line with it: a number and a full stop there would be a list."""
    return _ACTIVE.sub(r"\\\g<0>", one_line(text, limit))


def named(text: str, limit: int = _MOST) -> str:
    """A name: a code span, or escaped text where it holds characters that names do not; `-` where it is empty."""
    line = one_line(text, limit)
    if not line:
        return "-"
    return f"`{line}`" if _SIMPLE.fullmatch(line) else escaped(text, limit)


def quoted(text: str, limit: int = 200) -> str:
    """The text as a double-quoted scalar of YAML 1.1 and 1.2, which is a string of JSON too."""
    return json.dumps(one_line(text, limit), ensure_ascii=False)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """A table of cells that are safe Markdown already.

    Args:
        numbers: the columns to align right.
    """
    marks = ["---:" if column in numbers else "---" for column in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, marks, *rows))
