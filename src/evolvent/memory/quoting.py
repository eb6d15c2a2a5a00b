"""Texts of others, made fit to stand in a prompt as data.

A thought in a memory was written by somebody: it may hold control characters, or lines that look like the prompt's own
("> act: ...", "[Step 0]"). The memory keeps it as it is. Where it is shown, hidden characters become visible marks and
no line of it can be taken for one of the prompt's. What it says stays what it says: an instruction in it is quoted, and
that the reader does not obey it cannot be promised by any quoting.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["quoted"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_FORGED = re.compile(  # a later line that begins as a prompt's own lines do
    r"\n(?=[ \t]*(?:[>\[<#|`]|Task:|Here (?:is|are) |Now it is your turn|The thought before|OK\.|\.\.\.))"
)


def quoted(text: str) -> str:
    """The text with hidden characters as `[U+202E]`, and `\\` before a later line that begins as a prompt's own do.

    Line breaks and tabs stay; other spellings of line breaks become plain ones first. Text of plain words is unchanged.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    if not (plain.isascii() and plain.replace("\n", "").replace("\t", "").isprintable()):
        plain = "".join(f"[U+{ord(c):04X}]" if _is_hidden(c) else c for c in plain)
    return _FORGED.sub("\n\\\\", plain)


def _is_hidden(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in _HIDDEN
