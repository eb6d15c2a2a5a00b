"""An info whose legal actions are listed when they are first read.

Listing them can cost more than the rest of a step, and most agents never read them. Everything else about the info is
as if the list stood there: its keys and their order, equality with a dict, and what a copy holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["DeferredInfo"]

_ADMISSIBLE = "admissible"


class DeferredInfo(Mapping[str, object]):
    """The legal actions, which come first, and other fields.

    A copy or a pickle is a plain dict.

    Args:
        list_actions: returns the legal actions, the same at every call.
        fields: the other fields.

    >>> info = DeferredInfo(lambda: ("left", "right"), {"score": 0.5})
    >>> info["admissible"], info.get("invalid"), dict(info)
    (('left', 'right'), None, {'admissible': ('left', 'right'), 'score': 0.5})
    """

    __slots__ = ("_fields", "_list_actions")

    def __init__(self, list_actions: Callable[[], Sequence[str]], fields: Mapping[str, object]) -> None:
        self._list_actions, self._fields = list_actions, fields

    def __getitem__(self, name: str) -> object:
        return self._list_actions() if name == _ADMISSIBLE else self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name == _ADMISSIBLE or name in self._fields

    def __iter__(self) -> Iterator[str]:
        yield _ADMISSIBLE
        yield from self._fields

    def __len__(self) -> int:
        return 1 + len(self._fields)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        return dict, (dict(self),)

    def with_fields(self, **fields: object) -> DeferredInfo:
        """Returns the same legal actions beside more fields."""
        return DeferredInfo(self._list_actions, {**self._fields, **fields})
