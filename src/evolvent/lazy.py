"""Namespaces that load their members when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from evolvent.errors import find_nearest

__all__ = ["lazy_namespace"]


def lazy_namespace(
    package: str, path: Sequence[str], homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Returns a package's `__getattr__`, `__dir__` and `__all__` (PEP 562).

    The package then offers the listed names and each of its modules; nothing is imported before it is asked for.

    Args:
        package: Name of the package, `__name__`.
        path: The folders of the package, `__path__`.
        homes: Module below the package -> names that it defines. A name must not be that of a module of the package.
    """
    home_by_name = {name: f"{package}.{module}" for module, names in homes.items() for name in names}
    public_names = sorted(home_by_name)

    def get_member(name: str) -> Any:
        if name in home_by_name:
            return getattr(import_module(home_by_name[name]), name)
        modules = {module.name for module in iter_modules(path)}
        if name in modules:
            return import_module(f"{package}.{name}")
        nearest = None if name.startswith("__") else find_nearest(name, {*public_names, *modules})
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)

    def list_members() -> list[str]:
        return sorted({*public_names, *(module.name for module in iter_modules(path))})

    return get_member, list_members, public_names
