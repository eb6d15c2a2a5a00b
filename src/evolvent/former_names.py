"""Names that settings and classes had in earlier versions; see `docs/renames.md`.

They serve two purposes: settings that are written with an old name still load, and what a stage of a run or a frozen
study depends on keeps the identity that it had before a rename (`evolvent.identity`).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FORMER_CLASSES", "FORMER_FIELDS", "former_class", "former_fields"]

FORMER_CLASSES: Mapping[str, str] = {}
"""Class name -> the name that identities still use."""

FORMER_FIELDS: Mapping[str, Mapping[str, str]] = {}
"""Class name -> field -> the name that identities still use, and that settings still accept."""


def former_class(name: str) -> str:
    """Returns the name that a class has in identities."""
    return FORMER_CLASSES.get(name, name)


def former_fields(cls: type) -> dict[str, str]:
    """Returns the former names of a class's fields, those of its bases included, by their present names."""
    fields: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        fields.update(FORMER_FIELDS.get(base.__name__, {}))
    return fields
