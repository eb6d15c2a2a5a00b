"""Quoting of foreign texts so that they can be data in a prompt.

A thought in a memory may hold control characters, or lines that look like the prompt's own ("> act: ...",
"[Step 0]"). The memory stores it unchanged. Where it is shown, hidden characters become visible marks and no
line of it can be taken for a line of the prompt. Its content stays: an instruction in it is quoted, and no
quoting can guarantee that the reader does not obey it.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["quote_text"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_FORGED = re.compile(  # a later line that begins as a prompt's own lines do
    r"\n(?=[ \t]*(?:[>\[<#|`]|Task:|Here (?:is|are) |Now it is your turn|The thought before|OK\.|\.\.\.))"
)


def quote_text(text: str) -> str:
    r"""Returns the text with hidden characters as `[U+202E]`, and `\\` before later lines that begin like a prompt's.

    Line breaks and tabs stay; other spellings of line breaks become plain ones first. Text of plain words is unchanged.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    if not (plain.isascii() and plain.replace("\n", "").replace("\t", "").isprintable()):
        plain = "".join(f"[U+{ord(c):04X}]" if _is_hidden(c) else c for c in plain)
    return _FORGED.sub("\n\\\\", plain)


def _is_hidden(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in _HIDDEN
