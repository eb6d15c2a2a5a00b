"""An info whose legal actions are listed when they are first read.

Listing them can cost more than the rest of a step, and most agents never read them. Everything else about the info is
as if the list stood there: its keys and their order, equality with a dict, its JSON, and what a copy holds.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView

__all__ = ["DeferredInfo"]

_ADMISSIBLE = "admissible"


class DeferredInfo(dict[str, object]):
    """A dict of the legal actions, which come first, and other fields.

    Every way to read the legal actions lists them. Code that looks into a dict's memory instead of asking it, as some
    serializers in C do, needs a copy: `dict(info)`. Copies and pickles are plain dicts.

    Args:
        list_actions: returns the legal actions, the same at every call.
        fields: the other fields.

    >>> info = DeferredInfo(lambda: ("left", "right"), {"score": 0.5})
    >>> info["admissible"], info.get("invalid"), dict(info)
    (('left', 'right'), None, {'admissible': ('left', 'right'), 'score': 0.5})
    """

    __slots__ = ("_list_actions",)

    def __init__(self, list_actions: Callable[[], Sequence[str]], fields: Mapping[str, object]) -> None:
        super().__init__({_ADMISSIBLE: None})
        super().update(fields)
        self._list_actions: Callable[[], Sequence[str]] | None = list_actions

    def _list(self) -> None:
        """Puts the legal actions in their place."""
        if self._list_actions is not None:
            super().__setitem__(_ADMISSIBLE, self._list_actions())
            self._list_actions = None

    def __getitem__(self, name: str) -> object:
        if name == _ADMISSIBLE:
            self._list()
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: object) -> None:
        self._list()
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._list()
        super().__delitem__(name)

    def __iter__(self) -> Iterator[str]:  # a dict's own iterator would let copies in C pass over `__getitem__`
        return super().__iter__()

    def __eq__(self, value: object) -> bool:
        self._list()
        return super().__eq__(dict(value) if isinstance(value, DeferredInfo) else value)

    def __ne__(self, value: object) -> bool:
        return not self == value

    def __repr__(self) -> str:
        self._list()
        return super().__repr__()

    def __or__(self, mapping: Mapping[str, object]) -> dict[str, object]:  # type: ignore[override]
        return {**self, **mapping}

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        return dict, (dict(self),)

    def get(self, name: str, default: object = None) -> object:
        """Returns a field, or the default."""
        if name == _ADMISSIBLE:
            self._list()
        return super().get(name, default)

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        """Returns all fields with their names."""
        self._list()
        return super().items()

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        """Returns all fields."""
        self._list()
        return super().values()

    def copy(self) -> dict[str, object]:
        """Returns a plain dict."""
        return dict(self)

    def pop(self, name: str, *default: object) -> object:
        """Removes a field and returns it."""
        self._list()
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, object]:
        """Removes the last field and returns it with its name."""
        self._list()
        return super().popitem()

    def setdefault(self, name: str, default: object = None) -> object:
        """Returns a field, which is the default from now on where there is none."""
        self._list()
        return super().setdefault(name, default)

    def update(self, *mappings: Mapping[str, object], **fields: object) -> None:  # type: ignore[override]
        """Sets fields."""
        self._list()
        super().update(*mappings, **fields)

    def with_fields(self, **fields: object) -> DeferredInfo:
        """Returns the same legal actions beside more fields."""
        earlier_fields = {name: super(DeferredInfo, self).__getitem__(name) for name in self if name != _ADMISSIBLE}
        return DeferredInfo(self._read_actions, {**earlier_fields, **fields})

    def _read_actions(self) -> Sequence[str]:
        actions = self[_ADMISSIBLE]
        return actions if isinstance(actions, Sequence) else ()
