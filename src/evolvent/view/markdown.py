"""Untrusted text made safe inside Markdown and YAML: it shows as text, and becomes no markup, link or key.

Everything is brought to one line with its hidden characters named, then either put in a code span, where it is plain
enough for one, or escaped character by character. No HTML is ever written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from evolvent.view.escape import clip, show_hidden

__all__ = ["escape_markdown", "format_name", "format_table", "join_lines", "quote_yaml"]

_CODE_SPAN_TEXT = re.compile(
    r"[\w .,:;/=+()%?'\"-]+"
)  # no character that a code span or a cell of a table could take amiss
_MARKUP_CHARACTERS = re.compile(r"[\\`*_\[\]<>&|~$@#!]|:(?=/)|(?<=www)\.", re.IGNORECASE)
_MAX_CHARS = 120


def join_lines(text: str, limit: int = _MAX_CHARS) -> str:
    """Returns the text on one line of at most `limit` characters (and a note of how many are left out), nothing
    hidden.
    """
    return clip(" ".join(show_hidden(text).split()), limit)


def escape_markdown(text: str, limit: int = _MAX_CHARS) -> str:
    """Returns the text as running Markdown. Begin no line with it: a number and a full stop there would be a list."""
    return _MARKUP_CHARACTERS.sub(r"\\\g<0>", join_lines(text, limit))


def format_name(text: str, limit: int = _MAX_CHARS) -> str:
    """Formats a name: a code span, or escaped text if it holds characters that names do not; `-` if it is empty."""
    line = join_lines(text, limit)
    if not line:
        return "-"
    return f"`{line}`" if _CODE_SPAN_TEXT.fullmatch(line) else escape_markdown(text, limit)


def quote_yaml(text: str, limit: int = 200) -> str:
    """Returns the text as a double-quoted scalar of YAML 1.1 and 1.2, which is a string of JSON too."""
    return json.dumps(join_lines(text, limit), ensure_ascii=False)


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """Formats a table of cells that are safe Markdown already.

    Args:
        numbers: the columns to align right.
    """
    alignments = ["---:" if column in numbers else "---" for column in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, alignments, *rows))
