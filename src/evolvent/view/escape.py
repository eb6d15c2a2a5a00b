"""Untrusted text made safe to look at.

Markup escaping alone is not enough: control characters, direction overrides and invisible characters make text look
like something it is not, and lone surrogates cannot be written as UTF-8. Here they become visible marks.
"""

from __future__ import annotations

import unicodedata

from markupsafe import Markup, escape

__all__ = ["clip", "format_large", "mark_hidden", "show_hidden"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters and marks drawn as nothing


def _is_hidden(character: str) -> bool:
    if character in "\n\t":
        return False
    return character in _BLANK or (not character.isprintable() and unicodedata.category(character) in _HIDDEN)


def clip(text: str, limit: int) -> str:
    """Returns at most `limit` characters, and a note of how many are not shown."""
    return text if len(text) <= limit else f"{text[:limit]} [{len(text) - limit:,} more characters are not shown]"


def show_hidden(text: str) -> str:
    """Returns the text with every hidden character as its code point, such as `[U+202E]`. Not escaped for markup."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"[U+{ord(character):04X}]" if _is_hidden(character) else character for character in text)


def mark_hidden(text: str, limit: int = 4000) -> Markup:
    """Returns the clipped text for the body of a page: escaped, hidden characters in boxes that name them."""
    pieces = []
    for character in clip(text, limit):
        if _is_hidden(character):
            name = unicodedata.name(character, unicodedata.category(character))
            pieces.append(Markup('<b class="hidden-mark" title="{}">U+{:04X}</b>').format(name, ord(character)))
        else:
            pieces.append(escape(character))
    return Markup("").join(pieces)


def format_large(value: float | None) -> str:
    """Formats a count in few characters: 950, 12.00k, 3.40M; `-` where it is unknown."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.2f}{unit}"
    return f"{value:.0f}"
