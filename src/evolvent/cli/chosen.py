"""Which method a command line names, before its settings are read: each method has settings of its own."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

from evolvent.errors import ConfigError, unknown

__all__ = ["method_named"]


def method_named(words: Sequence[str], known: Collection[str], *, usual: str) -> tuple[str | None, list[str]]:
    """The method that the words name (or the resumed run's, or the usual one), and the other words; None: help for all.

    Raises:
        ConfigError: no such method.
    """
    rest, name = list(words), None
    for at, word in enumerate(rest):
        option, mark, text = word.partition("=")
        value = text if mark else rest[at + 1] if at + 1 < len(rest) else ""
        if option == "--method":
            name = value
            del rest[at : at + (1 if mark else 2)]
            break
        if option == "--resume":
            name = _method_of(Path(value), known)
    if name is None and (not rest or any(word in ("-h", "--help") for word in rest)):
        return None, rest
    name = usual if name is None else name
    if name not in known:
        raise ConfigError([unknown("method", name, known, where="--method")])
    return name, rest


def _method_of(run: Path, known: Collection[str]) -> str | None:
    """Of a run that was begun; None: its settings tell none that is known."""
    try:
        found = tomllib.loads((run / "config.toml").read_text(encoding="utf-8")).get("method")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, str) and found in known else None
