"""Which method a command line names, before its settings are read: each method has settings of its own."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

from evolvent.errors import ConfigError, Problem, unknown

__all__ = ["method_named"]


def method_named(words: Sequence[str], known: Collection[str], *, usual: str) -> tuple[str | None, list[str]]:
    """The method that the words name (or the resumed run's, or the usual one), and the other words; None: help for all.

    Raises:
        ConfigError: no such method, or another than that of the resumed run.
    """
    rest, name, begun, run = list(words), None, None, ""
    for at, word in enumerate(words):
        option, mark, text = word.partition("=")
        value = text if mark else words[at + 1] if at + 1 < len(words) else ""
        if option == "--method" and name is None:
            name = value
            del rest[at : at + (1 if mark else 2)]
        elif option == "--resume":
            begun, run = _method_of(Path(value), known), value
    if name is not None and begun not in (None, name):
        told = f"{run} is a run of {begun}, got {name}"
        raise ConfigError([Problem("--method", told, "leave --method out, or begin another run")])
    name = begun if name is None else name
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
